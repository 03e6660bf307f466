"""Evaluates a placement: cost of calls, violated limits, load of replicas, and traffic.

The compiled search has its own implementation, which updates costs by increments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from controller.cluster.services import Endpoints, Routing
from controller.scheduler.placement.problem import CallEdge, Ints, Problem


class Evaluation(msgspec.Struct, frozen=True):
    """The value of a placement for one or more dependencies.

    Attributes:
        cost_per_call: mean cost of a call, in the unit of `CallCostTable`; 0 if no dependency has replicas at both ends.
        violations: number of pairs of a caller and a replica that may answer it, beyond the limit.
        max_load_ratio: load of the callee's busiest replica over its fair share; of several dependencies, the mean by weight.
        traffic: weight of the dependencies that have replicas at both ends.
    """

    cost_per_call: float = 0.0
    violations: int = 0
    max_load_ratio: float = 1.0
    traffic: float = 0.0


def evaluate(problem: Problem, host_of: Ints) -> Evaluation:
    """Evaluate a placement for all dependencies; ``host_of`` is [replica] host or -1."""
    return evaluate_edges(problem, problem.edges, count_replicas(problem, host_of))


def evaluate_edges(
    problem: Problem, edges: Sequence[CallEdge], replica_counts: Sequence[Mapping[int, int]]
) -> Evaluation:
    """Evaluate a placement for some dependencies; ``replica_counts`` is [workload] host -> number of its replicas there."""
    values = [_evaluate_edge(problem, edge, replica_counts[edge.caller], replica_counts[edge.callee]) for edge in edges]
    traffic, violations = sum(value.traffic for value in values), sum(value.violations for value in values)
    if not traffic:
        return Evaluation(violations=violations)
    cost_per_call = sum(value.traffic * value.cost_per_call for value in values) / traffic
    max_load_ratio = sum(value.traffic * value.max_load_ratio for value in values) / traffic
    return Evaluation(cost_per_call, violations, max_load_ratio, traffic)


def count_replicas(problem: Problem, host_of: Ints) -> list[Counter[int]]:
    """[workload] host -> number of its replicas there, fixed ones included."""
    counts = [Counter(hosts) for hosts in problem.fixed_hosts]
    for class_, host in zip(problem.class_of.tolist(), host_of.tolist(), strict=True):
        if host >= 0:
            counts[int(problem.workload_of[class_])][host] += 1
    return counts


def endpoints_of(problem: Problem, routing: Routing, hosts: Iterable[int]) -> Endpoints[int, int]:
    """The endpoints of a Service with this routing whose replicas are on these hosts."""
    return Endpoints(routing, {host: int(problem.zone_of[host]) for host in hosts}, problem.has_zone_label.__getitem__)


def _evaluate_edge(
    problem: Problem, edge: CallEdge, caller_counts: Mapping[int, int], replica_counts: Mapping[int, int]
) -> Evaluation:
    """Evaluate one dependency, by the number of callers and of replicas of the callee on each host."""
    if not caller_counts or not replica_counts:
        return Evaluation()
    # All arrays are by host, unless their names end in `by_zone`.
    table, hosts = problem.tables[edge.table], np.array(sorted({*caller_counts, *replica_counts}), np.int64)
    callers = np.array([caller_counts.get(host, 0) for host in hosts.tolist()], np.float64)
    replicas = np.array([replica_counts.get(host, 0) for host in hosts.tolist()], np.float64)
    zone, zones = problem.zone_of[hosts], len(problem.has_zone_label)
    replicas_by_zone = np.bincount(zone, replicas, zones)
    zone_replicas, all_replicas = replicas_by_zone[zone], float(replicas.sum())
    endpoints = endpoints_of(problem, edge.routing, replica_counts)
    routings = np.array([endpoints.routing_from(*pair) for pair in zip(hosts.tolist(), zone.tolist(), strict=True)])
    to_node, to_zone, to_all = (callers * (routings == r) for r in (Routing.NODE, Routing.ZONE, Routing.ANY))
    zone_cost = table.cost_between_hosts[zone, zone]
    host_gain = table.cost_within_host - zone_cost
    share_of_zone = np.divide(replicas, zone_replicas, out=np.zeros_like(replicas), where=zone_replicas > 0)
    share_of_all = replicas / all_replicas
    cost_to_all = table.cost_between_hosts[zone] @ replicas_by_zone / all_replicas + share_of_all * host_gain
    total_cost = (
        to_node.sum() * table.cost_within_host
        + to_zone @ (zone_cost + share_of_zone * host_gain)
        + to_all @ cost_to_all
    )
    violates_in_zone = table.violates_limit[zone, zone]
    violating_replicas = table.violates_limit[zone] @ replicas_by_zone - replicas * violates_in_zone
    violations = to_zone @ ((zone_replicas - replicas) * violates_in_zone) + to_all @ violating_replicas
    load = to_node + np.bincount(zone, to_zone, zones)[zone] * share_of_zone + to_all.sum() * share_of_all
    all_callers, has_replica = float(callers.sum()), replicas > 0
    return Evaluation(
        cost_per_call=float(total_cost) / all_callers,
        violations=round(float(violations)),
        max_load_ratio=float((load[has_replica] / replicas[has_replica]).max()) * all_replicas / all_callers,
        traffic=edge.weight,
    )
