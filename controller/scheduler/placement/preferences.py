"""Reads preferences of an AppGroup and its Services: spread, objective, weights, routing.

What cannot be read counts as absent, and is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, get_args

from controller.cluster.graph import Graph
from controller.cluster.resources import SPREAD_ANNOTATION, AppGroup
from controller.cluster.services import Routing
from controller.scheduler.placement.problem import CallEdge
from controller.scheduler.placement.problem_builder import PRICED, Objective, Spread
from controller.traffic.weights import annotated_weights
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION

OBJECTIVE_ANNOTATION = "netaware.io/objective"
"""On an AppGroup: see `Objective`."""
WEIGHTS_ANNOTATION = "netaware.io/weights"
"""On an AppGroup: how much traffic each dependency has, as JSON: caller's selector -> callee's selector -> weight. Any unit."""


def spread_of(annotations: Mapping[str, str] | None, default: Spread, problems: list[str]) -> Spread:
    """An object's spread, or the default."""
    return cast(
        "Spread", _word((annotations or {}).get(SPREAD_ANNOTATION, ""), SPREAD_ANNOTATION, Spread, problems) or default
    )


def _word(text: str, annotation: str, known: object, problems: list[str]) -> str:
    """An annotation's word, empty if it is none of those known."""
    word = text.strip().lower()
    if word and word not in get_args(known):
        problems.append(f"annotation {annotation}: {word!r} is none of {', '.join(get_args(known))}")
        return ""
    return word


def objective_of(group: AppGroup, problems: list[str], *, priced: bool) -> Objective:
    """The group's objective, default time; time instead of money where there are no prices."""
    found = _word(group.metadata.annotation(OBJECTIVE_ANNOTATION), OBJECTIVE_ANNOTATION, Objective, problems) or "time"
    if found in PRICED and not priced:
        problems.append(f"objective {found}: there are no prices (traffic.prices), so calls are judged by time")
        return "time"
    return cast("Objective", found)


def call_edges(
    group: AppGroup, graph: Graph, replicas: Mapping[int, int], routings: Sequence[Routing], problems: list[str]
) -> list[CallEdge]:
    """The group's dependencies with their weights.

    Weights of the user count if there are any, else measured traffic, else minBandwidth, else each caller counts 1. A
    dependency that such a source leaves out weighs as little as the lightest it has.

    Args:
        group: the AppGroup.
        graph: of it.
        replicas: of each workload, by number.
        routings: per workload, who answers calls to it.
        problems: takes what could not be read.
    """
    weights = _weights(group, graph, problems)
    return [
        CallEdge(
            caller=edge.dependant,
            callee=edge.dependency,
            weight=weights[i] if weights else float(max(replicas.get(edge.dependant, 0), 1)),
            routing=routings[edge.dependency],
            max_cost=edge.max_network_cost,
        )
        for i, edge in enumerate(graph.edges)
    ]


def _weights(group: AppGroup, graph: Graph, problems: list[str]) -> list[float]:
    """Per edge; empty when nothing is known of any."""
    sources = (
        annotated_weights(group, WEIGHTS_ANNOTATION, problems),
        annotated_weights(group, MEASURED_WEIGHTS_ANNOTATION, problems),
        _bandwidths(graph),
    )
    ends = _ends(graph)
    for source in sources:
        found = [source.get(pair) for pair in ends]
        known = [weight for weight in found if weight]
        if known:
            return [min(known) if weight is None else weight for weight in found]
    return []


def _ends(graph: Graph) -> list[tuple[str, str]]:
    """Selectors of both ends of each edge."""
    selectors = graph.selectors
    return [(selectors[edge.dependant], selectors[edge.dependency]) for edge in graph.edges]


def _bandwidths(graph: Graph) -> dict[tuple[str, str], float]:
    pairs = zip(_ends(graph), graph.edges, strict=True)
    return {pair: float(edge.min_bandwidth_bps) for pair, edge in pairs if edge.min_bandwidth_bps > 0}
