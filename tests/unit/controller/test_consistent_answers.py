"""The scheduler, an AppGroup's status, the bandwidth account, commands and the page give the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.appgroups import reconciler
from controller.appgroups.config import AppGroupConfig
from controller.appgroups.reconciler import AppGroupController, GroupIndexes
from controller.cli.commands import load_command
from controller.cli.offline import _read_inputs, plan_offline
from controller.cli.offline_objects import ClusterFile
from controller.cli.parser import parse
from controller.cli.plan_inputs import inputs_of
from controller.cli.session import Session
from controller.cli.shared import pod_diagnosis, state_of
from controller.cluster.caches import Caches
from controller.cluster.costs import Location
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GATE, GroupPod
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.cluster.services import Service
from controller.cluster.status_writing import retry_after
from controller.cluster.volumes import Volumes
from controller.cluster.zones import build_zone_map
from controller.diagnosis.facts import Facts
from controller.diagnosis.reading import read_facts
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot, ControlPlaneStatus
from controller.diagnosis.zones import build_network
from controller.page.snapshots import SnapshotReader
from controller.scheduler.config import Parity, SchedulerConfig
from controller.scheduler.explain import explain
from controller.scheduler.placement.planner import plan_group
from controller.scheduler.state import State
from controller.topology.bandwidth import compute_allocations
from controller.topology.config import TopologyConfig
from controller.topology.reconciler import TopologyController
from controller.views.groups import build_groups
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.responses import RawPage
from kubekit.wire import Node, Object, Resource, format_time
from netperf.latencies import LATENCY_ANNOTATION, Latencies, encode_latencies
from netperf.policy import CostPolicy
from tests.support.bodies import REGION, ZONE, appgroup_spec, weight_body
from tests.unit.controller.scheduling import state_with

GROUP, WORKLOAD = "appgroup.diktyo.x-k8s.io", "appgroup.diktyo.x-k8s.io.workload"
HOME = "netaware-system"
DEFAULT = SchedulerConfig()


class StatusRecorder:
    """Stands in for a client: keeps the status that is applied."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    async def apply(self, _resource: object, _name: str, body: dict[str, Any], type_: type[Any], **_: object) -> Any:
        self.status = body["status"]
        return msgspec.convert({"metadata": body["metadata"], "status": body["status"]}, type_)

    async def get(self, *_: object, **__: object) -> Any:
        raise ApiError(403, "Forbidden", "the control plane's status is not readable here")

    list = get


class SilentRecorder(EventRecorder):
    def __init__(self) -> None: ...

    def normal(self, *_: object, **__: object) -> None: ...

    def warning(self, *_: object, **__: object) -> None: ...


class FakeClient:
    """Stands in for a client of an API server that has these objects, and a controller with a configuration; None for no controller."""

    def __init__(
        self, objects: Iterable[dict[str, Any]], configuration: str | None, *, may_list_all: bool = True
    ) -> None:
        self._objects, self._may = [*objects], may_list_all
        if configuration is not None:
            volume = {"name": "config", "configMap": {"name": "settings"}}
            spec = {"template": {"spec": {"volumes": [volume]}}}
            data = {"config.yaml": configuration}
            self._objects += [
                {"kind": "Deployment", "metadata": {"name": "netaware-controller", "namespace": HOME}, "spec": spec},
                {"kind": "ConfigMap", "metadata": {"name": "settings", "namespace": HOME}, "data": data},
            ]

    async def list_pages(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str = "", **_: object
    ) -> AsyncIterator[RawPage]:
        if namespace is None and not self._may:
            raise ApiError(403, "Forbidden", "not yours")
        found = [plain for plain in self._objects if plain["kind"] == resource.kind]
        mine = [plain for plain in found if namespace in {None, plain["metadata"].get("namespace")}]
        labelled = [plain for plain in mine if not label_selector or plain["metadata"].get("labels")]
        yield RawPage([msgspec.Raw(msgspec.json.encode(plain)) for plain in labelled])

    async def list(self, resource: Resource, type_: type[Any], **_: object) -> list[Any]:
        return [msgspec.convert(plain, type_) for plain in self._objects if plain["kind"] == resource.kind]

    async def get(self, resource: Resource, name: str, type_: type[Any], **_: object) -> Any:
        for plain in self._objects:
            if (plain["kind"], plain["metadata"]["name"]) == (resource.kind, name):
                return msgspec.convert(plain, type_)
        raise ApiError(404, "NotFound", "there is none")


def session_of(configuration: str | None, *objects: dict[str, Any], namespace: str = "x", **more: bool) -> Session:
    """A command's session with a `FakeClient`."""
    return Session(cast("Client", FakeClient(objects, configuration, **more)), None, namespace, HOME)


HEAD = "apiVersion: netaware.io/v1alpha1\nkind: ControllerConfiguration\n"


class Components:
    """The components' answers about the same plain objects."""

    def __init__(self, *objects: dict[str, Any], config: SchedulerConfig = DEFAULT) -> None:
        self.objects, self.config = objects, config

    def decode(self, kind: str, type_: type[Any]) -> list[Any]:
        return [msgspec.convert(plain, type_) for plain in self.objects if plain["kind"] == kind]

    def scheduler_state(self) -> State:
        kinds = {
            "Namespace": Object,
            "Node": Node,
            "Pod": GroupPod,
            "AppGroup": AppGroup,
            "NetworkTopology": NetworkTopology,
            "Service": Service,
        }
        return state_with(self.config, *(item for kind, type_ in kinds.items() for item in self.decode(kind, type_)))

    def appgroup_controller(self, client: StatusRecorder) -> tuple[AppGroupController, Caches]:
        caches = Caches(cast("Client", client), HOME)
        state = self.state_of_stores(caches)
        controller = AppGroupController(
            cast("Client", client),
            caches,
            AppGroupConfig(),
            SilentRecorder(),
            CollectorRegistry(),
            indexes=GroupIndexes(state.membership, state.cost_index, None if self.config.is_parity else state.services),
            pods_of=lambda key: [p for p in caches.group_pods if state.group_of(p.metadata.namespace, p.group) == key],
        )
        self.fill(caches)
        return controller, caches

    def state_of_stores(self, caches: Caches) -> State:
        """The scheduler's state, which these stores keep up to date."""
        state = State(self.config, HOME)
        state.subscribe_to(
            caches.nodes,
            caches.group_pods,
            caches.app_groups,
            caches.topologies,
            namespaces=caches.namespaces,
            services=caches.services,
        )
        return state

    def fill(self, caches: Caches) -> None:
        _fill(caches.namespaces, self.decode("Namespace", Object))
        _fill(caches.nodes, self.decode("Node", Node))
        _fill(caches.topologies, self.decode("NetworkTopology", NetworkTopology))
        _fill(caches.app_groups, self.decode("AppGroup", AppGroup))
        _fill(caches.services, self.decode("Service", Service))
        _fill(caches.pods, map(PodReader().read, self.decode("Pod", GroupPod)))

    async def status(self, key: str) -> dict[str, Any]:
        client = StatusRecorder()
        controller, _ = self.appgroup_controller(client)
        await controller._reconcile(key)
        return client.status

    def allocated_bps(self) -> dict[tuple[str, str], int]:
        locations = build_zone_map(self.decode("Node", Node)).locations
        return compute_allocations(self.account()._membership, self.decode("Pod", GroupPod), locations)

    def account(self) -> TopologyController:
        """Who accounts for bandwidth."""
        client = cast("Client", StatusRecorder())
        caches = Caches(client, HOME)
        controller = TopologyController(
            client,
            caches,
            TopologyConfig(),
            SilentRecorder(),
            CollectorRegistry(),
            membership=self.state_of_stores(caches).membership,
        )
        self.fill(caches)
        return controller

    async def page_snapshot(self) -> ClusterSnapshot:
        client = cast("Client", StatusRecorder())
        caches = Caches(client, HOME)
        self.fill(caches)
        snapshots = SnapshotReader(
            caches,
            client,
            HOME,
            policy=CostPolicy(),
            scheduler=self.config,
        )
        return await snapshots.read(0.0)

    async def group_view(self, key: str) -> Any:
        snapshot = await self.page_snapshot()
        views = build_groups(snapshot, build_network(snapshot))
        return next(view for view in views if f"{view.namespace}/{view.name}" == key)

    async def command(self, *argv: str, may_list_all: bool = True) -> tuple[Any, Session]:
        """A command's answer and session, with these objects and the controller's configuration."""
        options = parse(argv)
        text = f"{HEAD}scheduler: {{parity: {self.config.parity}}}"
        session = session_of(text, *self.objects, namespace=options.namespace or "default", may_list_all=may_list_all)
        return await load_command(argv[0]).run(session, options), session

    async def members(self, key: str) -> dict[str, int]:
        """Component -> its number of placed pods of a group."""
        state, snapshot, pods = self.scheduler_state(), await self.page_snapshot(), self.decode("Pod", GroupPod)
        namespace, name = key.split("/")
        graphs, _ = await self.command("graph", "-n", namespace, name)
        status, _ = await self.command("status", "-n", namespace)
        (group_view,) = status.groups
        explain_state = state_of(snapshot)
        account = self.account()._membership
        found = {
            "scheduler": sum(state.group_of(pod.metadata.namespace, pod.group) == key for pod in pods),
            "status": (await self.status(key))["runningWorkloads"],
            "bandwidth": sum(account.group_of(pod.metadata.namespace, pod.group) == key for pod in pods),
            "page": (await self.group_view(key)).running,
            "graph": graphs[0].running,
            "status command": group_view.running,
            "explain": sum(nodes.total() for nodes in explain_state.members(key).values()),
            "rules": sum(nodes.total() for nodes in state.members(key).values()),
        }
        if self.config == DEFAULT:  # files have no configuration
            file = ClusterFile(nodes=self.decode("Node", Node), pods=pods, groups=self.decode("AppGroup", AppGroup))
            file.namespaces.extend(self.decode("Namespace", Object))
            _, pods_of, _ = _read_inputs(file, PodReader())
            found["offline"] = sum(pod.is_bound for pod in pods_of.get(key, ()))
        return found


def _fill(store: Reflector[Any], items: Iterable[Any]) -> None:
    for item in items:
        key = item.key if isinstance(item, PodInfo) else item.metadata.key
        store._set(key, item)


def node(name: str, zone: str) -> dict[str, Any]:
    labels = {REGION: "west", ZONE: zone} if zone else {}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def pod(workload: str, on: str, *, namespace: str = "x", phase: str = "Running") -> dict[str, Any]:
    meta = {"name": f"{workload}-{on}", "namespace": namespace, "labels": {GROUP: "g", WORKLOAD: workload}}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": on}, "status": {"phase": phase}}


def group(namespace: str = "x", *, names: str = "", most: int = 5, third: str = "c") -> dict[str, Any]:
    """a depends on b, ``third`` on nobody; ``names`` is a namespace that its workloads name."""
    calls: dict[str, dict[str, Any]] = {"a": {"b": {"maxNetworkCost": most, "minBandwidth": "1M"}}, "b": {}, third: {}}
    spec = appgroup_spec(calls, members=2, namespaces=dict.fromkeys(calls, names))
    return {"kind": "AppGroup", "metadata": {"name": "g", "namespace": namespace, "uid": namespace}, "spec": spec}


def weight(name: str, cost: int | None) -> dict[str, Any]:
    return weight_body({("z1", "z2"): cost}, name=name) if cost is not None else {"name": name, "topologyList": []}


def topology(*weights: dict[str, Any], namespace: str = "default", name: str = "nt-default") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    return {"kind": "NetworkTopology", "metadata": meta, "spec": {"weights": list(weights)}}


NODES = (node("n1", "z1"), node("n2", "z2"))
PODS = (pod("a", "n1"), pod("b", "n2"))


def condition(status: dict[str, Any], type_: str) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == type_)


TWICE = weight("NetperfCosts", 5)
TWICE["topologyList"][1]["originList"][0]["costList"].append({"destination": "z2", "networkCost": 900})


@pytest.mark.parametrize(
    ("topologies", "cost"),
    [
        ((topology(weight("UserDefined", None), weight("NetperfCosts", 5)),), 5),
        ((topology(weight("NetperfCosts", 5)), topology(weight("NetperfCosts", 9), namespace="x")), 9),
        ((topology(TWICE),), 5),
    ],
    ids=["an empty weight is skipped", "the topology of the group's namespace", "the first of two entries"],
)
async def test_scheduler_status_and_views_use_the_same_cost(topologies: tuple[dict[str, Any], ...], cost: int) -> None:
    components = Components(*NODES, *PODS, group(most=5), *topologies)
    state = components.scheduler_state()
    score = state.score("x", "g", "a").node_score("n1", state.location_index["n1"])
    assert (score.cost, score.violated) == (cost, int(cost > 5))
    expected = ("False", "CostsExceeded") if cost > 5 else ("True", "AllWithin")
    assert condition(await components.status("x/g"), "CostsMet") == expected
    assert [edge.cost for edge in (await components.group_view("x/g")).edges] == [cost]


@pytest.mark.parametrize(
    ("parity", "unlabelled", "met"),
    [("none", False, True), ("none", True, False), ("upstream", False, False)],
    ids=["by zone", "one replica without a zone turns zone hints off", "parity"],
)
async def test_a_dependency_is_judged_by_the_replica_that_answers_and_in_parity_by_all(
    parity: Parity, *, unlabelled: bool, met: bool
) -> None:
    spec = {"selector": {WORKLOAD: "b"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    near = {"kind": "Service", "metadata": {"name": "b", "namespace": "default"}, "spec": spec}
    placed = [("a", "n1"), ("b", "n1"), ("b", "n2"), *([("b", "bare")] if unlabelled else [])]
    pods = [pod(workload, on, namespace="default") for workload, on in placed]
    components = Components(
        *(*NODES, node("bare", ""), *pods, near, group("default", most=3), topology(weight("UserDefined", 5))),
        config=SchedulerConfig(parity=parity),
    )
    state, snapshot = components.scheduler_state(), await components.page_snapshot()
    (shown,), _ = await components.command("graph", "-n", "default")
    (page,) = (await components.group_view("default/g")).edges
    plain = components.decode("Pod", GroupPod)
    inputs = inputs_of(snapshot, map(PodReader().read, plain), Volumes())
    explained = explain(state, plain[0])
    found = {
        "rules": state.score("default", "g", "a").node_score("n1", state.location_index["n1"]).violated == 0,
        "CostsMet": condition(await components.status("default/g"), "CostsMet") == ("True", "AllWithin"),
        "page": page.state == "met",
        "graph": shown.edges[0].state == "met",
        "explain": not any(line.violated for line in explained.candidates if line.chosen),
        "plan": plan_group(inputs.snapshot("default/g", plain)).violations == 0,
    }
    if components.config == DEFAULT:  # files have no configuration
        file = ClusterFile(
            *(components.decode(*kind) for kind in (("Node", Node), ("Pod", GroupPod), ("Service", Service)))
        )
        file.groups.extend(components.decode("AppGroup", AppGroup))
        file.topologies.extend(components.decode("NetworkTopology", NetworkTopology))
        found["offline"] = plan_offline(file)[0].violations == 0
    assert found == dict.fromkeys(found, met)


def namespace(name: str, *, lets_in: str) -> dict[str, Any]:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": {"netaware.io/appgroups-from": lets_in}}}


EVIL = group("evil", names="x")
TWO = (group("x"), group("y", names="x"), namespace("x", lets_in="y"))
PARITY = SchedulerConfig(parity="upstream")


@pytest.mark.parametrize(
    ("objects", "config", "key", "count"),
    [
        ((EVIL,), DEFAULT, "evil/g", 0),
        ((EVIL, namespace("x", lets_in="friends")), DEFAULT, "evil/g", 0),
        ((EVIL, namespace("x", lets_in="friends.evil")), DEFAULT, "evil/g", 2),
        (TWO, DEFAULT, "x/g", 2),
        (TWO, DEFAULT, "y/g", 0),
        ((group("default"),), DEFAULT, "default/g", 2),
        ((group("x"),), PARITY, "x/g", 0),
        ((group("default"), group("x")), PARITY, "default/g", 2),
    ],
)
async def test_all_components_count_the_same_pods_of_a_group(
    objects: tuple[dict[str, Any], ...], config: SchedulerConfig, key: str, count: int
) -> None:
    """Pods join the group of their namespace, else of one with their namespace's consent; upstream uses only ``default``."""
    counts = await Components(*NODES, *PODS, *objects, config=config).members(key)
    assert counts == dict.fromkeys(counts, count)


@pytest.mark.parametrize(
    ("parity", "third", "met"), [("none", "", True), ("none", "z1", False), ("upstream", "", False)]
)
async def test_nodes_without_a_zone_are_one_zone_where_no_node_has_one_except_in_parity(
    parity: Parity, third: str, *, met: bool
) -> None:
    pods = [pod(workload, on, namespace="default") for workload, on in (("a", "n1"), ("b", "n2"), ("b", "n1"))]
    nodes = [node("n1", ""), node("n2", ""), node("n3", third)]
    config = SchedulerConfig(parity=parity)
    components = Components(*nodes, *pods, group("default", most=3), topology(weight("UserDefined", 5)), config=config)
    state = components.scheduler_state()
    (shown,), _ = await components.command("graph", "-n", "default")
    (page,) = (await components.group_view("default/g")).edges

    def node_score(on: str) -> tuple[int, ...]:
        return state.score("default", "g", "a").node_score(on, state.location_index[on])[:3]

    scores = [node_score("n1"), node_score("n2")]
    assert scores == ([(2, 0, 1)] * 2 if met else [(1, 1, 100)] * 2)
    found = {
        "CostsMet": condition(await components.status("default/g"), "CostsMet") == ("True", "AllWithin"),
        "page": page.state == "met",
        "graph": shown.edges[0].state == "met",
    }
    assert found == dict.fromkeys(found, met)
    labelled = msgspec.convert(node("n3", "z2"), Node)
    state.on_node_change("n3", None, labelled)
    assert node_score("n1") == (1, 1, 100), "if one node has a label, nodes without one have no common zone"


async def test_a_user_with_rights_in_one_namespace_sees_its_appgroups_and_a_note() -> None:
    components = Components(*NODES, group("x"), group("y"))
    graphs, session = await components.command("graph", "-n", "x", may_list_all=False)
    assert [(view.namespace, view.name) for view in graphs] == [("x", "g")]
    assert {"appgroups of other namespaces", "namespaces"} <= session.notes.keys()


def gated_pod(workload: str, **where: str) -> dict[str, Any]:
    spec = {"schedulingGates": [{"name": GATE}], "schedulerName": "network-aware-scheduler"}
    return {**pod(workload, "", **where), "spec": spec}


def facts_with_leader(snapshot: ClusterSnapshot) -> Facts:
    return read_facts(msgspec.structs.replace(snapshot, control_plane=ControlPlaneStatus(can_read_lease=False)))


@pytest.mark.parametrize(
    ("objects", "wrong"),
    [
        ((group("other", third="web"),), "there is no AppGroup g"),
        ((group("default"), group("other", names="x", third="web"), namespace("x", lets_in="other")), "no workload"),
    ],
    ids=["a group of another namespace", "of two groups the first by the rule"],
)
async def test_the_diagnosis_of_a_waiting_pod_names_the_group_that_the_scheduler_uses(
    objects: tuple[dict[str, Any], ...], wrong: str
) -> None:
    snapshot = await Components(*NODES, gated_pod("web"), *objects).page_snapshot()
    assert wrong in pod_diagnosis(snapshot.pods[0], facts_with_leader(snapshot), ()).summary


async def test_a_namespace_without_consent_is_one_finding_and_its_pods_are_none() -> None:
    refused = group("other", names="x", third="web")
    components = Components(*NODES, gated_pod("web"), refused)
    refused["status"] = {"conditions": (await components.status("other/g"))["conditions"]}
    codes = {finding.code for finding in diagnose(facts_with_leader(await components.page_snapshot()))}
    assert codes & {"namespace-not-admitted", "unknown-workload"} == {"namespace-not-admitted"}


async def test_findings_of_a_group_affect_its_pods_of_other_namespaces() -> None:
    components = Components(*NODES, group("default"), *(gated_pod(name) for name in ("a", "b")))
    facts = facts_with_leader(await components.page_snapshot())
    created = format_time(facts.now - 1000)
    metadata = [msgspec.structs.replace(fact.metadata, creation_timestamp=created) for fact in facts.pods]
    old = tuple(msgspec.structs.replace(f, metadata=m) for f, m in zip(facts.pods, metadata, strict=True))
    late = diagnose(msgspec.structs.replace(facts, pods=old))
    (stuck,) = [finding for finding in late if finding.code == "gated-too-long"]
    assert stuck.affects == tuple(fact.metadata.key for fact in facts.pods)
    assert stuck.fix[0] == "kubectl -n default describe appgroup g"


async def test_a_pod_change_enqueues_its_own_group_and_no_other_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciler, "DEBOUNCE_S", 0.0)
    components = Components(
        node("n1", "z1"), group("x"), group("y"), group("z"), pod("a", "n1"), pod("b", "n1", namespace="y")
    )
    controller, caches = components.appgroup_controller(StatusRecorder())
    await asyncio.sleep(0.01)
    while len(controller._queue):
        controller._queue.done(await controller._queue.get())
    moved = PodReader().read(msgspec.convert(pod("b", "n1", namespace="y", phase="Succeeded"), GroupPod))
    _fill(caches.pods, [moved])
    await asyncio.sleep(0.01)
    assert [await controller._queue.get() for _ in range(len(controller._queue))] == ["y/g"]


async def test_a_status_that_is_not_found_is_an_error_unless_its_group_is_gone() -> None:
    caches = Components(group()).appgroup_controller(StatusRecorder())[1]
    missing = ApiError(404, "NotFound", "deleted, or its definition has no status subresource")
    assert retry_after(missing, "y/g", caches.app_groups) is None
    with pytest.raises(ApiError):
        retry_after(missing, "x/g", caches.app_groups)


async def test_pods_on_one_node_without_a_zone_are_near_each_other() -> None:
    components = Components(
        node("bare", ""), pod("a", "bare"), pod("b", "bare"), group(most=0), topology(weight("NetperfCosts", 5))
    )
    state = components.scheduler_state()
    assert state.score("x", "g", "a").node_score("bare", state.location_index["bare"]).passes
    assert condition(await components.status("x/g"), "CostsMet") == ("True", "AllWithin")
    assert [(edge.state, edge.cost) for edge in (await components.group_view("x/g")).edges] == [("met", 0)]


def topology_with_latency(us: int, *weights: dict[str, Any]) -> dict[str, Any]:
    plain = topology(weight("NetperfCosts", 5), *weights)
    plain["metadata"]["annotations"] = {LATENCY_ANNOTATION: encode_latencies(Latencies({("z1", "z2"): us}))}
    return plain


def test_latencies_count_with_measured_costs_only_across_regions_and_change_without_costs() -> None:
    origin, near = Location("west", "z1"), Location("west", "z2")
    state = Components(topology_with_latency(1210)).scheduler_state()
    destinations = (near, Location("east", "z2"), Location("west", ""), Location("west", "z9"))
    table = state.costs("x").table
    assert [table.latency_us(origin, each) for each in destinations] == [1210, 1210, None, None]
    before, after = (msgspec.convert(topology_with_latency(us), NetworkTopology) for us in (1210, 1800))
    state.on_topology_change("default/nt-default", before, after)
    assert state.costs("x").table.latency_us(origin, near) == 1800
    given = Components(topology_with_latency(1210, weight("UserDefined", 5))).scheduler_state()
    assert given.costs("x").table.latency_us(origin, near) is None
