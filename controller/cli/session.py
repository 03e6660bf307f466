"""A command's connection to the cluster, which reads only what the command needs.

A user with few rights gets a partial answer: `Session.read_errors` lists what could not be read, and why. Only nodes are required.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from controller.cli.workload_controller import WorkloadController
from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from controller.cluster.zones import build_zone_map
from controller.config import ControllerConfiguration, parse_config
from controller.diagnosis.cluster_views import NetworkView
from controller.diagnosis.control_plane import ControlPlaneStatus, read_control_plane
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.prometheus import PrometheusClient, PrometheusError
from controller.topology.results_names import ObjectName, list_results_names
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError, UnreachableError
from kubekit.wire import (
    CONFIGMAPS,
    DECODE_ERRORS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    ConfigMap,
    Node,
    Object,
    Resource,
)
from netperf.contract import AGENT_POD_SELECTOR, CONTROLLER, CONTROLLER_POD_SELECTOR, PLAN_SELECTOR
from netperf.plans import ZonePlan, decode_plan
from netperf.refusals import PlanRefusedError

UNFINISHED_PODS_FIELD_SELECTOR = "status.phase!=Succeeded,status.phase!=Failed"
READYZ_TIMEOUT_S = 5.0
CONFIG_VOLUME, CONFIG_FILE = "config", "config.yaml"
"""The volume of the controller's Deployment that is a ConfigMap, and the key in it."""
VERDICTS_QUERY = "netaware_pod_bandwidth_verdict == 1"
FORBIDDEN, UNKNOWN_KIND = "not allowed to list them", "this cluster does not know them; apply manifests/crds"
"""Read errors of a kind whose objects cannot be listed."""

T = TypeVar("T", bound=Object)


class MissingInputError(KubekitError):
    """An object that the answer needs does not exist, or may not be read."""


@dataclass
class Session:
    """A command's connection to the cluster, and its notes for standard error.

    Objects that may not be read, or whose kind the cluster does not know, are left out with a read error. Other errors are raised.

    Attributes:
        client: the API server.
        prometheus: None without the flag or variable that names it.
        namespace: namespace of AppGroups and pods; None for all namespaces.
        netaware_namespace: where netaware is installed.
        read_errors: what could not be read, such as the plural of a kind -> reason; printed as notes too.
        notes: further notes for standard error.
        exit_stack: closes resources when the command ends.
    """

    client: Client
    prometheus: PrometheusClient | None
    namespace: str | None
    netaware_namespace: str
    read_errors: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def read_snapshot(
        self, *, groups: bool = False, bandwidth: bool = False, everything: bool = False, all_namespaces: bool = False
    ) -> ClusterSnapshot:
        """Read the controller's configuration, nodes, topologies, results and plans, and more on request.

        Args:
            groups: adds AppGroups of all namespaces, or of the session's if that is forbidden; their pods, Services and namespaces.
            bandwidth: adds all pods of the session's namespace, and verdicts on limits from Prometheus if it is named.
            everything: adds these, the agents' pods, and the state of netaware's programs and of their Lease.
            all_namespaces: reads pods for ``bandwidth`` in all namespaces, and no AppGroups if listing them all is forbidden.

        Raises:
            KubekitError: nodes may not be read, or the API server does not answer or fails.
        """
        namespace = None if all_namespaces else self.namespace
        readings = [self._read_network()]
        if groups or everything:
            readings.append(self._read_groups(namespace))
        if bandwidth or everything:
            readings.append(self._read_bandwidth(namespace))
        parts = await asyncio.gather(*readings)
        now_s = time.time()
        if everything:
            parts.append(await self._read_programs())
        fields = {name: value for part in parts for name, value in part.items()}
        return ClusterSnapshot(now_s=now_s, netaware_namespace=self.netaware_namespace, **fields)

    async def read_configuration(self) -> ControllerConfiguration:
        """Read the configuration that the controller's Deployment mounts; the defaults, with a read error, if it cannot be used."""
        namespace = self.netaware_namespace
        reason = f"no controller in {namespace} has one"
        try:
            deployment = await self.client.get(DEPLOYMENTS, CONTROLLER, dict[str, Any], namespace=namespace)
            volumes = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ())
            sources = (volume.get("configMap", {}) for volume in volumes if volume["name"] == CONFIG_VOLUME)
            name = next((source["name"] for source in sources if "name" in source), "")
            if name:
                config_map = await self.client.get(CONFIGMAPS, name, ConfigMap, namespace=namespace)
                text = (config_map.data or {}).get(CONFIG_FILE)
                if text is not None:
                    return parse_config(text, f"ConfigMap {namespace}/{name}")
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found):
                raise
            if error.is_forbidden:
                reason = "not allowed to read it"
        except ConfigError as error:
            reason = str(error)
        self.read_errors["configuration"] = f"{reason}; defaults are used"
        return ControllerConfiguration()

    async def read_pod(self, name: str) -> Pod:
        """Read a pod of the session's namespace, or of ``default`` if the session has all namespaces.

        Raises:
            MissingInputError: it does not exist.
            ApiError: it may not be read.
        """
        namespace = self.namespace or "default"
        try:
            return await self.client.get(PODS, name, Pod, namespace=namespace)
        except ApiError as error:
            if not error.is_not_found:
                raise
            raise MissingInputError(f"there is no pod {name!r} in namespace {namespace}") from error

    async def list_workload_controllers(self, namespace: str) -> list[WorkloadController]:
        """Deployments and StatefulSets of a namespace, with their kinds."""
        return [
            msgspec.structs.replace(controller, kind=resource.kind)
            for resource in (DEPLOYMENTS, STATEFUL_SETS)
            for controller in await self.list_objects(resource, WorkloadController, namespace)
        ]

    async def list_unfinished_pods(self) -> list[PodInfo]:
        """The pods of all namespaces that use resources, or will once they are bound."""
        return await self._list_pods(None, field_selector=UNFINISHED_PODS_FIELD_SELECTOR)

    async def list_objects(
        self,
        resource: Resource,
        type_: type[T],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[T]:
        """Objects of a namespace, or of all; forbidden, unknown or malformed objects are left out with a read error."""
        objects: list[T] = []
        try:
            async for page in self.client.list_pages(
                resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
            ):
                for raw in page.items:
                    try:
                        objects.append(msgspec.json.decode(raw, type=type_))
                    except DECODE_ERRORS as error:
                        self.read_errors[f"{resource.plural} (malformed)"] = f"objects were left out: {error}"
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found):
                raise
            self.read_errors[resource.plural] = FORBIDDEN if error.is_forbidden else UNKNOWN_KIND
        return objects

    def require_readable(self, resource: Resource) -> None:
        """Raise MissingInputError if objects without which there is no answer could not be listed."""
        if reason := self.read_errors.get(resource.plural):
            raise MissingInputError(f"{resource.plural}: {reason}")

    def note_unused_costs(self, network: NetworkView) -> None:
        """Add a note if the scheduler ignores the NetworkTopology or weight that is shown."""
        if network.is_unused:
            name = " ".join(filter(None, (network.topology, network.weight_name)))
            self.notes.append(f"costs: the scheduler does not use {name}")

    async def _read_network(self) -> dict[str, Any]:
        """Fields of `ClusterSnapshot` on the controller's configuration, nodes, topologies, results and plans."""
        config, nodes, topologies, plans = await asyncio.gather(
            self.read_configuration(),
            self.client.list(NODES, Node),
            self.list_objects(NETWORK_TOPOLOGIES, NetworkTopology),
            self._read_plans(),
        )
        zone_count = len(build_zone_map(nodes).region_by_zone)
        names = list_results_names(topologies, plans, self.netaware_namespace, zone_count)
        return {
            "policy": config.topology.resolve_cost_policy(),
            "scheduler": config.scheduler,
            "prices": config.traffic.prices.resolve(),
            "nodes": tuple(nodes),
            "topologies": tuple(topologies),
            "plans": tuple(plans),
            "results": await self._read_results(names),
        }

    async def _read_plans(self) -> list[ZonePlan]:
        plans = []
        for config_map in await self.list_objects(CONFIGMAPS, ConfigMap, self.netaware_namespace, PLAN_SELECTOR):
            try:
                plans.append(decode_plan(config_map.data).plan)
            except PlanRefusedError as error:
                self.read_errors[f"plan {config_map.metadata.name}"] = str(error)
        return plans

    async def _read_results(self, names: Sequence[ObjectName]) -> dict[str, dict[str, str]]:
        """Read the results ConfigMaps that have data: ``namespace/name`` -> data."""
        # By name, because the user may not be allowed to list ConfigMaps.
        all_data = await asyncio.gather(*map(self._read_result_data, names))
        return {str(name): data for name, data in zip(names, all_data, strict=True) if data}

    async def _read_result_data(self, name: ObjectName) -> dict[str, str]:
        """One ConfigMap's data; empty if it does not exist, or, with a read error, if it may not be read."""
        try:
            return (await self.client.get(CONFIGMAPS, name.name, ConfigMap, namespace=name.namespace)).data or {}
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found):
                raise
            if error.is_forbidden:
                self.read_errors.setdefault(f"ConfigMaps of {name.namespace}", f"not allowed to read {name}")
            return {}

    async def _read_groups(self, namespace: str | None) -> dict[str, Any]:
        """Fields of `ClusterSnapshot` on AppGroups, their pods and Services, and namespaces, whose labels give consent."""
        groups, namespaces, pods, services = await asyncio.gather(
            self._list_app_groups(namespace),
            self.list_objects(NAMESPACES, Object),
            self.list_objects(PODS, Pod, label_selector=APPGROUP_LABEL),
            self.list_objects(SERVICES, Service),
        )
        return {
            "groups": tuple(groups),
            "namespaces": tuple(namespaces),
            "pods": tuple(pods),
            "services": tuple(services),
        }

    async def _list_app_groups(self, namespace: str | None) -> list[AppGroup]:
        """AppGroups of all namespaces; if that is forbidden, of ``namespace``."""
        groups = await self.list_objects(APPGROUPS, AppGroup)
        if namespace and self.read_errors.get(APPGROUPS.plural) == FORBIDDEN:
            self.read_errors[f"{APPGROUPS.plural} of other namespaces"] = self.read_errors.pop(APPGROUPS.plural)
            groups = await self.list_objects(APPGROUPS, AppGroup, namespace)
        return groups

    async def _read_bandwidth(self, namespace: str | None) -> dict[str, Any]:
        """Fields of `ClusterSnapshot` on requests and limits of pods."""
        pods, verdicts_by_pod = await asyncio.gather(self._list_pods(namespace), self._read_verdicts())
        return {"bandwidth_pods": tuple(pods), "verdicts_by_pod": verdicts_by_pod}

    async def _list_pods(
        self, namespace: str | None, label_selector: str = "", field_selector: str = ""
    ) -> list[PodInfo]:
        pods = await self.list_objects(PODS, Pod, namespace, label_selector, field_selector)
        return list(map(PodReader().read, pods))

    async def _read_verdicts(self) -> dict[str, dict[str, str]]:
        """Read verdicts on bandwidth limits: pod (``namespace/name``) -> direction -> verdict; empty without Prometheus."""
        verdicts: dict[str, dict[str, str]] = defaultdict(dict)
        if self.prometheus is None:
            return verdicts
        try:
            for series in await self.prometheus.query(VERDICTS_QUERY):
                labels = series.labels
                pod = f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
                verdicts[pod][labels.get("direction", "")] = labels.get("verdict", "")
        except PrometheusError as error:
            self.read_errors["Prometheus"] = str(error)
        return verdicts

    async def _read_programs(self) -> dict[str, Any]:
        """Fields of `ClusterSnapshot` on netaware's programs; `_read_network` comes first, because it lists the NetworkTopologies."""
        agent_pods, control_plane = await asyncio.gather(
            self._list_pods(self.netaware_namespace, AGENT_POD_SELECTOR), self._read_control_plane()
        )
        return {"agent_pods": tuple(agent_pods), "control_plane": control_plane}

    async def _read_control_plane(self) -> ControlPlaneStatus:
        list_error = self.read_errors.get(NETWORK_TOPOLOGIES.plural)
        pods = await self.list_objects(PODS, Object, self.netaware_namespace, CONTROLLER_POD_SELECTOR)
        # Concurrently, because a replica that hangs takes the whole timeout.
        failed_checks = await asyncio.gather(*(self._read_failed_checks(pod.metadata.name) for pod in pods))
        status = ControlPlaneStatus(
            is_installed=list_error != UNKNOWN_KIND,
            can_list_topologies=list_error is None,
            failed_checks=tuple(check for checks in failed_checks for check in checks),
        )
        status = await read_control_plane(self.client, self.netaware_namespace, status)
        if not status.is_lease_conclusive:
            self.read_errors["Lease"] = "not allowed to read it"
        return status

    async def _read_failed_checks(self, name: str) -> list[str]:
        """Failed checks of a controller replica's /readyz, by the API server's proxy; empty if the proxy or replica gives no answer."""
        try:
            # Without a port the proxy uses the pod's first one, which serves page, metrics and health.
            path = PODS.path(self.netaware_namespace, name, "proxy") + "/readyz"
            await self.client.request("GET", path, timeout_s=READYZ_TIMEOUT_S)
        except UnreachableError:
            self.read_errors[f"/readyz of {name}"] = "no answer"
        except ApiError as error:
            # Errors of the API server itself are a Status with a reason; a failed /readyz has none.
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE and not error.reason:
                return [f"{name}: {line}" for line in error.message.splitlines()]
        return []
