"""Reads the annotations of an AppGroup and its pods: spread, objective and weights of calls.

An unreadable annotation counts as absent. A message about it is appended to ``annotation_errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, get_args

from controller.cluster.crds import SPREAD_ANNOTATION, AppGroup
from controller.cluster.dependency_graph import DependencyGraph
from controller.cluster.services import Routing
from controller.scheduler.placement.problem import CallEdge
from controller.scheduler.placement.problem_builder import PRICED, Objective, Spread
from controller.traffic.weights import read_weights
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION

OBJECTIVE_ANNOTATION = "netaware.io/objective"
"""On an AppGroup: see `Objective`."""
WEIGHTS_ANNOTATION = "netaware.io/weights"
"""On an AppGroup: traffic of each dependency in any unit, as JSON: caller's selector -> callee's selector -> weight."""


def spread_of(annotations: Mapping[str, str] | None, default: Spread, annotation_errors: list[str]) -> Spread:
    """The spread that annotations choose, or the default."""
    text = (annotations or {}).get(SPREAD_ANNOTATION, "")
    return cast("Spread", _choice(text, SPREAD_ANNOTATION, Spread, annotation_errors) or default)


def _choice(text: str, annotation: str, choices: object, annotation_errors: list[str]) -> str:
    """The value of an annotation; empty if it is none of the choices, which are a Literal."""
    value = text.strip().lower()
    if value and value not in get_args(choices):
        annotation_errors.append(f"annotation {annotation}: {value!r} is none of {', '.join(get_args(choices))}")
        return ""
    return value


def objective_of(group: AppGroup, annotation_errors: list[str], *, has_prices: bool) -> Objective:
    """The group's objective; ``time`` by default, and instead of money without prices."""
    objective = (
        _choice(group.metadata.annotation(OBJECTIVE_ANNOTATION), OBJECTIVE_ANNOTATION, Objective, annotation_errors)
        or "time"
    )
    if objective in PRICED and not has_prices:
        annotation_errors.append(
            f"objective {objective}: there are no prices (traffic.prices), so calls are judged by time"
        )
        return "time"
    return cast("Objective", objective)


def call_edges(
    group: AppGroup,
    graph: DependencyGraph,
    replicas: Mapping[int, int],
    routings: Sequence[Routing],
    annotation_errors: list[str],
) -> list[CallEdge]:
    """The group's dependencies with their weights.

    The first source that has any weight counts: the user's annotation, measured traffic, minBandwidth. A dependency that it
    leaves out has the least weight in it. Without a source, each caller counts 1.

    Args:
        group: the AppGroup.
        graph: its dependencies.
        replicas: index of a workload -> its replicas.
        routings: [workload] routing of calls to it.
        annotation_errors: messages about unreadable annotations are appended.
    """
    weights = _weights(group, graph, annotation_errors)
    return [
        CallEdge(
            caller=edge.caller,
            callee=edge.callee,
            weight=weights[i] if weights else float(max(replicas.get(edge.caller, 0), 1)),
            routing=routings[edge.callee],
            max_cost=edge.max_network_cost,
        )
        for i, edge in enumerate(graph.edges)
    ]


def _weights(group: AppGroup, graph: DependencyGraph, annotation_errors: list[str]) -> list[float]:
    """[edge] its weight; empty if no source has any."""
    selectors = graph.selectors
    ends = [(selectors[edge.caller], selectors[edge.callee]) for edge in graph.edges]
    bandwidths = {
        pair: float(edge.min_bandwidth_bps)
        for pair, edge in zip(ends, graph.edges, strict=True)
        if edge.min_bandwidth_bps > 0
    }
    annotations = (WEIGHTS_ANNOTATION, MEASURED_WEIGHTS_ANNOTATION)
    sources = [*(read_weights(group, annotation, annotation_errors) for annotation in annotations), bandwidths]
    for source in sources:
        weights = [source.get(pair) for pair in ends]
        positive = [weight for weight in weights if weight]
        if positive:
            return [min(positive) if weight is None else weight for weight in weights]
    return []
