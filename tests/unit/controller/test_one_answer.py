"""The scheduler, an AppGroup's status, the bandwidth account and what people see answer the same question alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.caches import Caches
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostIndex, Location
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.cluster.status_writing import Capabilities
from controller.cluster.zones import draw_map
from controller.groups.config import AppGroupConfig
from controller.groups.reconciler import AppGroupController
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State
from controller.topology.bandwidth import allocated_bps, placed_by_zone
from controller.views.groups import build_groups
from controller.views.network import build_network
from controller.views.snapshot import Snapshot
from kubekit.client import Client
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.wire import Node
from netperf.latencies import LATENCY_ANNOTATION, Latencies, encode_latencies

GROUP, WORKLOAD = "appgroup.diktyo.x-k8s.io", "appgroup.diktyo.x-k8s.io.workload"
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
HOME = "netaware-system"


class Written:
    """In the place of a client: keeps the status that is applied."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    async def apply(self, _resource: object, _name: str, body: dict[str, Any], type_: type[Any], **_: object) -> Any:
        self.status = body["status"]
        return msgspec.convert({"metadata": body["metadata"], "status": body["status"]}, type_)


class HasStatus(Capabilities):
    def __init__(self) -> None: ...

    async def has_status(self, resource: object) -> bool:
        return True


class Silent(EventRecorder):
    def __init__(self) -> None: ...

    def normal(self, *_: object, **__: object) -> None: ...

    def warning(self, *_: object, **__: object) -> None: ...


class World:
    """Plain objects, read by everybody who has an opinion on them."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = objects

    def of(self, kind: str, type_: type[Any]) -> list[Any]:
        return [msgspec.convert(plain, type_) for plain in self.objects if plain["kind"] == kind]

    def scheduler(self) -> State:
        state = State(SchedulerConfig(), HOME)
        for node in self.of("Node", Node):
            state.take_node(node.metadata.key, None, node)
        for pod in self.of("Pod", GroupPod):
            state.take_pod(pod.metadata.key, None, pod)
        for group in self.of("AppGroup", AppGroup):
            state.take_group(group.metadata.key, None, group)
        for topology in self.of("NetworkTopology", NetworkTopology):
            state.take_topology(topology.metadata.key, None, topology)
        return state

    def groups(self, client: Written) -> tuple[AppGroupController, Caches]:
        caches = Caches(cast("Client", client), HOME)
        controller = AppGroupController(
            cast("Client", client),
            caches,
            AppGroupConfig(settle_s=0),
            Silent(),
            CollectorRegistry(),
            namespace=HOME,
            rules=NetworkOverheadArgs(),
            capabilities=HasStatus(),
        )
        _fill(caches.nodes, self.of("Node", Node))
        _fill(caches.topologies, self.of("NetworkTopology", NetworkTopology))
        _fill(caches.app_groups, self.of("AppGroup", AppGroup))
        _fill(caches.pods, map(PodReader().read, self.of("Pod", GroupPod)))
        return controller, caches

    async def status(self, key: str) -> dict[str, Any]:
        client = Written()
        controller, _ = self.groups(client)
        await controller._reconcile(key)
        return client.status

    def allocated_bps(self) -> dict[tuple[str, str], int]:
        places = draw_map(self.of("Node", Node)).places
        membership = Membership.among(self.of("AppGroup", AppGroup), NetworkOverheadArgs().namespaces)
        return allocated_bps(membership, placed_by_zone(self.of("Pod", GroupPod), places))

    def view(self, key: str) -> Any:
        snapshot = Snapshot(
            now_s=0.0,
            home=HOME,
            nodes=tuple(self.of("Node", Node)),
            topologies=tuple(self.of("NetworkTopology", NetworkTopology)),
            groups=tuple(self.of("AppGroup", AppGroup)),
            pods=tuple(self.of("Pod", GroupPod)),
        )
        views = build_groups(snapshot, build_network(snapshot))
        return next(view for view in views if f"{view.namespace}/{view.name}" == key)


def _fill(mirror: Reflector[Any], items: Iterable[Any]) -> None:
    for item in items:
        key = item.key if isinstance(item, PodInfo) else item.metadata.key
        mirror._items[key] = item
        mirror._notify(key, None, item)


def node(name: str, zone: str) -> dict[str, Any]:
    labels = {REGION: "west", ZONE: zone} if zone else {}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def pod(workload: str, on: str, *, namespace: str = "x", phase: str = "Running") -> dict[str, Any]:
    meta = {"name": f"{workload}-{on}", "namespace": namespace, "labels": {GROUP: "g", WORKLOAD: workload}}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": on}, "status": {"phase": phase}}


def group(namespace: str = "x", *, names: str = "", most: int = 5) -> dict[str, Any]:
    """a depends on b; ``names`` is a namespace that its workloads name."""

    def ref(selector: str) -> dict[str, str]:
        return {"kind": "Deployment", "name": selector, "selector": selector, "namespace": names}

    workloads = [
        {"workload": ref("a"), "dependencies": [{"workload": ref("b"), "maxNetworkCost": most, "minBandwidth": "1M"}]},
        {"workload": ref("b")},
    ]
    spec = {"numMembers": 2, "topologySortingAlgorithm": "KahnSort", "workloads": workloads}
    return {"kind": "AppGroup", "metadata": {"name": "g", "namespace": namespace, "uid": namespace}, "spec": spec}


def weight(name: str, cost: int | None) -> dict[str, Any]:
    entries = [] if cost is None else [{"origin": "z1", "costList": [{"destination": "z2", "networkCost": cost}]}]
    return {"name": name, "topologyList": [{"topologyKey": ZONE, "originList": entries}] if entries else []}


def topology(*weights: dict[str, Any], namespace: str = "default", name: str = "nt-default") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    return {"kind": "NetworkTopology", "metadata": meta, "spec": {"weights": list(weights)}}


NODES = (node("n1", "z1"), node("n2", "z2"))
PODS = (pod("a", "n1"), pod("b", "n2"))


def condition(status: dict[str, Any], type_: str) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == type_)


async def test_an_empty_weight_gives_way_to_the_measured_one_everywhere() -> None:
    empty, measured = weight("UserDefined", None), weight("NetperfCosts", 5)
    world = World(*NODES, *PODS, group(most=5), topology(empty, measured))
    state = world.scheduler()
    assert (state.costs("x").weight, state.weigh("x", "g", "a").tally("n1", state.place_of["n1"]).cost) == (
        "NetperfCosts",
        5,
    )
    assert condition(await world.status("x/g"), "CostsMet") == ("True", "AllWithin")
    assert [(edge.verdict, edge.cost) for edge in world.view("x/g").edges] == [("met", 5)]


async def test_a_pod_belongs_to_one_group_though_two_of_its_name_look_into_its_namespace() -> None:
    own, other = group("x"), group("y", names="x")
    world = World(*NODES, *PODS, own, other, topology(weight("NetperfCosts", 5)))
    state = world.scheduler()
    assert (sorted(state.members("x/g")), sorted(state.members("y/g"))) == (["a", "b"], [])
    assert (await world.status("x/g"))["runningWorkloads"] == 2
    assert (await world.status("y/g"))["runningWorkloads"] == 0
    assert (world.view("x/g").running, world.view("y/g").running) == (2, 0)
    assert world.allocated_bps() == {("z1", "z2"): 1_000_000}


async def test_a_pod_wakes_its_own_group_and_not_all_that_have_the_same_name() -> None:
    world = World(node("n1", "z1"), group("x"), group("y"), group("z"), pod("a", "n1"), pod("b", "n1", namespace="y"))
    controller, caches = world.groups(Written())
    await asyncio.sleep(0.01)
    while len(controller._queue):
        controller._queue.done(await controller._queue.take())
    moved = PodReader().read(msgspec.convert(pod("b", "n1", namespace="y", phase="Succeeded"), GroupPod))
    _fill(caches.pods, [moved])
    await asyncio.sleep(0.01)
    assert [await controller._queue.take() for _ in range(len(controller._queue))] == ["y/g"]


async def test_a_group_that_is_deleted_while_its_status_is_made_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Written()
    controller, caches = World(node("n", "z"), group()).groups(client)

    async def delete_meanwhile(*_: object) -> bool:
        gone = caches.app_groups._items.pop("x/g")
        caches.app_groups._notify("x/g", gone, None)
        return True

    monkeypatch.setattr(HasStatus, "has_status", delete_meanwhile)
    await controller._reconcile("x/g")
    assert "x/g" not in caches.app_groups.items


async def test_a_group_in_a_namespace_of_the_configuration_has_the_pods_of_namespaces_without_a_group() -> None:
    world = World(*NODES, *PODS, group("default"), topology(weight("NetperfCosts", 5)))
    assert world.scheduler().members("default/g").keys() >= {"a", "b"}
    assert (await world.status("default/g"))["runningWorkloads"] == 2
    assert world.view("default/g").running == 2


async def test_pods_on_one_node_without_a_zone_are_near_each_other() -> None:
    world = World(
        node("bare", ""), pod("a", "bare"), pod("b", "bare"), group(most=0), topology(weight("NetperfCosts", 5))
    )
    state = world.scheduler()
    assert state.weigh("x", "g", "a").tally("bare", state.place_of["bare"]).passes
    assert condition(await world.status("x/g"), "CostsMet") == ("True", "AllWithin")
    assert [(edge.verdict, edge.cost) for edge in world.view("x/g").edges] == [("met", 0)]


async def test_each_group_is_judged_by_the_topology_of_its_own_namespace() -> None:
    near, far = topology(weight("NetperfCosts", 5)), topology(weight("NetperfCosts", 9), namespace="x")
    world = World(*NODES, *PODS, group(most=5), near, far)
    state = world.scheduler()
    assert state.weigh("x", "g", "a").tally("n1", state.place_of["n1"]).violated == 1
    assert condition(await world.status("x/g"), "CostsMet") == ("False", "CostsExceeded")
    assert [(edge.verdict, edge.cost) for edge in world.view("x/g").edges] == [("violated", 9)]


async def test_a_pair_that_is_listed_twice_has_its_first_cost_everywhere() -> None:
    twice = weight("NetperfCosts", 5)
    twice["topologyList"][0]["originList"][0]["costList"].append({"destination": "z2", "networkCost": 900})
    world = World(*NODES, *PODS, group(most=5), topology(twice))
    state = world.scheduler()
    assert state.weigh("x", "g", "a").tally("n1", state.place_of["n1"]).cost == 5
    assert condition(await world.status("x/g"), "CostsMet") == ("True", "AllWithin")
    assert [(edge.verdict, edge.cost) for edge in world.view("x/g").edges] == [("met", 5)]


def test_latencies_come_along_with_the_measured_costs_alone_and_across_regions() -> None:
    text = encode_latencies(Latencies({("z1", "z2"): 1210}))

    def looked_up(*weights: dict[str, Any], destination: Location) -> float | None:
        plain = topology(*weights)
        plain["metadata"]["annotations"] = {LATENCY_ANNOTATION: text}
        state = World(plain).scheduler()
        return state.costs("x").table.latency_us(Location("west", "z1"), destination)

    near, far = Location("west", "z2"), Location("east", "z2")
    measured = weight("NetperfCosts", 5)
    assert [looked_up(measured, destination=place) for place in (near, far)] == [1210, 1210]
    assert looked_up(measured, destination=Location("west", "")) is None
    assert looked_up(measured, destination=Location("west", "z9")) is None
    assert looked_up(measured, weight("UserDefined", 5), destination=near) is None


def test_new_latencies_reach_the_table_although_no_cost_has_changed() -> None:
    def told(us: int) -> NetworkTopology:
        plain = topology(weight("NetperfCosts", 5))
        plain["metadata"]["annotations"] = {LATENCY_ANNOTATION: encode_latencies(Latencies({("z1", "z2"): us}))}
        made: NetworkTopology = msgspec.convert(plain, NetworkTopology)
        return made

    index, before, after = CostIndex(NetworkOverheadArgs(), HOME), told(1210), told(1800)
    index.take("default/nt-default", None, before)
    assert index.of("x").table.latency_us(Location("", "z1"), Location("", "z2")) == 1210
    assert index.take("default/nt-default", before, after)
    assert index.of("x").table.latency_us(Location("", "z1"), Location("", "z2")) == 1800
