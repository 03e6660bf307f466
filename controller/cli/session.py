"""A command's connection to the cluster, which lists only what the command needs.

Objects that the user may not read, or whose CRD is missing, are left out with a note on stderr: a user with few rights gets a partial
answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod, GroupPodSpec
from controller.cluster.resources import (
    APPGROUP_LABEL,
    APPGROUPS,
    NETWORK_TOPOLOGIES,
    SERVICES,
    WORKLOAD_LABEL,
    AppGroup,
    NetworkTopology,
)
from controller.cluster.services import Service
from controller.cluster.zones import build_zone_map
from controller.config import ControllerConfiguration, parse_config
from controller.diagnosis.reading import read_control_plane
from controller.diagnosis.snapshot import ClusterSnapshot, ControlPlaneStatus
from controller.prometheus import PrometheusClient, PrometheusError
from controller.topology.results import ObjectName, results_of
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError, UnreachableError
from kubekit.wire import (
    CONFIGMAPS,
    DECODE_ERRORS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    STATEFUL_SETS,
    ConfigMap,
    Node,
    Object,
    ObjectMeta,
    Resource,
    Wire,
)
from netperf.contract import AGENT_POD_SELECTOR, CONTROLLER, CONTROLLER_POD_SELECTOR, PLAN_SELECTOR
from netperf.errors import PlanRefusedError
from netperf.plans import ZonePlan, decode_plan

UNFINISHED_PODS = "status.phase!=Succeeded,status.phase!=Failed"
PROXY_TIMEOUT_S = 5.0
CONFIG_FILE = "config.yaml"
VERDICTS = "netaware_pod_bandwidth_verdict == 1"

T = TypeVar("T", bound=Object)


class _Template(Wire, frozen=True):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GroupPodSpec = GroupPodSpec()


class _ControllerSpec(Wire, frozen=True):
    """The spec of a Deployment or StatefulSet."""

    replicas: int | None = None
    template: _Template = _Template()


class Controller(Object, frozen=True):
    """A Deployment or StatefulSet.

    Attributes:
        kind: set by the reader, because items of a list lack it.
    """

    kind: str = ""
    spec: _ControllerSpec = _ControllerSpec()

    @property
    def replicas(self) -> int:
        """Declared replicas, by default 1."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its pods."""
        return self.spec.template.metadata.labels or {}

    @property
    def workload(self) -> tuple[str, str]:
        """AppGroup and workload selector of its pods."""
        return self.labels.get(APPGROUP_LABEL, ""), self.labels.get(WORKLOAD_LABEL, "")


class _Deployment(Object, frozen=True):
    spec: dict[str, Any] = {}


@dataclass
class Session:
    """The connection of a command, and its notes for stderr.

    Attributes:
        client: the API server.
        prometheus: None if the user named none.
        namespace: of the user's objects; None for all namespaces.
        home: the namespace of netaware itself.
        notes: topic -> note, for example the plural of a kind -> why it could not be read.
        remarks: notes without a topic.
        stack: for resources to close when the command ends.
    """

    client: Client
    prometheus: PrometheusClient | None
    namespace: str | None
    home: str
    notes: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    clock: Callable[[], float] = time.time
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def snapshot(
        self, *, groups: bool = False, bandwidth: bool = False, everything: bool = False
    ) -> ClusterSnapshot:
        """Read the controller's configuration, nodes, topologies, results and plans, and more on request.

        Args:
            groups: AppGroups with pods and Services, and namespaces, whose labels give consent to groups.
            bandwidth: all pods of the namespace, and verdicts on limits from Prometheus.
            everything: these, agents' pods and the state of our own programs.

        Raises:
            KubekitError: the nodes cannot be read.
        """
        groups, bandwidth = groups or everything, bandwidth or everything
        config, nodes, namespaces, topologies, plans, services = await asyncio.gather(
            self.configuration(),
            self.client.list(NODES, Node),
            self.list_objects(NAMESPACES, Object, wanted=groups),
            self.list_objects(NETWORK_TOPOLOGIES, NetworkTopology),
            self._plans(),
            self.list_objects(SERVICES, Service, wanted=groups),
        )
        names = results_of(topologies, plans, self.home, len(build_zone_map(nodes).zones))
        app_groups, pods, bandwidth_pods, agent_pods, results, verdicts = await asyncio.gather(
            self._app_groups(wanted=groups),
            self.list_objects(PODS, GroupPod, None, APPGROUP_LABEL, wanted=groups),
            self._pods(self.namespace, wanted=bandwidth),
            self._pods(self.home, AGENT_POD_SELECTOR, wanted=everything),
            self._results(names),
            self._verdicts(wanted=bandwidth),
        )
        return ClusterSnapshot(
            now_s=self.clock(),
            home=self.home,
            nodes=tuple(nodes),
            topologies=tuple(topologies),
            groups=tuple(app_groups),
            namespaces=tuple(namespaces),
            pods=tuple(pods),
            bandwidth_pods=tuple(bandwidth_pods),
            agent_pods=tuple(agent_pods),
            results=results,
            plans=tuple(plans),
            services=tuple(services),
            policy=config.topology.policy(),
            scheduler=config.scheduler,
            verdicts=verdicts,
            prices=config.traffic.prices.resolve(),
            control_plane=await self._control_plane() if everything else None,
        )

    async def configuration(self) -> ControllerConfiguration:
        """The configuration that the controller's Deployment mounts; if it cannot be read, the defaults and a note."""
        note = f"the controller's was not found in {self.home}; defaults are used"
        try:
            deployment = await self.client.get(DEPLOYMENTS, CONTROLLER, _Deployment, namespace=self.home)
            volumes = deployment.spec.get("template", {}).get("spec", {}).get("volumes", ())
            maps = (volume.get("configMap", {}) for volume in volumes if volume["name"] == "config")
            name = next((mounted["name"] for mounted in maps if "name" in mounted), "")
            if name:
                data = (await self.client.get(CONFIGMAPS, name, ConfigMap, namespace=self.home)).data or {}
                if CONFIG_FILE in data:
                    return parse_config(data[CONFIG_FILE], f"ConfigMap {self.home}/{name}")
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found):
                raise
        except ConfigError as error:
            note = f"{error}; defaults are used"
        self.notes["configuration"] = note
        return ControllerConfiguration()

    async def _app_groups(self, *, wanted: bool) -> list[AppGroup]:
        """AppGroups of all namespaces; if that is forbidden, of the chosen namespace, with a note."""
        found = await self.list_objects(APPGROUPS, AppGroup, None, wanted=wanted)
        if self.namespace and "not allowed" in self.notes.get(APPGROUPS.plural, ""):
            self.notes[f"{APPGROUPS.plural} of other namespaces"] = self.notes.pop(APPGROUPS.plural)
            found = await self.list_objects(APPGROUPS, AppGroup, self.namespace)
        return found

    async def pod(self, name: str) -> GroupPod:
        """One pod of the namespace, or of the default one.

        Raises:
            NotFoundError: it does not exist.
        """
        namespace = self.namespace or "default"
        try:
            return await self.client.get(PODS, name, GroupPod, namespace=namespace)
        except ApiError as error:
            if not error.is_not_found:
                raise
            msg = f"there is no pod {name!r} in namespace {namespace}"
            raise NotFoundError(msg) from error

    async def _control_plane(self) -> ControlPlaneStatus:
        note = self.notes.get(NETWORK_TOPOLOGIES.plural, "")
        pods = await self.list_objects(PODS, Object, self.home, CONTROLLER_POD_SELECTOR)
        # Concurrently, because each replica that hangs takes the whole timeout.
        complaints = await asyncio.gather(*(self._problems_of_replica(pod.metadata.name) for pod in pods))
        status = await read_control_plane(
            self.client,
            self.home,
            installed=not note or "not allowed" in note,
            topologies_known=not note,
            complaints=[line for lines in complaints for line in lines],
        )
        if not status.lease_known:
            self.notes["Lease"] = "not allowed to read it"
        return status

    async def _problems_of_replica(self, name: str) -> list[str]:
        """Failed checks of a controller replica, such as the age of a store: its /readyz through the API server."""
        try:
            # Without a port the API server uses the pod's first one, which serves page, metrics and health.
            path = PODS.path(self.home, name, "proxy") + "/readyz"
            await self.client.request("GET", path, timeout_s=PROXY_TIMEOUT_S)
        except UnreachableError:
            self.remarks.append(f"{name}: no answer from /readyz")
        except ApiError as error:
            # Only the pod's own answer: the API server's is a Status with a reason.
            if error.status == 503 and not error.reason:
                return [f"{name}: {line}" for line in error.message.splitlines()]
        return []

    def require(self, resource: Resource) -> None:
        """Raise NotFoundError if objects of a kind, which the answer is about, could not be read."""
        why = self.notes.pop(resource.plural, "")
        if why:
            msg = f"{resource.plural}: {why}"
            raise NotFoundError(msg)

    async def controllers(self, namespace: str) -> list[Controller]:
        """Deployments and StatefulSets of a namespace."""
        return [
            msgspec.structs.replace(found, kind=resource.kind)
            for resource in (DEPLOYMENTS, STATEFUL_SETS)
            for found in await self.list_objects(resource, Controller, namespace)
        ]

    async def unfinished_pods(self) -> list[PodInfo]:
        """The pods of all namespaces that use resources, or will once they are bound."""
        return await self._pods(None, field_selector=UNFINISHED_PODS)

    async def _pods(
        self, namespace: str | None, label_selector: str = "", *, field_selector: str = "", wanted: bool = True
    ) -> list[PodInfo]:
        reader = PodReader()
        found = await self.list_objects(
            PODS, GroupPod, namespace, label_selector, field_selector=field_selector, wanted=wanted
        )
        return [reader.read(pod) for pod in found]

    async def list_objects(
        self,
        resource: Resource,
        type_: type[T],
        namespace: str | None = None,
        label_selector: str = "",
        *,
        field_selector: str = "",
        wanted: bool = True,
    ) -> list[T]:
        """Objects of a namespace, or of all; none, with a note, if that is not allowed or not ``wanted``."""
        found: list[T] = []
        if not wanted:
            return found
        try:
            async for page in self.client.pages(
                resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
            ):
                for raw in page.items:
                    try:
                        found.append(msgspec.json.decode(raw, type=type_))
                    except DECODE_ERRORS as error:
                        self.notes[f"{resource.plural} (malformed)"] = f"an object was left out: {error}"
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found):
                raise
            why = (
                "not allowed to list them"
                if error.is_forbidden
                else "this cluster does not know them; apply manifests/crds"
            )
            self.notes[resource.plural] = why
        return found

    async def _plans(self) -> list[ZonePlan]:
        plans = []
        for found in await self.list_objects(CONFIGMAPS, ConfigMap, self.home, PLAN_SELECTOR):
            try:
                plans.append(decode_plan(found.data).plan)
            except PlanRefusedError as error:
                self.notes[f"plan {found.metadata.name}"] = str(error)
        return plans

    async def _results(self, names: Iterable[ObjectName]) -> dict[str, dict[str, str]]:
        """The results ConfigMaps, read by name, because the user may not be allowed to list ConfigMaps."""
        unique = tuple(dict.fromkeys(names))
        found = await asyncio.gather(*(self._result(name) for name in unique))
        return {str(name): data for name, data in zip(unique, found, strict=True) if data}

    async def _result(self, name: ObjectName) -> dict[str, str]:
        """One ConfigMap's data; empty if it does not exist, and with a note if it may not be read."""
        try:
            return (await self.client.get(CONFIGMAPS, name.name, ConfigMap, namespace=name.namespace)).data or {}
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found):
                raise
            if error.is_forbidden:
                self.notes.setdefault(f"ConfigMaps of {name.namespace}", f"not allowed to read {name}")
            return {}

    async def _verdicts(self, *, wanted: bool) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = defaultdict(dict)
        if self.prometheus is None or not wanted:
            return found
        try:
            for series in await self.prometheus.query(VERDICTS):
                labels = series.labels
                key = f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
                found[key][labels.get("direction", "")] = labels.get("verdict", "")
        except PrometheusError as error:
            self.notes["Prometheus"] = str(error)
        return found


class NotFoundError(KubekitError):
    """The named object does not exist."""
