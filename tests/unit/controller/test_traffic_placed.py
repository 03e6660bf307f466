"""What a placement of a group costs."""

from __future__ import annotations

import argparse
import io
from collections import Counter
from itertools import combinations
from typing import cast

import msgspec
import pytest
from rich.console import Console

from controller.cli.shared import inputs_of
from controller.cli.simulate import Simulate, Simulation, simulate
from controller.cli.templates import Controller
from controller.cluster.services import Service, ServiceIndex
from controller.cluster.volumes import Volumes
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.placed import crossing_of, month_of, near_of, traffic_of
from controller.traffic.prices import PriceTable, per_month
from kubekit.wire import Node
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION
from tests.unit.controller.objects import WORKLOAD_LABEL, AppGroup, appgroup, group_pod, service

Z1, Z2, FAR = ("r1", "z1"), ("r1", "z2"), ("r2", "z3")
PRICES = PriceTable(currency="EUR", between_zones=0.02, between_regions=0.05)


def group(annotation: str = "") -> AppGroup:
    found = appgroup({"WEB": {"CART": {"minBandwidth": "8k"}}, "CART": {}}, name="shop", members=2)
    return noted(found, MEASURED_WEIGHTS_ANNOTATION, annotation) if annotation else found


def noted(found: AppGroup, key: str, value: str) -> AppGroup:
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, annotations={key: value}))


def test_measured_traffic_counts_before_min_bandwidth_and_nonsense_does_not() -> None:
    assert traffic_of(group()).rates == {("WEB", "CART"): 1000.0}
    assert not traffic_of(group()).measured
    measured = traffic_of(group('{"WEB": {"CART": 5.0, "X": -1}}'))
    assert (measured.rates, measured.measured) == ({("WEB", "CART"): 5.0}, True)
    assert not traffic_of(group("no JSON")).measured
    assert not traffic_of(group('{"WEB": {"CART": 1e20}}')).measured, "no plan goes by a weight beyond the greatest"


def test_a_group_costs_what_its_callers_pay_towards_every_replica_alike() -> None:
    traffic = traffic_of(group())
    placed = {"WEB": Counter({Z1: 1}), "CART": Counter({Z1: 2, Z2: 1, FAR: 1})}
    assert month_of(traffic, placed, PRICES) == pytest.approx(per_month(250, 0.02) + per_month(250, 0.05))
    assert month_of(traffic, {"WEB": Counter({Z1: 1})}, PRICES) == 0
    assert crossing_of(traffic, placed) == pytest.approx(500)


def test_a_service_that_keeps_calls_near_saves_what_crosses_and_a_caller_without_a_near_replica_goes_anywhere() -> None:
    traffic = msgspec.structs.replace(traffic_of(group()), near=frozenset({"CART"}))
    both = {"WEB": Counter({Z1: 1, Z2: 1}), "CART": Counter({Z1: 1, Z2: 1})}
    assert crossing_of(traffic, both) == 0
    assert crossing_of(traffic_of(group()), both) == pytest.approx(500)
    assert month_of(traffic, {**both, "WEB": Counter({Z1: 1, FAR: 1})}, PRICES) == pytest.approx(per_month(500, 0.05))


@pytest.mark.parametrize("last", ["shop", "more"])
def test_of_pods_in_several_namespaces_the_service_that_keeps_least_near_tells_where_money_goes(last: str) -> None:
    def services(elsewhere: str) -> ServiceIndex:
        ours, selector = service("cart", {WORKLOAD_LABEL: "CART"}, "PreferSameZone"), {WORKLOAD_LABEL: "CART"}
        return ServiceIndex.among([ours, service("cart", selector, elsewhere, namespace="more")])

    pods = [group_pod("CART", "n1", of="shop"), group_pod("CART", "n2", of="shop", namespace="more")]
    pods.sort(key=lambda each: each.metadata.namespace == last)
    assert near_of(pods, services("")) == frozenset()
    assert near_of(pods, services("PreferSameNode")) == {"CART"}


def test_two_replicas_in_two_zones_and_any_of_them_answering_leave_half_of_all_calls_between_zones() -> None:
    """Whatever is planned: callers in zones by shares a, replicas by shares b; the sum of a*b is at most 1/2 where all are 0 or 1/2."""
    zones = (Z1, Z2, ("r1", "z4"))
    pairs = [Counter(pair) for pair in combinations(zones, 2)]
    least = min(crossing_of(traffic_of(group()), {"WEB": a, "CART": b}) for a in pairs for b in pairs)
    assert least == pytest.approx(1000.0 / 2)
    near = msgspec.structs.replace(traffic_of(group()), near=frozenset({"CART"}))
    assert min(crossing_of(near, {"WEB": a, "CART": b}) for a in pairs for b in pairs) == 0


def simulated(spread: str, *services: Service) -> Simulation:
    """Two of each on three nodes, without costs."""
    snapshot = ClusterSnapshot(now_s=0, nodes=NODES, services=services)
    template = {"metadata": {"labels": {"app": "cart"}}}
    made = msgspec.convert({"spec": {"replicas": 2, "template": template}}, Controller)
    return simulate(inputs_of(snapshot, (), Volumes()), annotated(spread), {"WEB": made, "CART": made})


def test_a_simulation_follows_the_groups_annotations_and_the_services() -> None:
    packed = simulated("none").network_aware.zones
    assert len({zone for zones in packed.values() for zone in zones}) == 1
    zones = simulated("zone", service("cart", {"app": "cart"}, "PreferClose")).network_aware.zones
    # Each caller has a replica in its own zone: nothing else keeps calls near.
    assert sorted(zones["WEB"]) == sorted(zones["CART"])
    assert len(set(zones["CART"])) == 2


def test_a_simulations_table_finds_a_dependency_violated_where_its_sums_do() -> None:
    answer = simulated("zone")
    assert [row.network_aware_verdict for row in answer.dependencies] == ["unknown"]
    assert answer.network_aware.violations == answer.default.violations == 0
    console = Console(file=io.StringIO(), width=200)
    console.print(Simulate().show(answer, argparse.Namespace(), 200))
    assert "✗" not in cast("io.StringIO", console.file).getvalue()


def node(name: str, place: tuple[str, str]) -> Node:
    labels = {"topology.kubernetes.io/region": place[0], "topology.kubernetes.io/zone": place[1]}
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts, "capacity": amounts}}, Node
    )


def annotated(spread: str) -> AppGroup:
    return noted(group(), "netaware.io/spread", spread)


NODES = (node("n1", Z1), node("n2", Z2), node("n3", FAR))
