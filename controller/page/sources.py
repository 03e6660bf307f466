"""Where the page's snapshots come from: the manager's mirrors, and a few of its own that run while somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from controller.caches import Caches
from controller.prometheus import PrometheusClient
from controller.scheduler.config import NetworkOverheadArgs
from controller.topology.results import ObjectName, ResultsMirror
from controller.views.readings import read_all
from controller.views.snapshot import BandwidthPod, Readings, Snapshot
from kubekit.client import Client
from kubekit.reflector import HasMetadata, Reflector
from kubekit.wire import PODS
from netperf.errors import PlanRefusedError
from netperf.plans import ZonePlan, decode_plan
from netperf.policy import CostPolicy
from netperf.results import ZONES_PER_SHARD, shard_name

READINGS_INTERVAL_S = 15.0
SETTLE_TIMEOUT_S = 5.0
RESULTS_NAME = "netperf-metrics"


class Sources:
    """Snapshots of now.

    Args:
        client: for the page's own mirrors.
        caches: the manager's.
        namespace: the one that netaware lives in.
        policy: the controller's default cost policy.
        rules: the scheduler's, for which costs to show.
        changed: called after every change of anything that is shown.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        namespace: str,
        *,
        policy: CostPolicy,
        rules: NetworkOverheadArgs,
        changed: Callable[[], None],
    ) -> None:
        self._client, self._caches, self._namespace = client, caches, namespace
        self._policy, self._rules = policy, rules
        self._changed, self._running, self._results_changed = changed, asyncio.Event(), asyncio.Event()
        self._readings = Readings()
        self._results, self._pods = self._mirrors()
        for mirror in (caches.group_pods, caches.agent_pods, caches.app_groups, caches.topologies, caches.plans):
            mirror.subscribe(self._notify)
        # A node's heartbeat changes nothing that is shown; what does is picked up by the regular refresh.
        caches.nodes.subscribe(self._notify_of_node)

    def _mirrors(self) -> tuple[ResultsMirror, Reflector[BandwidthPod]]:
        results = ResultsMirror(self._client, self._notify_of_results)
        pods = Reflector(self._client, PODS, BandwidthPod)
        pods.subscribe(self._notify)
        return results, pods

    def _notify(self, key: str, old: HasMetadata | None, new: HasMetadata | None) -> None:  # noqa: ARG002
        self._changed()

    def _notify_of_results(self, _: ObjectName) -> None:
        self._results_changed.set()
        self._changed()

    def _notify_of_node(self, key: str, old: HasMetadata | None, new: HasMetadata | None) -> None:  # noqa: ARG002
        if old is None or new is None or old.metadata.annotations != new.metadata.annotations:
            self._changed()

    async def run(self, prometheus: PrometheusClient | None) -> None:
        """Mirror until cancelled; what was mirrored is forgotten then."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._results.run())
                group.create_task(self._pods.run())
                group.create_task(self._follow_topologies())
                if prometheus is not None:
                    group.create_task(self._ask(prometheus))
                self._running.set()
        finally:
            self._running.clear()
            self._readings = Readings()
            self._results, self._pods = self._mirrors()

    async def settle(self) -> None:
        """Wait until the mirrors have listed once, but not for ever: what cannot be read is shown as missing."""
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._running.wait()
                await self._pods.settled.wait()
                while not self._results.is_known(ObjectName(self._namespace, RESULTS_NAME)):
                    self._results_changed.clear()
                    await self._results_changed.wait()
        except TimeoutError:
            pass

    async def _follow_topologies(self) -> None:
        """Mirror the results ConfigMaps that exist by name; which they are changes rarely."""
        while True:
            self._results.want(self._wanted())
            await asyncio.sleep(2.0)

    def _wanted(self) -> Iterable[ObjectName]:
        shards = max(1, -(-len(self._caches.plans) // ZONES_PER_SHARD))
        bases = {ObjectName(self._namespace, RESULTS_NAME)}
        bases |= {ObjectName(self._namespace, plan.results) for plan in self._plans()}
        bases |= {
            ObjectName(t.metadata.namespace, t.spec.configmap_name)
            for t in self._caches.topologies
            if t.spec.configmap_name
        }
        return {ObjectName(base.namespace, shard_name(base.name, i)) for base in bases for i in range(shards)}

    async def _ask(self, prometheus: PrometheusClient) -> None:
        while True:
            self._readings = await read_all(prometheus)
            self._changed()
            await asyncio.sleep(READINGS_INTERVAL_S)

    def _plans(self) -> list[ZonePlan]:
        plans = []
        for found in self._caches.plans:
            try:
                plans.append(decode_plan(found.data).plan)
            except PlanRefusedError:
                # Whoever writes plans reports this; the page shows the plan as not there.
                continue
        return plans

    def snapshot(self, now_s: float) -> Snapshot:
        """Everything as it is mirrored now."""
        return Snapshot(
            now_s=now_s,
            home=self._namespace,
            nodes=tuple(self._caches.nodes),
            topologies=tuple(self._caches.topologies),
            groups=tuple(self._caches.app_groups),
            pods=tuple(self._caches.group_pods),
            bandwidth_pods=tuple(self._pods),
            agent_pods=tuple(self._caches.agent_pods),
            results={str(n): data for n in self._wanted() if (data := self._results.data(n)) is not None},
            plans=tuple(self._plans()),
            policy=self._policy,
            rules=self._rules,
            readings=self._readings,
        )
