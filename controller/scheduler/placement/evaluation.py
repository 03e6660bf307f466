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


class Evaluation(msgspec.Struct, frozen=True):
    """The value of a placement for one dependency or several, as means by their weights.

    Attributes:
        latency: mean latency of a call, in the unit of `CallCostTable.latency`; 0 if no dependency has replicas at both ends.
        violations: pairs of a caller and a replica that may answer it, beyond the limit; the sum over the dependencies.
        max_load_ratio: mean load of the callees' busiest replicas over their fair share.
        traffic: weight of the dependencies that have replicas at both ends.
    """

    latency: float = 0.0
    violations: int = 0
    max_load_ratio: float = 1.0
    traffic: float = 0.0


def evaluate(problem: Problem, at: Ints) -> Evaluation:
    """Evaluate a placement.

    Args:
        problem: the group and the cluster.
        at: [replica] host or -1.
    """
    return evaluate_edges(problem, problem.edges, replicas_by_host(problem, at))


def evaluate_edges(problem: Problem, edges: Sequence[CallEdge], by_host: Sequence[Mapping[int, int]]) -> Evaluation:
    """Evaluate a placement for some dependencies.

    Args:
        problem: the group and the cluster.
        edges: the dependencies.
        by_host: [workload] host -> its replicas there.
    """
    values = [_evaluate_edge(problem, edge, by_host[edge.caller], by_host[edge.callee]) for edge in edges]
    traffic, violations = sum(value.traffic for value in values), sum(value.violations for value in values)
    if not traffic:
        return Evaluation(violations=violations)
    latency = sum(value.traffic * value.latency for value in values) / traffic
    return Evaluation(
        latency, violations, sum(value.traffic * value.max_load_ratio for value in values) / traffic, traffic
    )


def replicas_by_host(problem: Problem, at: Ints) -> list[Counter[int]]:
    """[workload] host -> its replicas there, those that stay included."""
    by_host = [Counter(hosts) for hosts in problem.fixed_hosts]
    for class_, host in zip(problem.class_of.tolist(), at.tolist(), strict=True):
        if host >= 0:
            by_host[int(problem.workload_of[class_])][host] += 1
    return by_host


def endpoints_of(problem: Problem, routing: Routing, called: Iterable[int]) -> Endpoints[int, int]:
    """The endpoints of a Service with this routing whose replicas are on these hosts."""
    return Endpoints(routing, {host: int(problem.zone_of[host]) for host in called}, problem.has_zone_label.__getitem__)


def _evaluate_edge(
    problem: Problem, edge: CallEdge, callers: Mapping[int, int], called: Mapping[int, int]
) -> Evaluation:
    """Evaluate one dependency, by the number of callers and of replicas of the callee on each host."""
    if not callers or not called:
        return Evaluation()
    table, hosts = problem.tables[edge.table], np.array(sorted({*callers, *called}), np.int64)
    calling = np.array([callers.get(host, 0) for host in hosts.tolist()], np.float64)
    replicas_at = np.array([called.get(host, 0) for host in hosts.tolist()], np.float64)
    zone, zones = problem.zone_of[hosts], len(problem.has_zone_label)
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
    return Evaluation(
        latency=float(latency) / all_callers,
        violations=round(float(violations)),
        max_load_ratio=float((load[replicas_at > 0] / replicas_at[replicas_at > 0]).max()) * replicas / all_callers,
        traffic=edge.weight,
    )
