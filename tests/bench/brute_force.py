"""The best placement of a group's case by brute force, which plans are compared with."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from tests.unit.controller.groups import GroupCase

VIOLATION_COST = 10**6
"""Cost of a violation in the search of the optimum, so that fewer violations are always cheaper."""


def price_placement(case: GroupCase, counts_by_workload: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Violations and cost of a placement, given as pods per zone of each workload."""
    violations = cost = 0
    for caller, callee, limit in case.edges:
        for caller_zone, caller_count in enumerate(counts_by_workload[caller]):
            for callee_zone, callee_count in enumerate(counts_by_workload[callee]):
                pair_count, pair_cost = caller_count * callee_count, case.cost[caller_zone][callee_zone]
                cost += pair_count * pair_cost
                violations += pair_count * (pair_cost > limit)
    return violations, cost


def find_optimum(case: GroupCase, upper_bound: tuple[int, int]) -> tuple[int, int]:
    """Fewest violations, then the lowest cost, over all placements that fit; ``upper_bound`` is that of one of them."""
    zones = range(len(case.slots))
    # By number of replicas: all ways to spread them, as pods per zone.
    spreads = [
        [
            tuple(Counter(chosen)[zone] for zone in zones)
            for chosen in itertools.combinations_with_replacement(zones, replicas)
        ]
        for replicas in range(4)
    ]
    order = _search_order(case)
    neighbours_by_step = [_priced_neighbours(case, workload, order[:step]) for step, workload in enumerate(order)]
    best = upper_bound[0] * VIOLATION_COST + upper_bound[1]
    spread_by_workload: dict[int, tuple[int, ...]] = {}

    def place_from(step: int, free_slots: tuple[int, ...], placed_cost: int) -> None:
        """Try all spreads of the workloads from a step of the order on, the cheapest first."""
        nonlocal best
        if step == len(order):
            best = min(best, placed_cost)
            return
        pod_cost_by_zone = [0] * len(zones)
        for neighbour, prices in neighbours_by_step[step]:
            for zone, neighbour_zone in itertools.product(zones, zones):
                pod_cost_by_zone[zone] += prices[zone][neighbour_zone] * spread_by_workload[neighbour][neighbour_zone]
        options = [
            (placed_cost + sum(count * cost for count, cost in zip(spread, pod_cost_by_zone, strict=True)), spread)
            for spread in spreads[case.replicas[order[step]]]
            if all(count <= free for count, free in zip(spread, free_slots, strict=True))
        ]
        for cost, spread in sorted(options):
            if cost >= best:
                break
            spread_by_workload[order[step]] = spread
            remaining_slots = tuple(free - count for free, count in zip(free_slots, spread, strict=True))
            place_from(step + 1, remaining_slots, cost)

    place_from(0, case.slots, 0)
    return divmod(best, VIOLATION_COST)


def _priced_neighbours(case: GroupCase, workload: int, placed: Sequence[int]) -> list[tuple[int, list[list[int]]]]:
    """The placed workloads that share an edge with a workload, each with prices of the edge by its zone and theirs."""
    neighbours = []
    for caller, callee, limit in case.edges:
        prices = [[cost + VIOLATION_COST * (cost > limit) for cost in row] for row in case.cost]
        if caller == workload and callee in placed:
            neighbours.append((callee, prices))
        if callee == workload and caller in placed:
            neighbours.append((caller, [list(column) for column in zip(*prices, strict=True)]))
    return neighbours


def _search_order(case: GroupCase) -> list[int]:
    """Workloads, each with as many neighbours before it as possible, so that bounds are effective early."""
    order: list[int] = []
    for _ in case.replicas:
        remaining = [workload for workload in range(len(case.replicas)) if workload not in order]
        # The first has no neighbour before it: it is the workload with the most edges.
        edges = [edge for edge in case.edges if not order or edge[0] in order or edge[1] in order]
        order.append(max(remaining, key=lambda w: (sum(w in edge[:2] for edge in edges), -w)))
    return order
