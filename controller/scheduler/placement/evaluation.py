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
        on_host: share of the calls that stay on their host.
        in_zone: share of the calls that stay in their zone.
        hottest: load of the callee's busiest replica over its fair share.
        answered: both sides have replicas.
    """

    latency: float = 0.0
    violations: int = 0
    on_host: float = 0.0
    in_zone: float = 0.0
    hottest: float = 1.0
    answered: bool = False


class Evaluation(msgspec.Struct, frozen=True):
    """A placement.

    Attributes:
        edges: in the problem's order.
        unplaced: replicas without a host.
        latency: expected, of a call, over all dependencies by their weights.
        violations: sum over dependencies.
        on_host: share of the traffic that stays on its host.
        in_zone: share of the traffic that stays in its zone.
        hottest: mean over the traffic.
        together: workloads of several replicas that are wholly in one zone.
    """

    edges: tuple[EdgeEvaluation, ...]
    unplaced: int
    latency: float
    violations: int
    on_host: float
    in_zone: float
    hottest: float
    together: tuple[int, ...]


def evaluate(problem: Problem, at: Ints) -> Evaluation:
    """Judge a placement.

    Args:
        problem: what was asked.
        at: [replica] host or -1.
    """
    hosts_of = count_hosts(problem, at)
    edges = tuple(evaluate_edge(problem, edge, hosts_of[edge.caller], hosts_of[edge.callee]) for edge in problem.edges)
    weights = np.array(
        [edge.weight if found.answered else 0.0 for edge, found in zip(problem.edges, edges, strict=True)]
    )
    total = float(weights.sum())

    def mean(name: str, empty: float) -> float:
        values = [getattr(found, name) for found in edges]
        return float(weights @ np.array(values, np.float64)) / total if total else empty

    zones = [Counter(int(problem.zone_of[h]) for h, n in hosts.items() for _ in range(n)) for hosts in hosts_of]
    return Evaluation(
        edges=edges,
        unplaced=int((at < 0).sum()),
        latency=mean("latency", 0.0),
        violations=sum(found.violations for found in edges),
        on_host=mean("on_host", 1.0),
        in_zone=mean("in_zone", 1.0),
        hottest=mean("hottest", 1.0),
        together=tuple(w for w, found in enumerate(zones) if len(found) == 1 and found.total() > 1),
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
        on_host=float(kept.sum() + close @ of_zone + any_ @ of_all) / everybody,
        in_zone=float(kept.sum() + close.sum() + any_ @ own / replicas) / everybody,
        hottest=float((load[there > 0] / there[there > 0]).max()) * replicas / everybody,
        answered=True,
    )
