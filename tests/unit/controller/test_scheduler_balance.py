"""A group as it stands: what a zone's loss would take, what would route its calls better, and what is out of balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from controller.cluster.costs import Location
from controller.cluster.pods import GroupPod
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.cluster.services import Service
from controller.scheduler.balance import Advice, PlacedGroup, advise, balanced, placed_group, routed_near
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.placement.survival import Kept, describe, survival_of
from controller.scheduler.state import State
from kubekit.wire import Node
from tests.unit.controller import groups

FAR_MS = 5
CASE = groups.Case((3, 3), ((0, 1, 100),), ((0, 5, 5), (5, 0, 5), (5, 5, 0)), (9, 9, 9))
"""w0 calls w1; zones are 5 ms apart."""
NEAR_US, FAR_US = 100.0, 1000.0 * FAR_MS


def node(name: str, zone: str) -> Node:
    labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r"} if zone else {}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node)


def service(workload: str, field: str = "", **more: Any) -> Service:
    annotations = more.pop("annotations", {})
    spec = {"selector": {"appgroup.diktyo.x-k8s.io.workload": workload}, "trafficDistribution": field, **more}
    meta = {"name": f"svc-{workload}", "namespace": "default", "annotations": annotations}
    return msgspec.convert({"metadata": meta, "spec": spec}, Service)


def group(**annotations: str) -> AppGroup:
    named = {f"netaware.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    made = groups.group_of(CASE)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=named))


def stands(where: Sequence[Sequence[str]], *services: Service, **annotations: str) -> PlacedGroup:
    """Per workload, the nodes of its pods: ``a1`` is a node of zone a, ``-1`` one without a zone."""
    state = State(SchedulerConfig(), "netaware-system")
    state.take_group("default/g", None, group(**annotations))
    origins = [
        {"origin": a, "costList": [{"destination": b, "networkCost": FAR_MS} for b in "abc" if a != b]} for a in "abc"
    ]
    levels = [{"topologyKey": "topology.kubernetes.io/zone", "originList": origins}]
    spec = {"weights": [{"name": "UserDefined", "topologyList": levels}]}
    topology = msgspec.convert(
        {"metadata": {"name": "nt-default", "namespace": "default"}, "spec": spec}, NetworkTopology
    )
    state.take_topology("default/nt-default", None, topology)
    for name in ("a1", "a2", "b1", "b2", "c1", "c2", "-1"):
        state.take_node(name, None, node(name, name[0].strip("-")))
    for found in services:
        state.take_service(found.metadata.key, None, found)
    for workload, nodes in enumerate(where):
        for number, name in enumerate(nodes):
            pod = placed(f"w{workload}-{number}", f"w{workload}", name)
            state.take_pod(pod.metadata.key, None, pod)
    return placed_group(state, "default/g")


def placed(name: str, workload: str, where: str) -> GroupPod:
    pod = groups.waiting_pod(name, workload)
    meta = msgspec.structs.replace(pod.metadata, uid=name)
    return msgspec.structs.replace(
        pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=where, scheduling_gates=None)
    )


def only(found: Sequence[Advice]) -> Advice:
    assert len(found) == 1, found
    return found[0]


EVEN = (("a1", "b1", "c1"), ("a2", "b2", "c2"))


def test_the_loss_of_a_zone_takes_what_is_only_there_and_leaves_the_rest_fewer() -> None:
    locations = {name: Location("r", name[0]) for name in ("a1", "a2", "b1")} | {"odd": Location()}
    members: list[Mapping[str, int]] = [{"a1": 2, "b1": 1}, {"a1": 1, "a2": 1}, {"b1": 1, "odd": 1, "gone": 5}]
    calls = groups.snapshot_of(groups.Case((3, 2, 2), ((0, 1, 9), (1, 2, 9)), ((0,),), (9,))).graph.edges
    found = survival_of(["web", "cart", "db"], members, locations, calls)
    a, b = found.losses
    assert (a.zone, a.stops, a.cut_off, dict(a.keeps)) == ("a", ("cart",), ("web",), {"web": Kept(1, 3)})
    assert (b.zone, b.stops, b.cut_off, dict(b.keeps)) == ("b", (), (), {"web": Kept(2, 3), "db": Kept(1, 2)})
    assert describe(a) == "cart would stop; web would go on without what it calls; web 1 of 3 would be left"
    assert describe(b) == "nothing would stop; web 2 of 3, db 1 of 2 would be left"


@pytest.mark.parametrize(
    ("field", "more"),
    [("", {}), ("Nearby", {}), ("PreferSameZone", {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}})],
    ids=["none", "unknown", "hints-win"],
)
def test_a_service_that_sends_anywhere_is_advised_to_keep_calls_in_the_zone(field: str, more: dict[str, Any]) -> None:
    advice = only(advise(stands(EVEN, service("w1", field, **more))))
    assert (advice.service, advice.workload, advice.advised) == ("default/svc-w1", "w1", "PreferSameZone")
    assert advice.reason == ("HintsIgnored" if more else "NoTrafficDistribution")
    assert advice.latency_us == pytest.approx((NEAR_US + 2 * FAR_US) / 3, abs=0.1)
    assert advice.advised_us == NEAR_US
    assert "with PreferSameZone a call would take 100 µs instead of 3400 µs" in advice.text


def test_the_same_node_is_advised_only_where_that_gains_as_much_again() -> None:
    beside = (("a1", "b1", "c1"), ("a1", "b1", "c1"))
    assert only(advise(stands(beside, service("w1")))).advised == "PreferSameZone"
    pairs = (("a1", "a2"), ("a1", "a2"))
    assert only(advise(stands(pairs, service("w1")))).advised == "PreferSameNode"


@pytest.mark.parametrize(
    "services",
    [
        (),
        (service("w1", "PreferSameZone"),),
        (service("w1", clusterIP="None"),),
        (service("w1", internalTrafficPolicy="Local"),),
    ],
    ids=["no-service", "near-already", "headless", "local"],
)
def test_there_is_nothing_to_advise_where_the_field_would_change_nothing(services: tuple[Service, ...]) -> None:
    assert advise(stands(EVEN, *services)) == []


def test_nearness_that_would_heat_a_replica_is_not_advised() -> None:
    """All callers in one zone, one of three replicas there: it would take all calls."""
    assert advise(stands((("a1", "a1", "a2"), ("a2", "b2", "c2")), service("w1"))) == []


def test_a_hot_replica_is_told_with_what_cooling_it_costs() -> None:
    found = stands((("a1", "a1", "a2"), ("a2", "b2", "c2")), service("w1", "PreferSameZone"))
    advice = only(advise(found))
    assert (advice.reason, advice.advised, advice.hottest) == ("HotReplica", "", 3.0)
    assert advice.advised_us > advice.latency_us
    state = balanced(found)
    assert (state.status, state.reason) == ("False", "HotReplica")
    assert "takes 3.0 times its fair share" in state.message


def test_a_replica_on_a_node_without_a_zone_makes_every_hint_useless() -> None:
    found = stands((("a1", "b1"), ("a2", "b2", "-1")), service("w1", "PreferSameZone"))
    assert only(advise(found)).reason == "HintsIgnored"
    assert advise(stands((("a1", "b1"), ("a2", "b2", "-1")), service("w1"))) == [], "the field would do nothing"


def test_the_conditions_say_it_and_that_all_is_well() -> None:
    well = stands(EVEN, service("w1", "PreferSameZone"), spread="zone")
    assert [(c.status, c.reason) for c in (routed_near(well), balanced(well))] == [
        ("True", "AsNearAsCanBe"),
        ("True", "Balanced"),
    ]
    nothing = stands((("a1",), ()), service("w1"))
    assert routed_near(nothing).status == "Unknown"
    assert balanced(stands(((), ()))).status == "Unknown"
    near = routed_near(stands(EVEN, service("w1")))
    assert (near.status, near.reason) == ("False", "NoTrafficDistribution")


def test_a_workload_that_is_to_survive_a_zone_and_is_in_one_is_named() -> None:
    state = balanced(stands((("a1", "b1"), ("c1", "c2")), spread="zone"))
    assert (state.status, state.reason) == ("False", "OneZone")
    assert state.message == "all 2 replicas of w1 are in c, and it is to survive a zone"
    assert balanced(stands((("a1", "b1"), ("c1", "c2")), spread="soft")).status == "True"
    assert balanced(stands((("a1", "b1"), ("c1",)), spread="zone")).status == "True", "one replica cannot be spread"
