"""The answers of each component about one set of plain objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, cast
from unittest.mock import Mock

import msgspec
from prometheus_client import CollectorRegistry

from controller.appgroups.config import AppGroupConfig
from controller.appgroups.reconciler import AppGroupController, GroupIndexes
from controller.cli.cluster_file import ClusterFile
from controller.cli.commands import load_command
from controller.cli.offline import build_offline_inputs
from controller.cli.parser import parse
from controller.cli.plan_inputs import build_state
from controller.cli.session import Session
from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup, NetworkTopology
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from controller.cluster.zones import build_zone_map
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.diagnosis.zones import build_network
from controller.page.snapshots import SnapshotReader
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State
from controller.topology.bandwidth import compute_allocations
from controller.topology.config import TopologyConfig
from controller.topology.reconciler import TopologyController
from controller.views.group_views import build_group_views
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.responses import RawPage
from kubekit.wire import Node, Object, Resource
from netperf.policy import CostPolicy
from tests.support.bodies import REGION, ZONE, make_appgroup_spec, make_weight_body
from tests.unit.controller.scheduler_objects import make_state

HOME = "netaware-system"
DEFAULT = SchedulerConfig()


class StatusRecorder:
    """A client that keeps the status that is applied."""

    status: dict[str, Any]

    async def apply(self, _resource: object, _name: str, body: dict[str, Any], type_: type[Any], **_: object) -> Any:
        self.status = body["status"]
        return msgspec.convert({"metadata": body["metadata"], "status": body["status"]}, type_)

    async def get(self, *_: object, **__: object) -> Any:
        raise ApiError(403, "Forbidden", "the control plane's status is not readable here")

    list = get


class FakeClient:
    """A client of an API server with these objects, and a controller with this configuration; without a controller if it is None."""

    def __init__(
        self, objects: Iterable[dict[str, Any]], configuration: str | None, *, may_list_all: bool = True
    ) -> None:
        self._objects, self._may_list_all = [*objects], may_list_all
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
        if namespace is None and not self._may_list_all:
            raise ApiError(403, "Forbidden", "not yours")
        selected = [
            plain
            for plain in self._objects
            if plain["kind"] == resource.kind
            and namespace in {None, plain["metadata"].get("namespace")}
            and (not label_selector or plain["metadata"].get("labels"))
        ]
        yield RawPage([msgspec.Raw(msgspec.json.encode(plain)) for plain in selected])

    async def list(self, resource: Resource, type_: type[Any], **_: object) -> list[Any]:
        return [msgspec.convert(plain, type_) for plain in self._objects if plain["kind"] == resource.kind]

    async def get(self, resource: Resource, name: str, type_: type[Any], **_: object) -> Any:
        for plain in self._objects:
            if (plain["kind"], plain["metadata"]["name"]) == (resource.kind, name):
                return msgspec.convert(plain, type_)
        raise ApiError(404, "NotFound", "there is none")


def make_session(configuration: str | None, *objects: dict[str, Any], namespace: str = "x", **more: bool) -> Session:
    """A command's session with a `FakeClient`."""
    return Session(cast("Client", FakeClient(objects, configuration, **more)), None, namespace, HOME)


CONFIG_HEAD = "apiVersion: netaware.io/v1alpha1\nkind: ControllerConfiguration\n"


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
            "Pod": Pod,
            "AppGroup": AppGroup,
            "NetworkTopology": NetworkTopology,
            "Service": Service,
        }
        return make_state(self.config, *(item for kind, type_ in kinds.items() for item in self.decode(kind, type_)))

    def appgroup_controller(
        self, client: StatusRecorder, registry: CollectorRegistry | None = None
    ) -> tuple[AppGroupController, ClusterCache]:
        cache = ClusterCache(cast("Client", client), HOME)
        state = self.state_of_stores(cache)
        controller = AppGroupController(
            cast("Client", client),
            cache,
            AppGroupConfig(),
            Mock(),
            registry or CollectorRegistry(),
            indexes=GroupIndexes(
                state.membership, state.cost_index, None if self.config.has_upstream_parity else state.services
            ),
            pods_of=lambda key: [
                p for p in cache.group_pods if state.group_key_of(p.metadata.namespace, p.group) == key
            ],
        )
        self.fill(cache)
        return controller, cache

    def state_of_stores(self, cache: ClusterCache) -> State:
        """The scheduler's state, which these stores keep up to date."""
        state = State(self.config, HOME)
        state.subscribe_to(
            cache.nodes,
            cache.group_pods,
            cache.app_groups,
            cache.topologies,
            namespaces=cache.namespaces,
            services=cache.services,
        )
        return state

    def fill(self, cache: ClusterCache) -> None:
        fill_store(cache.namespaces, self.decode("Namespace", Object))
        fill_store(cache.nodes, self.decode("Node", Node))
        fill_store(cache.topologies, self.decode("NetworkTopology", NetworkTopology))
        fill_store(cache.app_groups, self.decode("AppGroup", AppGroup))
        fill_store(cache.services, self.decode("Service", Service))
        fill_store(cache.pods, map(PodReader().read, self.decode("Pod", Pod)))

    async def status(self, key: str, registry: CollectorRegistry | None = None) -> dict[str, Any]:
        client = StatusRecorder()
        controller, _ = self.appgroup_controller(client, registry)
        await controller._reconcile(key)
        return client.status

    def allocated_bps(self) -> dict[tuple[str, str], int]:
        locations = build_zone_map(self.decode("Node", Node)).location_by_node
        return compute_allocations(self.topology_controller()._membership, self.decode("Pod", Pod), locations)

    def topology_controller(self) -> TopologyController:
        """The TopologyController, which allocates bandwidth."""
        client = cast("Client", StatusRecorder())
        cache = ClusterCache(client, HOME)
        controller = TopologyController(
            client,
            cache,
            TopologyConfig(),
            Mock(),
            CollectorRegistry(),
            membership=self.state_of_stores(cache).membership,
        )
        self.fill(cache)
        return controller

    async def page_snapshot(self) -> ClusterSnapshot:
        client = cast("Client", StatusRecorder())
        cache = ClusterCache(client, HOME)
        self.fill(cache)
        snapshots = SnapshotReader(cache, client, HOME, policy=CostPolicy(), scheduler=self.config)
        return await snapshots.read(0.0)

    async def group_view(self, key: str) -> Any:
        snapshot = await self.page_snapshot()
        views = build_group_views(snapshot, build_network(snapshot))
        return next(view for view in views if f"{view.namespace}/{view.name}" == key)

    async def command(self, *argv: str, may_list_all: bool = True) -> tuple[Any, Session]:
        """Result and session of a command on these objects, with the controller's configuration."""
        options = parse(argv)
        text = f"{CONFIG_HEAD}scheduler: {{parity: {self.config.parity}}}"
        session = make_session(text, *self.objects, namespace=options.namespace or "default", may_list_all=may_list_all)
        return await load_command(argv[0]).run(session, options), session

    async def members(self, key: str) -> dict[str, int]:
        """Number of placed pods of a group by component."""
        state, snapshot, pods = self.scheduler_state(), await self.page_snapshot(), self.decode("Pod", Pod)
        namespace, name = key.split("/")
        graphs, _ = await self.command("graph", "-n", namespace, name)
        status, _ = await self.command("status", "-n", namespace)
        (group_view,) = status.groups
        explain_state = build_state(snapshot)
        topology_controller = self.topology_controller()._membership
        counts = {
            "scheduler": sum(state.group_key_of(pod.metadata.namespace, pod.group) == key for pod in pods),
            "status": (await self.status(key))["runningWorkloads"],
            "bandwidth": sum(
                topology_controller.group_key_of(pod.metadata.namespace, pod.group) == key for pod in pods
            ),
            "page": (await self.group_view(key)).running_pods,
            "graph": graphs[0].running_pods,
            "status command": group_view.running_pods,
            "explain": sum(nodes.total() for nodes in explain_state.pod_counts(key).values()),
            "rules": sum(nodes.total() for nodes in state.pod_counts(key).values()),
        }
        if self.config == DEFAULT:  # files have no configuration
            file = ClusterFile(nodes=self.decode("Node", Node), pods=pods, groups=self.decode("AppGroup", AppGroup))
            file.namespaces.extend(self.decode("Namespace", Object))
            pods_by_group = build_offline_inputs(file, PodReader()).state.membership.pods_by_group(pods)
            counts["offline"] = sum(pod.is_bound for pod in pods_by_group.get(key, ()))
        return counts


def fill_store(store: Reflector[Any], items: Iterable[Any]) -> None:
    for item in items:
        key = item.key if isinstance(item, PodInfo) else item.metadata.key
        store._set(key, item)


def make_node_body(name: str, zone: str) -> dict[str, Any]:
    labels = {REGION: "west", ZONE: zone} if zone else {}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def make_pod_body(workload: str, node_name: str, *, namespace: str = "x", phase: str = "Running") -> dict[str, Any]:
    labels = {APPGROUP_LABEL: "g", WORKLOAD_LABEL: workload}
    meta = {"name": f"{workload}-{node_name}", "namespace": namespace, "labels": labels}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node_name}, "status": {"phase": phase}}


def make_group_body(
    namespace: str = "x", *, workload_namespace: str = "", max_cost: int = 5, other: str = "c"
) -> dict[str, Any]:
    """An AppGroup in which a depends on b, and ``other`` on none; ``workload_namespace`` is that of its workloads."""
    calls: dict[str, dict[str, Any]] = {
        "a": {"b": {"maxNetworkCost": max_cost, "minBandwidth": "1M"}},
        "b": {},
        other: {},
    }
    spec = make_appgroup_spec(calls, members=2, namespaces=dict.fromkeys(calls, workload_namespace))
    return {"kind": "AppGroup", "metadata": {"name": "g", "namespace": namespace, "uid": namespace}, "spec": spec}


def make_cost_topology(
    cost_by_weight: Mapping[str, int | None] = {}, *, namespace: str = "default", name: str = "nt-default"
) -> dict[str, Any]:
    """A NetworkTopology with the cost from z1 to z2 of each weight; None is a weight without costs."""
    weights = [
        {"name": weight, "topologyList": []} if cost is None else make_weight_body({("z1", "z2"): cost}, name=weight)
        for weight, cost in cost_by_weight.items()
    ]
    meta = {"name": name, "namespace": namespace}
    return {"kind": "NetworkTopology", "metadata": meta, "spec": {"weights": weights}}


def make_body(
    kind: str, name: str, spec: dict[str, Any], *, namespace: str = "shop", **metadata: Any
) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, **metadata}, "spec": spec}


def make_pod_spec(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}


def make_workload_body(
    kind: str, name: str, labels: dict[str, str], replicas: int, *, cpu: str = "100m", namespace: str = "shop"
) -> dict[str, Any]:
    """A Deployment or StatefulSet whose pods have these labels and ``app``."""
    template = {"metadata": {"labels": {**labels, "app": name}}, "spec": make_pod_spec(cpu)}
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": "apps/v1", **make_body(kind, name, spec, namespace=namespace)}


NODES = (make_node_body("n1", "z1"), make_node_body("n2", "z2"))
PODS = (make_pod_body("a", "n1"), make_pod_body("b", "n2"))
