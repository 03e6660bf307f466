"""What `simulate` says of a group on a cluster."""

from __future__ import annotations

import msgspec

from controller.cli.plan_inputs import inputs_of
from controller.cli.simulate import Simulation, simulate
from controller.cli.templates import Controller
from controller.cluster.services import Service
from controller.cluster.volumes import Volumes
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit.wire import Node
from tests.unit.controller.objects import AppGroup, appgroup, service

Z1, Z2, FAR = ("r1", "z1"), ("r1", "z2"), ("r2", "z3")


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


def test_without_costs_nothing_is_violated() -> None:
    answer = simulated("zone")
    assert answer.network_aware.violations == answer.default.violations == 0


def node(name: str, place: tuple[str, str]) -> Node:
    labels = {"topology.kubernetes.io/region": place[0], "topology.kubernetes.io/zone": place[1]}
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return msgspec.convert(
        {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts, "capacity": amounts}}, Node
    )


def annotated(spread: str) -> AppGroup:
    found = appgroup({"WEB": {"CART": {"minBandwidth": "8k"}}, "CART": {}}, name="shop", members=2)
    annotations = {"netaware.io/spread": spread}
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, annotations=annotations))


NODES = (node("n1", Z1), node("n2", Z2), node("n3", FAR))
