"""Evaluates a placement: latency of calls, violated limits, and load of replicas.

Exact and independent of the compiled search, which updates its costs by increments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from controller.cluster.services import Endpoints, Routing
from controller.scheduler.placement.problem import CallEdge, Ints, Problem


class EdgeEvaluation(msgspec.Struct, frozen=True):
    """The value of a placement for one dependency.

    Attributes:
        latency: expected latency of a call, in the unit of `Table.latency`; 0 if one side has no replica.
        violations: pairs of a caller and a replica that may answer it, beyond the limit.
        max_load_ratio: load of the callee's busiest replica over its fair share.
        has_replicas: whether both sides have replicas.
    """

    latency: float = 0.0
    violations: int = 0
    max_load_ratio: float = 1.0
    has_replicas: bool = False


class Evaluation(msgspec.Struct, frozen=True):
    """The value of a placement, with means by the dependencies' weights.

    Attributes:
        latency: mean latency of a call.
        violations: sum over the dependencies.
        max_load_ratio: mean load of the callees' busiest replicas over their fair share.
        traffic: weight of the dependencies that have replicas at both ends.
    """

    latency: float
    violations: int
    max_load_ratio: float
    traffic: float


def evaluate(problem: Problem, at: Ints) -> Evaluation:
    """Evaluate a placement.

    Args:
        problem: the group and the cluster.
        at: [replica] host or -1.
    """
    return evaluate_edges(problem, problem.edges, count_hosts(problem, at))


def evaluate_edges(problem: Problem, edges: Sequence[CallEdge], by_host: Sequence[Mapping[int, int]]) -> Evaluation:
    """Evaluate a placement for some dependencies.

    Args:
        problem: the group and the cluster.
        edges: the dependencies.
        by_host: [workload] host -> its replicas there.
    """
    evaluations = [evaluate_edge(problem, edge, by_host[edge.caller], by_host[edge.callee]) for edge in edges]
    weighted = [(edge.weight, value) for edge, value in zip(edges, evaluations, strict=True) if value.has_replicas]
    traffic = sum(weight for weight, _ in weighted)
    return Evaluation(
        latency=sum(weight * value.latency for weight, value in weighted) / traffic if traffic else 0.0,
        violations=sum(value.violations for value in evaluations),
        max_load_ratio=sum(weight * value.max_load_ratio for weight, value in weighted) / traffic if traffic else 1.0,
        traffic=traffic,
    )


def count_hosts(problem: Problem, at: Ints) -> list[Counter[int]]:
    """[workload] host -> its replicas there, those that stay included."""
    by_host = [Counter(hosts) for hosts in problem.fixed]
    for class_, host in zip(problem.class_of.tolist(), at.tolist(), strict=True):
        if host >= 0:
            by_host[int(problem.workload_of[class_])][host] += 1
    return by_host


def endpoints_of(problem: Problem, routing: Routing, called: Iterable[int]) -> Endpoints[int, int]:
    """The endpoints of a Service with this routing whose replicas are on these hosts."""
    return Endpoints(routing, {host: int(problem.zone_of[host]) for host in called}, problem.zoned.__getitem__)


def evaluate_edge(
    problem: Problem, edge: CallEdge, callers: Mapping[int, int], called: Mapping[int, int]
) -> EdgeEvaluation:
    """Evaluate a placement for one dependency.

    Args:
        problem: the zones and tables.
        edge: the dependency.
        callers: host -> callers there.
        called: host -> replicas of the callee there.
    """
    if not callers or not called:
        return EdgeEvaluation()
    table, hosts = problem.tables[edge.table], np.array(sorted({*callers, *called}), np.int64)
    calling = np.array([callers.get(host, 0) for host in hosts.tolist()], np.float64)
    replicas_at = np.array([called.get(host, 0) for host in hosts.tolist()], np.float64)
    zone, zones = problem.zone_of[hosts], len(problem.zoned)
    zone_replicas = np.bincount(zone, replicas_at, zones)
    replicas_in_zone, replicas = zone_replicas[zone], float(replicas_at.sum())
    # All arrays are by host.
    endpoints = endpoints_of(problem, edge.routing, called)
    routings = np.array([endpoints.routing_from(*pair) for pair in zip(hosts.tolist(), zone.tolist(), strict=True)])
    callers_same_node, callers_same_zone, callers_anywhere = (
        calling * (routings == routing) for routing in (Routing.NODE, Routing.ZONE, Routing.ANY)
    )
    zone_latency = table.latency[zone, zone]
    host_gain = table.host_latency - zone_latency
    share_of_zone = np.divide(replicas_at, replicas_in_zone, out=np.zeros_like(replicas_at), where=replicas_in_zone > 0)
    share_of_all = replicas_at / replicas
    mean_latency = table.latency[zone] @ zone_replicas / replicas + share_of_all * host_gain
    latency = (
        callers_same_node.sum() * table.host_latency
        + callers_same_zone @ (zone_latency + share_of_zone * host_gain)
        + callers_anywhere @ mean_latency
    )
    violating_replicas = table.violates_limit[zone] @ zone_replicas - replicas_at * table.violates_limit[zone, zone]
    violations = (
        callers_same_zone @ ((replicas_in_zone - replicas_at) * table.violates_limit[zone, zone])
        + callers_anywhere @ violating_replicas
    )
    load = (
        callers_same_node
        + np.bincount(zone, callers_same_zone, zones)[zone] * share_of_zone
        + callers_anywhere.sum() * share_of_all
    )
    all_callers = float(calling.sum())
    return EdgeEvaluation(
        latency=float(latency) / all_callers,
        violations=round(float(violations)),
        max_load_ratio=float((load[replicas_at > 0] / replicas_at[replicas_at > 0]).max()) * replicas / all_callers,
        has_replicas=True,
    )
