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
from tests.unit.controller.groups import GroupCase, make_group, plan_case

ZONES = range(3)
REPLICAS = (1, 2, 1)
EDGES = ((0, 1), (1, 2), (0, 2))
IN_ZONE_MS = 0.1
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.solver) for seed in range(1, 12))]


class PairPrices(PriceTable, frozen=True):
    """Prices by (caller's zone, callee's zone)."""

    pairs: Mapping[tuple[str, str], float] = {}

    def price_per_gb(self, origin: Location, destination: Location) -> float:
        return self.pairs.get((origin.zone, destination.zone), 0.0)


class PricedCase:
    """A cluster with a random time (milliseconds) and price for each pair of zones, and a group that one zone cannot hold."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        pairs = list(itertools.permutations(ZONES, 2))
        self.ms_by_zones = {pair: rng.randint(1, 60) for pair in pairs}
        self.price_by_zones = {pair: rng.choice((0.0, 0.01, 0.02, 0.05, 0.09)) for pair in pairs}
        self.weight_by_edge = {edge: float(rng.randint(1, 1000)) for edge in EDGES}
        prices = {(f"z{origin}", f"z{end}"): price for (origin, end), price in self.price_by_zones.items()}
        self.prices = PairPrices(pairs=prices)

    def plan(self, objective: str, prices: PriceTable | None) -> Plan:
        cost = tuple(tuple(self.ms_by_zones.get((origin, end), 0) for end in ZONES) for origin in ZONES)
        edges = tuple((caller, callee, 10_000) for caller, callee in EDGES)
        case = GroupCase(REPLICAS, edges, cost, slots=(2, 2, 2))
        weights: dict[str, dict[str, float]] = {}
        for (caller, callee), weight in self.weight_by_edge.items():
            weights.setdefault(f"w{caller}", {})[f"w{callee}"] = weight
        group = make_group(case, objective=objective, spread="none", measured_weights=json.dumps(weights))
        return plan_case(case, group=group, prices=prices)

    def price_and_ms_of(self, zones_by_workload: Mapping[int, list[int]]) -> tuple[float, float]:
        """Mean price and mean milliseconds of a placement, by bytes; a caller calls every replica equally often."""
        price = ms = 0.0
        for (caller, callee), weight in self.weight_by_edge.items():
            pairs = list(itertools.product(zones_by_workload[caller], zones_by_workload[callee]))
            price += weight * sum(self.price_by_zones.get(pair, 0.0) for pair in pairs) / len(pairs)
            ms += weight * sum(self.ms_by_zones.get(pair, IN_ZONE_MS) for pair in pairs) / len(pairs)
        return price, ms

    def list_values(self) -> list[tuple[float, float]]:
        """Price and milliseconds of every placement with at most two pods per zone."""
        placements = itertools.product(ZONES, repeat=sum(REPLICAS))
        fitting = (zones for zones in placements if max(map(zones.count, ZONES)) <= 2)
        return [self.price_and_ms_of({0: [zones[0]], 1: [*zones[1:3]], 2: [zones[3]]}) for zones in fitting]

    def plan_values(self, objective: str) -> tuple[float, float]:
        """Price and milliseconds of the plan."""
        plan = self.plan(objective, self.prices)
        assert plan.annotation_errors == ()
        assert plan.unplaced == ()
        zones_by_workload: dict[int, list[int]] = {}
        for key, target in plan.targets.items():
            workload = int(key.removeprefix("default/w")[0])
            zones_by_workload.setdefault(workload, []).append(int(target.zone[1:]))
        return self.price_and_ms_of(zones_by_workload)


@pytest.mark.parametrize("seed", SEEDS)
def test_money_is_the_fastest_of_the_cheapest_placements(seed: int) -> None:
    case = PricedCase(seed)
    values = case.list_values()
    min_price = min(price for price, _ in values)
    price, ms = case.plan_values("money")
    assert price == pytest.approx(min_price, abs=1e-9)
    # On one host a call is faster than between two hosts of its zone, which here is the same.
    assert ms == pytest.approx(min(ms for price, ms in values if price <= min_price + 1e-9), rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_weighs_the_highest_price_like_the_longest_time(seed: int) -> None:
    case = PricedCase(seed)
    ms_per_price = max(case.ms_by_zones.values()) / max(case.price_by_zones.values())
    price, ms = case.plan_values("both")
    best_sum = min(price * ms_per_price + ms for price, ms in case.list_values())
    assert price * ms_per_price + ms == pytest.approx(best_sum, rel=0.02)


def test_without_prices_money_is_an_error_and_time_is_the_objective() -> None:
    case = PricedCase(1)
    plan = case.plan("money", None)
    assert [error.partition(":")[0] for error in plan.annotation_errors] == ["objective money"]
    assert plan.targets == case.plan("time", None).targets


def test_with_equal_prices_time_decides() -> None:
    case = PricedCase(1)
    assert case.plan("both", PriceTable()).targets == case.plan("time", None).targets
