"""Evaluates a placement: time that calls spend on the network, violations, and who answers calls.

Exact and independent of the search, which works on the same rules by increments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from controller.cluster.services import Endpoints, Routing
from controller.scheduler.placement.problem import CallEdge, Ints, Problem


class EdgeEvaluation(msgspec.Struct, frozen=True):
    """One dependency.

    Attributes:
        latency: expected, of a call; in the unit of `Table.latency`: microseconds, or network cost if nothing was measured. 0 when one side has no replica.
        violations: pairs of a caller and a replica that may answer it which break the limit.
        max_load_ratio: load of the callee's busiest replica over its fair share.
        has_replicas: both sides have some.
    """

    latency: float = 0.0
    violations: int = 0
    max_load_ratio: float = 1.0
    has_replicas: bool = False


class Evaluation(msgspec.Struct, frozen=True):
    """The value of a placement.

    Attributes:
        latency: expected, of a call, over all dependencies by their weights.
        violations: sum over dependencies.
        max_load_ratio: load of the busiest replica over its fair share, the mean over the traffic.
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
    hosts_of = count_hosts(problem, at)
    edges = problem.edges
    evaluations = [evaluate_edge(problem, edge, hosts_of[edge.caller], hosts_of[edge.callee]) for edge in edges]
    weighted = [(edge.weight, found) for edge, found in zip(edges, evaluations, strict=True) if found.has_replicas]
    traffic = sum(weight for weight, _ in weighted)
    return Evaluation(
        latency=sum(weight * found.latency for weight, found in weighted) / traffic if traffic else 0.0,
        violations=sum(found.violations for found in evaluations),
        max_load_ratio=sum(weight * found.max_load_ratio for weight, found in weighted) / traffic if traffic else 1.0,
        traffic=traffic,
    )


def count_hosts(problem: Problem, at: Ints) -> list[Counter[int]]:
    """Per workload, host -> its replicas there, those that stay included."""
    found = [Counter(hosts) for hosts in problem.fixed]
    for class_, host in zip(problem.class_of.tolist(), at.tolist(), strict=True):
        if host >= 0:
            found[int(problem.workload_of[class_])][host] += 1
    return found


def endpoints_of(problem: Problem, routing: Routing, called: Iterable[int]) -> Endpoints[int, int]:
    """The replicas on these hosts, behind a Service with that routing."""
    return Endpoints(routing, {host: int(problem.zone_of[host]) for host in called}, problem.zoned.__getitem__)


def evaluate_edge(
    problem: Problem, edge: CallEdge, callers: Mapping[int, int], called: Mapping[int, int]
) -> EdgeEvaluation:
    """One dependency, by who answers.

    Args:
        problem: for zones and tables.
        edge: the dependency.
        callers: host -> callers there.
        called: host -> replicas there that may be called.
    """
    if not callers or not called:
        return EdgeEvaluation()
    table, hosts = problem.tables[edge.table], np.array(sorted({*callers, *called}), np.int64)
    calling = np.array([callers.get(host, 0) for host in hosts.tolist()], np.float64)
    replicas_at = np.array([called.get(host, 0) for host in hosts.tolist()], np.float64)
    zone, zones = problem.zone_of[hosts], len(problem.zoned)
    zone_replicas = np.bincount(zone, replicas_at, zones)
    replicas_in_zone, replicas = zone_replicas[zone], float(replicas_at.sum())
    # Arrays are by host. Callers by who answers them: their host, their zone, or any.
    endpoints = endpoints_of(problem, edge.routing, called)
    answer = np.array([endpoints.routing_from(*pair) for pair in zip(hosts.tolist(), zone.tolist(), strict=True)])
    callers_same_node, callers_same_zone, callers_anywhere = (
        calling * (answer == routing) for routing in (Routing.NODE, Routing.ZONE, Routing.ANY)
    )
    zone_latency = table.latency[zone, zone]
    local_gain = table.host_latency - zone_latency
    of_zone = np.divide(replicas_at, replicas_in_zone, out=np.zeros_like(replicas_at), where=replicas_in_zone > 0)
    of_all = replicas_at / replicas
    anywhere = table.latency[zone] @ zone_replicas / replicas + of_all * local_gain
    latency = (
        callers_same_node.sum() * table.host_latency
        + callers_same_zone @ (zone_latency + of_zone * local_gain)
        + callers_anywhere @ anywhere
    )
    violating_replicas = table.violates_limit[zone] @ zone_replicas - replicas_at * table.violates_limit[zone, zone]
    violations = (
        callers_same_zone @ ((replicas_in_zone - replicas_at) * table.violates_limit[zone, zone])
        + callers_anywhere @ violating_replicas
    )
    load = (
        callers_same_node
        + np.bincount(zone, callers_same_zone, zones)[zone] * of_zone
        + callers_anywhere.sum() * of_all
    )
    all_callers = float(calling.sum())
    return EdgeEvaluation(
        latency=float(latency) / all_callers,
        violations=round(float(violations)),
        max_load_ratio=float((load[replicas_at > 0] / replicas_at[replicas_at > 0]).max()) * replicas / all_callers,
        has_replicas=True,
    )
