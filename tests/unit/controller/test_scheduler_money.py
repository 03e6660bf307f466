"""Plans with the objectives money and both, compared with every placement, whose cost is computed without the planner's code."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping

import pytest

from controller.cluster.costs import Location
from controller.scheduler.placement.planner import Plan
from controller.traffic.prices import PriceTable
from tests.unit.controller import groups

ZONES = range(3)
REPLICAS = (1, 2, 1)
EDGES = ((0, 1), (1, 2), (0, 2))
IN_ZONE_MS = 0.1
ONE_AND_MORE = [0, *(pytest.param(seed, marks=pytest.mark.solver) for seed in range(1, 12))]


class PairPrices(PriceTable, frozen=True):
    """Prices by (caller's zone, callee's zone)."""

    pairs: Mapping[tuple[str, str], float] = {}

    def price_per_gb(self, origin: Location, destination: Location) -> float:
        return self.pairs.get((origin.zone, destination.zone), 0.0)


class Case:
    """A cluster with a random cost (milliseconds) and price for each pair of zones, and a group that one zone cannot hold."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        pairs = [(a, b) for a in ZONES for b in ZONES if a != b]
        self.ms = {pair: rng.randint(1, 60) for pair in pairs}
        self.price = {pair: rng.choice((0.0, 0.01, 0.02, 0.05, 0.09)) for pair in pairs}
        self.weight = {edge: float(rng.randint(1, 1000)) for edge in EDGES}
        self.prices = PairPrices(pairs={(f"z{a}", f"z{b}"): price for (a, b), price in self.price.items()})

    def plan(self, objective: str, prices: PriceTable | None) -> Plan:
        costs = tuple(tuple(self.ms.get((a, b), 0) for b in ZONES) for a in ZONES)
        case = groups.GroupCase(REPLICAS, tuple((a, b, 10_000) for a, b in EDGES), costs, (2, 2, 2))
        weights: dict[str, dict[str, float]] = {}
        for (a, b), weight in self.weight.items():
            weights.setdefault(f"w{a}", {})[f"w{b}"] = weight
        group = groups.make_group(case, objective=objective, spread="none", measured_weights=json.dumps(weights))
        return groups.plan_case(case, group=group, prices=prices)

    def values(self, zones: Mapping[int, list[int]]) -> tuple[float, float]:
        """Mean price and mean milliseconds of a placement, by bytes; a caller calls every replica equally often."""
        money = time = 0.0
        for (a, b), weight in self.weight.items():
            pairs = [(x, y) for x in zones[a] for y in zones[b]]
            money += weight * sum(self.price.get(pair, 0.0) for pair in pairs) / len(pairs)
            time += weight * sum(self.ms.get(pair, IN_ZONE_MS) for pair in pairs) / len(pairs)
        return money, time

    def all_values(self) -> list[tuple[float, float]]:
        """The values of every placement with at most two pods per zone."""
        placements = (p for p in itertools.product(ZONES, repeat=4) if max(map(p.count, ZONES)) <= 2)
        return [self.values({0: [a], 1: [b, c], 2: [d]}) for a, b, c, d in placements]

    def planned_values(self, objective: str) -> tuple[float, float]:
        plan = self.plan(objective, self.prices)
        assert plan.annotation_errors == ()
        assert plan.unplaced == ()
        zones: dict[int, list[int]] = {}
        for key, target in plan.targets.items():
            zones.setdefault(int(key.removeprefix("default/w")[0]), []).append(int(target.zone[1:]))
        return self.values(zones)


@pytest.mark.parametrize("seed", ONE_AND_MORE)
def test_money_is_the_fastest_of_the_cheapest_and_both_weighs_cost_like_time(seed: int) -> None:
    case = Case(seed)
    values, scale = case.all_values(), max(case.ms.values()) / max(case.price.values())
    cheapest = min(money for money, _ in values)
    fastest = min(time for money, time in values if money <= cheapest + 1e-9)
    money, time = case.planned_values("money")
    assert money == pytest.approx(cheapest, abs=1e-9)
    # On one host a call is faster than between two hosts of its zone, which here is the same.
    assert time == pytest.approx(fastest, rel=0.02)
    money, time = case.planned_values("both")
    assert money * scale + time == pytest.approx(min(money * scale + time for money, time in values), rel=0.02)


def test_time_is_the_objective_without_prices_or_with_equal_prices() -> None:
    case = Case(1)
    plan = case.plan("money", None)
    assert [problem.partition(":")[0] for problem in plan.annotation_errors] == ["objective money"]
    by_time = case.plan("time", None)
    assert plan.targets == by_time.targets
    assert case.plan("both", PriceTable()).targets == by_time.targets
    assert case.plan("money", case.prices).latency_us > 0
