"""Plans that weigh money: against every placement there is, priced by nothing that the planner uses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import msgspec
import pytest

from controller.cluster.costs import CostTable
from controller.cluster.graph import build_graph
from controller.cluster.hosts import Host, host_of
from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup, WeightInfo
from controller.scheduler.planner import GroupSnapshot, Plan, plan_group
from controller.traffic.prices import PriceTable
from kubekit.wire import Node
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION, REGION_LABEL, ZONE_LABEL

ZONES = {"z1": "r1", "z2": "r1", "z3": "r1"}
REPLICAS = {"A": 1, "B": 2, "C": 1}
EDGES = (("A", "B"), ("B", "C"), ("A", "C"))
IN_ZONE_MS = 0.1


class Case:
    """A cluster whose ways have costs (milliseconds) and prices of their own, and a group that one zone cannot hold."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        pairs = [(a, b) for a in ZONES for b in ZONES if a != b]
        self.ms = {pair: rng.randint(1, 60) for pair in pairs}
        self.price = {pair: rng.choice((0.0, 0.01, 0.02, 0.05, 0.09)) for pair in pairs}
        self.weight = {edge: float(rng.randint(1, 1000)) for edge in EDGES}
        self.hosts = {f"n{i}": zone for i, zone in enumerate(ZONES)}
        self.prices = PriceTable(pairs={f"{a}>{b}": price for (a, b), price in self.price.items()})

    def nodes(self) -> dict[str, Host]:
        amounts = {"cpu": "2", "memory": "8Gi", "pods": "10"}
        found = {}
        for name, zone in self.hosts.items():
            labels = {REGION_LABEL: ZONES[zone], ZONE_LABEL: zone}
            body = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}}
            found[name] = host_of(msgspec.convert(body, Node))
        return found

    def costs(self) -> CostTable:
        def level(key: str, pairs: Mapping[tuple[str, str], int]) -> dict[str, object]:
            origins = [
                {
                    "origin": a,
                    "costList": [{"destination": b, "networkCost": c} for (o, b), c in pairs.items() if o == a],
                }
                for a in dict.fromkeys(a for a, _ in pairs)
            ]
            return {"topologyKey": key, "originList": origins}

        weight = {"name": "UserDefined", "topologyList": [level(ZONE_LABEL, self.ms)]}
        return CostTable(msgspec.convert(weight, WeightInfo))

    def plan(self, objective: str, prices: PriceTable | None) -> Plan:
        def reference(name: str) -> dict[str, str]:
            return {"kind": "Deployment", "name": name.lower(), "selector": name}

        workloads = [
            {
                "workload": reference(name),
                "dependencies": [{"workload": reference(b), "maxNetworkCost": 10_000} for a, b in EDGES if a == name],
            }
            for name in REPLICAS
        ]
        weights = {a: {b: w for (c, b), w in self.weight.items() if c == a} for a in REPLICAS}
        annotations = {
            "netaware.io/objective": objective,
            "netaware.io/spread": "none",
            MEASURED_WEIGHTS_ANNOTATION: msgspec.json.encode(weights).decode(),
        }
        body = {
            "metadata": {"name": "g", "namespace": "shop", "annotations": annotations},
            "spec": {"numMembers": 4, "topologySortingAlgorithm": "KahnSort", "workloads": workloads},
        }
        group = msgspec.convert(body, AppGroup)
        pods = [
            msgspec.convert(
                {
                    "metadata": {
                        "name": f"{name.lower()}-{i}",
                        "namespace": "shop",
                        "labels": {APPGROUP_LABEL: "g", WORKLOAD_LABEL: name},
                    },
                    "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]},
                },
                GroupPod,
            )
            for name, count in REPLICAS.items()
            for i in range(count)
        ]
        return plan_group(
            GroupSnapshot(
                graph=build_graph(group.spec),
                pods=pods,
                replicas=REPLICAS,
                costs=self.costs(),
                hosts=self.nodes(),
                used={},
                group=group,
                prices=prices,
            )
        )

    def values(self, zones: Mapping[str, list[str]]) -> tuple[float, float]:
        """Money and milliseconds of a placement, means over all bytes; a replica calls every replica alike."""
        money = time = 0.0
        for (a, b), weight in self.weight.items():
            ways = [(x, y) for x in zones[a] for y in zones[b]]
            money += weight * sum(self.price.get(way, 0.0) for way in ways) / len(ways)
            time += weight * sum(self.ms.get(way, IN_ZONE_MS) for way in ways) / len(ways)
        return money, time

    def all_values(self) -> list[tuple[float, float]]:
        """Of every placement that has room: two pods a zone."""
        names = [name for name, count in REPLICAS.items() for _ in range(count)]
        found = []
        for placed in itertools.product(ZONES, repeat=len(names)):
            if max(placed.count(zone) for zone in ZONES) <= 2:
                zones: dict[str, list[str]] = {}
                for name, zone in zip(names, placed, strict=True):
                    zones.setdefault(name, []).append(zone)
                found.append(self.values(zones))
        return found

    def planned(self, objective: str) -> tuple[float, float]:
        plan = self.plan(objective, self.prices)
        assert plan.problems == ()
        assert plan.unplaced == ()
        zones: dict[str, list[str]] = {}
        for key, target in plan.targets.items():
            zones.setdefault(key.partition("/")[2][0].upper(), []).append(target.zone)
        return self.values(zones)


@pytest.mark.parametrize("seed", range(12))
def test_the_cheapest_placement_is_found_and_of_equally_cheap_ones_the_fastest(seed: int) -> None:
    case = Case(seed)
    cheapest = min(money for money, _ in case.all_values())
    fastest = min(time for money, time in case.all_values() if money <= cheapest + 1e-9)
    money, time = case.planned("money")
    assert money == pytest.approx(cheapest, abs=1e-9)
    # On one host a call is faster than between two hosts of its zone, which here is the same.
    assert time == pytest.approx(fastest, rel=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_both_weighs_the_dearest_way_like_the_slowest(seed: int) -> None:
    case = Case(seed)
    dearest, slowest = max(case.price.values()), max(case.ms.values())

    def together(value: tuple[float, float]) -> float:
        money, time = value
        return money * slowest / dearest + time

    best = min(map(together, case.all_values()))
    assert together(case.planned("both")) == pytest.approx(best, rel=0.02)


def test_time_and_money_are_not_the_same_question() -> None:
    apart = 0
    for seed in range(12):
        case = Case(seed)
        apart += case.planned("money") != case.planned("time")
    assert apart >= 6


def test_without_prices_or_where_every_way_costs_the_same_calls_are_judged_by_time() -> None:
    case = Case(1)
    plan = case.plan("money", None)
    assert [problem.partition(":")[0] for problem in plan.problems] == ["objective money"]
    by_time = case.plan("time", None)
    assert plan.targets == by_time.targets
    assert case.plan("both", PriceTable()).targets == by_time.targets
    assert case.plan("money", case.prices).latency_us > 0
