"""Evaluates a placement: time that calls spend on the network, violations, and who answers calls.

Exact and independent of the search, which works on the same rules by increments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from controller.cluster.services import Routing, has_zone_hints
from controller.scheduler.placement.problem import CallEdge, Ints, Problem


class EdgeEvaluation(msgspec.Struct, frozen=True):
    """One dependency.

    Attributes:
        latency: expected, of a call; microseconds where the table has them. 0 when one side has no replica.
        violations: pairs of a caller and a replica that may answer it which break the limit.
        hottest: load of the callee's busiest replica over its fair share.
        answered: both sides have replicas.
    """

    latency: float = 0.0
    violations: int = 0
    hottest: float = 1.0
    answered: bool = False


class Evaluation(msgspec.Struct, frozen=True):
    """A placement.

    Attributes:
        latency: expected, of a call, over all dependencies by their weights.
        violations: sum over dependencies.
        hottest: load of the busiest replica over its fair share, the mean over the traffic.
        traffic: weight of the dependencies that have replicas at both ends.
    """

    latency: float
    violations: int
    hottest: float
    traffic: float


def evaluate(problem: Problem, at: Ints) -> Evaluation:
    """Evaluate a placement.

    Args:
        problem: what was asked.
        at: [replica] host or -1.
    """
    hosts_of = count_hosts(problem, at)
    found = [evaluate_edge(problem, edge, hosts_of[edge.caller], hosts_of[edge.callee]) for edge in problem.edges]
    weighed = [(edge.weight, each) for edge, each in zip(problem.edges, found, strict=True) if each.answered]
    traffic = sum(weight for weight, _ in weighed)
    return Evaluation(
        latency=sum(weight * each.latency for weight, each in weighed) / traffic if traffic else 0.0,
        violations=sum(each.violations for each in found),
        hottest=sum(weight * each.hottest for weight, each in weighed) / traffic if traffic else 1.0,
        traffic=traffic,
    )


def count_hosts(problem: Problem, at: Ints) -> list[Counter[int]]:
    """Per workload, host -> its replicas there, those that stay included."""
    found = [Counter(hosts) for hosts in problem.fixed]
    for class_, host in zip(problem.class_of.tolist(), at.tolist(), strict=True):
        if host >= 0:
            found[int(problem.workload_of[class_])][host] += 1
    return found


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
    table, ends = problem.tables[edge.table], np.array(sorted({*callers, *called}), np.int64)
    calling = np.array([callers.get(host, 0) for host in ends.tolist()], np.float64)
    there = np.array([called.get(host, 0) for host in ends.tolist()], np.float64)
    zone, zones = problem.zone_of[ends], len(problem.zoned)
    in_zone = np.bincount(zone, there, zones)
    own, replicas = in_zone[zone], float(there.sum())
    # Callers by who answers them: their host, their zone, or any.
    here = (there > 0) & (edge.routing is Routing.NODE)
    hinted = has_zone_hints(edge.routing, problem.zoned[zone[there > 0]])
    near = ~here & (own > 0) & problem.zoned[zone] & hinted
    kept, close, any_ = calling * here, calling * near, calling * ~(here | near)
    inside = table.latency[zone, zone]
    saved = table.local - inside
    of_zone = np.divide(there, own, out=np.zeros_like(there), where=own > 0)
    of_all = there / replicas
    anywhere = table.latency[zone] @ in_zone / replicas + of_all * saved
    latency = kept.sum() * table.local + close @ (inside + of_zone * saved) + any_ @ anywhere
    over = table.violates_limit[zone] @ in_zone - there * table.violates_limit[zone, zone]
    violations = close @ ((own - there) * table.violates_limit[zone, zone]) + any_ @ over
    load = kept + np.bincount(zone, close, zones)[zone] * of_zone + any_.sum() * of_all
    everybody = float(calling.sum())
    return EdgeEvaluation(
        latency=float(latency) / everybody,
        violations=round(float(violations)),
        hottest=float((load[there > 0] / there[there > 0]).max()) * replicas / everybody,
        answered=True,
    )
