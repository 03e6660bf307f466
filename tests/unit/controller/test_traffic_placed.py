"""What a placement of a group costs."""

from __future__ import annotations

import argparse
import io
from collections import Counter
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
from controller.traffic.placed import GroupTraffic, crossing_of, month_of, near_of
from controller.traffic.prices import PriceTable, per_month
from kubekit.wire import Node
from tests.unit.controller.objects import WORKLOAD_LABEL, AppGroup, appgroup, group_pod, service

Z1, Z2, FAR = ("r1", "z1"), ("r1", "z2"), ("r2", "z3")
PRICES = PriceTable(currency="EUR", between_zones=0.02, between_regions=0.05)


TRAFFIC = GroupTraffic({("WEB", "CART"): 1000.0})
KEPT_NEAR = GroupTraffic(TRAFFIC.rates, near=frozenset({"CART"}))
BOTH = {"WEB": Counter({Z1: 1, Z2: 1}), "CART": Counter({Z1: 1, Z2: 1})}


@pytest.mark.parametrize(
    ("traffic", "placed", "crossing", "month"),
    [
        # Every replica alike.
        (TRAFFIC, {"WEB": Counter({Z1: 1}), "CART": Counter({Z1: 2, Z2: 1, FAR: 1})}, 500, 250 * 0.02 + 250 * 0.05),
        (TRAFFIC, {"WEB": Counter({Z1: 1})}, 0, 0),
        (TRAFFIC, BOTH, 500, 500 * 0.02),
        (KEPT_NEAR, BOTH, 0, 0),
        # A caller without a near replica goes anywhere.
        (KEPT_NEAR, {**BOTH, "WEB": Counter({Z1: 1, FAR: 1})}, 500, 500 * 0.05),
    ],
)
def test_a_group_costs_what_its_callers_pay_towards_the_replicas_that_answer(
    traffic: GroupTraffic, placed: dict[str, Counter[tuple[str, str]]], crossing: float, month: float
) -> None:
    assert crossing_of(traffic, placed) == pytest.approx(crossing)
    assert month_of(traffic, placed, PRICES) == pytest.approx(per_month(month, 1.0))


@pytest.mark.parametrize("last", ["shop", "more"])
def test_of_pods_in_several_namespaces_the_service_that_keeps_least_near_tells_where_money_goes(last: str) -> None:
    def services(elsewhere: str) -> ServiceIndex:
        ours, selector = service("cart", {WORKLOAD_LABEL: "CART"}, "PreferSameZone"), {WORKLOAD_LABEL: "CART"}
        return ServiceIndex.among([ours, service("cart", selector, elsewhere, namespace="more")])

    pods = [group_pod("CART", "n1", of="shop"), group_pod("CART", "n2", of="shop", namespace="more")]
    pods.sort(key=lambda each: each.metadata.namespace == last)
    assert near_of(pods, services("")) == frozenset()
    assert near_of(pods, services("PreferSameNode")) == {"CART"}


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
    found = appgroup({"WEB": {"CART": {"minBandwidth": "8k"}}, "CART": {}}, name="shop", members=2)
    meta = msgspec.structs.replace(found.metadata, annotations={"netaware.io/spread": spread})
    return msgspec.structs.replace(found, metadata=meta)


NODES = (node("n1", Z1), node("n2", Z2), node("n3", FAR))
