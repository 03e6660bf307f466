"""Reads the annotations of an AppGroup and its pods: spread, objective and weights of calls.

An annotation that is unreadable, or needs prices that are not configured, counts as absent; a message is appended to ``errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, get_args

from controller.cluster.crds import SPREAD_ANNOTATION, AppGroup
from controller.cluster.dependency_graph import DependencyGraph
from controller.cluster.services import Routing
from controller.scheduler.placement.problem import CallEdge
from controller.scheduler.placement.problem_builder import OBJECTIVES_WITH_PRICES, Objective, Spread
from controller.traffic.weights import read_weights
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION

OBJECTIVE_ANNOTATION = "netaware.io/objective"
"""On an AppGroup: see `Objective`."""
WEIGHTS_ANNOTATION = "netaware.io/weights"
"""On an AppGroup: traffic of each dependency in any unit, as JSON: caller's selector -> callee's selector -> weight."""


def spread_of(annotations: Mapping[str, str] | None, default: Spread, errors: list[str]) -> Spread:
    """The spread that annotations choose, or the default."""
    text = (annotations or {}).get(SPREAD_ANNOTATION, "")
    return cast("Spread", _read_choice(text, SPREAD_ANNOTATION, Spread, errors) or default)


def objective_of(group: AppGroup, errors: list[str], *, has_prices: bool) -> Objective:
    """The group's objective; ``time`` by default, and if the objective needs prices that are not configured."""
    text = group.metadata.annotation(OBJECTIVE_ANNOTATION)
    objective = _read_choice(text, OBJECTIVE_ANNOTATION, Objective, errors) or "time"
    if objective in OBJECTIVES_WITH_PRICES and not has_prices:
        errors.append(f"objective {objective}: traffic.prices is not set, so the objective is time")
        return "time"
    return cast("Objective", objective)


def _read_choice(text: str, annotation: str, choices: object, errors: list[str]) -> str:
    """The value of an annotation; empty if it is none of the choices, which are a Literal."""
    value = text.strip().lower()
    if value and value not in get_args(choices):
        errors.append(f"annotation {annotation}: {value!r} is none of {', '.join(get_args(choices))}")
        return ""
    return value


def call_edges(
    group: AppGroup,
    graph: DependencyGraph,
    replica_counts: Mapping[int, int],
    routings: Sequence[Routing],
    errors: list[str],
) -> list[CallEdge]:
    """The group's dependencies with their weights.

    The first source with any weight counts: the user's annotation, measured traffic, minBandwidth. A dependency without a weight in this
    source has its least weight above 0. Without a source, each caller counts 1. ``replica_counts`` and ``routings`` are by workload.
    """
    weights = _read_edge_weights(group, graph, errors)
    return [
        CallEdge(
            caller=edge.caller,
            callee=edge.callee,
            weight=weights[i] if weights else float(max(replica_counts.get(edge.caller, 0), 1)),
            routing=routings[edge.callee],
            max_cost=edge.max_network_cost,
        )
        for i, edge in enumerate(graph.edges)
    ]


def _read_edge_weights(group: AppGroup, graph: DependencyGraph, errors: list[str]) -> list[float]:
    """[edge] its weight; empty if no source has a weight."""
    selectors = graph.selectors
    ends = [(selectors[edge.caller], selectors[edge.callee]) for edge in graph.edges]
    bandwidths = {
        pair: float(edge.min_bandwidth_bps)
        for pair, edge in zip(ends, graph.edges, strict=True)
        if edge.min_bandwidth_bps > 0
    }
    annotations = (WEIGHTS_ANNOTATION, MEASURED_WEIGHTS_ANNOTATION)
    sources = [*(read_weights(group, annotation, errors) for annotation in annotations), bandwidths]
    for source in sources:
        weights = [source.get(pair) for pair in ends]
        positive = [weight for weight in weights if weight]
        if positive:
            return [min(positive) if weight is None else weight for weight in weights]
    return []
