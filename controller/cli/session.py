"""One command's connection to the cluster: reads only what the command needs, and notes what it was not allowed to see.

Objects that cannot be read for lack of rights or of a definition are left out with a note on stderr: somebody who may see
AppGroups but not nodes still gets an answer, and knows what is missing from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from controller.cli.templates import STATEFUL_SETS, Controller
from controller.prometheus import PrometheusClient
from controller.resources import APPGROUP_LABEL, APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.scheduler.fleet import BOUND_PODS, BoundPod, Fleet
from controller.scheduler.requests import Amounts
from controller.topology.places import AGENT_POD_SELECTOR
from controller.views.readings import read_all
from controller.views.snapshot import BandwidthPod, Readings, Snapshot
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, NODES, PODS, ConfigMap, Node, Object, Pod, Resource
from netperf.errors import PlanRefusedError
from netperf.plans import ZonePlan, decode_plan
from netperf.results import shard_index, shard_name

PLAN_SELECTOR = "netaware.io/plan=true"
RESULTS_NAME = "netperf-metrics"
_MOST_SHARDS = 100

T = TypeVar("T", bound=Object)


@dataclass
class Session:
    """What a command works with.

    Attributes:
        client: the API server.
        prometheus: None unless one was named.
        namespace: where to look for the user's objects; None for everywhere.
        home: the namespace that netaware itself lives in.
        context: of the kubeconfig, empty in a cluster; server: the API server's address.
        notes: what could not be read and why, by kind; for stderr.
        remarks: what else the command has to say; for stderr.
    """

    client: Client
    prometheus: PrometheusClient | None
    namespace: str | None
    home: str
    context: str = ""
    server: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    clock: Callable[[], float] = time.time

    async def snapshot(
        self, *, groups: bool = False, bandwidth: bool = False, agents: bool = False, readings: bool = False
    ) -> Snapshot:
        """Read nodes, topologies, results and plans, and on request more.

        Args:
            groups: AppGroups of the namespace and their pods, which may be in others.
            bandwidth: every pod of the namespace, since any may ask for bandwidth.
            agents: pods of the agent's DaemonSet.
            readings: what Prometheus knows; empty without one.

        Raises:
            KubekitError: the nodes cannot be read; nothing can be shown without them.
        """
        nodes, topologies, plans = await asyncio.gather(
            self.client.list(NODES, Node),
            self._list(NETWORK_TOPOLOGIES, NetworkTopology, None),
            self._plans(),
        )
        found_groups, pods, bandwidth_pods, agent_pods, results, read = await asyncio.gather(
            self._list(APPGROUPS, AppGroup, self.namespace, wanted=groups),
            self._list(PODS, Pod, None, APPGROUP_LABEL, wanted=groups),
            self._list(PODS, BandwidthPod, self.namespace, wanted=bandwidth),
            self._list(PODS, Pod, self.home, AGENT_POD_SELECTOR, wanted=agents),
            self._results(topologies, plans),
            self._readings(wanted=readings),
        )
        return Snapshot(
            now_s=self.clock(),
            home=self.home,
            nodes=tuple(nodes),
            topologies=tuple(topologies),
            groups=tuple(found_groups),
            pods=tuple(pods),
            bandwidth_pods=tuple(bandwidth_pods),
            agent_pods=tuple(agent_pods),
            results=results,
            plans=tuple(plans),
            readings=read,
        )

    def require(self, resource: Resource) -> None:
        """Raise NotFoundError when objects of a kind, which the answer is about, could not be read."""
        why = self.notes.pop(resource.plural, "")
        if why:
            msg = f"{resource.plural}: {why}"
            raise NotFoundError(msg)

    async def list_all(self, resource: Resource, type_: type[T], *, label_selector: str = "") -> list[T]:
        """Objects of all namespaces; with a note where that is not allowed."""
        return await self._list(resource, type_, None, label_selector)

    async def controllers(self, namespace: str) -> list[Controller]:
        """Deployments and StatefulSets of a namespace."""
        found = await asyncio.gather(
            self._list(DEPLOYMENTS, Controller, namespace), self._list(STATEFUL_SETS, Controller, namespace)
        )
        return [item for items in found for item in items]

    async def used_room(self, *, except_group: tuple[str, str]) -> dict[str, Amounts]:
        """Node -> requests of the pods on it, without those of one AppGroup (namespace, name)."""
        fleet = Fleet()
        for pod in await self._list(PODS, BoundPod, None, field_selector=BOUND_PODS):
            if (pod.metadata.namespace, pod.metadata.label(APPGROUP_LABEL)) != except_group:
                fleet.take_pod(pod.metadata.key, None, pod)
        return fleet.used

    async def _list(
        self,
        resource: Resource,
        type_: type[T],
        namespace: str | None,
        label_selector: str = "",
        *,
        field_selector: str = "",
        wanted: bool = True,
    ) -> list[T]:
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
                    except msgspec.MsgspecError as error:
                        self.notes[f"{resource.plural} (malformed)"] = f"an object was left out: {error}"
        except ApiError as error:
            if not (error.forbidden or error.not_found):
                raise
            why = (
                "not allowed to list them"
                if error.forbidden
                else "this cluster does not know them; apply manifests/crds"
            )
            self.notes[resource.plural] = why
        return found

    async def _plans(self) -> list[ZonePlan]:
        plans = []
        for found in await self._list(CONFIGMAPS, ConfigMap, self.home, PLAN_SELECTOR):
            try:
                plans.append(decode_plan(found.data).plan)
            except PlanRefusedError as error:
                self.notes[f"plan {found.metadata.name}"] = str(error)
        return plans

    async def _results(
        self, topologies: Sequence[NetworkTopology], plans: Sequence[ZonePlan]
    ) -> dict[str, dict[str, str]]:
        """The results ConfigMaps, read by name, since listing ConfigMaps may well not be allowed.

        Agents write where their plan says, in netaware's namespace; other tools where a NetworkTopology says.
        """
        bases = {(t.metadata.namespace, t.spec.configmap_name) for t in topologies if t.spec.configmap_name}
        bases.add((self.home, RESULTS_NAME))
        bases |= {(self.home, plan.results) for plan in plans if shard_index(RESULTS_NAME, plan.results) is None}
        found: dict[str, dict[str, str]] = {}
        for shards in await asyncio.gather(*(self._shards(*base) for base in sorted(bases))):
            found |= shards
        return found

    async def _shards(self, namespace: str, base: str) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for index in range(_MOST_SHARDS):
            name = shard_name(base, index)
            try:
                shard = await self.client.get(CONFIGMAPS, name, ConfigMap, namespace=namespace)
            except ApiError as error:
                if error.forbidden:
                    self.notes[f"ConfigMap {namespace}/{name}"] = "not allowed to read it"
                elif not error.not_found:
                    raise
                break
            found[shard.metadata.key] = shard.data or {}
        return found

    async def _readings(self, *, wanted: bool) -> Readings:
        if self.prometheus is None or not wanted:
            return Readings()
        found = await read_all(self.prometheus)
        if found.error:
            self.notes["Prometheus"] = found.error
        return found


class NotFoundError(KubekitError):
    """What the user named does not exist."""
