"""Where the page's snapshots come from: the manager's mirrors. A viewer opens no watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

from controller.cluster.caches import Caches
from controller.diagnosis.reading import read_control_plane
from controller.diagnosis.readings import read_all
from controller.diagnosis.snapshot import ClusterSnapshot, ControlPlaneStatus, Readings
from controller.prometheus import PrometheusClient
from controller.scheduler.config import SchedulerConfig
from controller.topology.results import ObjectName, ResultsMirror, results_named_by, results_of_agents
from controller.traffic.prices import PriceTable
from kubekit.client import Client
from kubekit.reflector import HasMetadata
from kubekit.wire import ConfigMap
from netperf.contract import RESULTS_NAME
from netperf.errors import PlanRefusedError
from netperf.plans import ZonePlan, decode_plan
from netperf.policy import CostPolicy

READINGS_INTERVAL_S = 15.0
STATUS_INTERVAL_S = 10.0
SETTLE_TIMEOUT_S = 5.0


class Sources:
    """Snapshots of now.

    Args:
        caches: the manager's.
        results: the manager's mirror of results.
        client: reads the Lease and our programs' pods, which no mirror keeps as they are, while somebody looks.
        namespace: the one that netaware lives in.
        policy: the controller's default cost policy.
        scheduler: for which costs to show, how long gates stay shut, and who asks us.
        changed: called after every change of anything that is shown.
        prices: of bytes between zones; None where nobody configured any.
    """

    def __init__(
        self,
        caches: Caches,
        results: ResultsMirror,
        client: Client,
        namespace: str,
        *,
        policy: CostPolicy,
        scheduler: SchedulerConfig,
        changed: Callable[[], None],
        prices: PriceTable | None = None,
    ) -> None:
        self._caches, self._namespace = caches, namespace
        self._client, self._policy, self._scheduler = client, policy, scheduler
        self._changed, self._running, self._results_changed = changed, asyncio.Event(), asyncio.Event()
        self._readings, self._prices = Readings(), prices
        self._decoded: dict[str, tuple[str, ZonePlan | None]] = {}
        self._status: ControlPlaneStatus | None = None
        self._results = results
        results.subscribe(self._notify_of_results)
        for mirror in (caches.pods, caches.app_groups, caches.topologies, caches.plans):
            mirror.subscribe(self._notify)
        # A node's heartbeat changes nothing that is shown; what does is picked up by the regular refresh.
        caches.nodes.subscribe(self._notify_of_node)

    def _notify(self, key: str, old: object, new: object) -> None:  # noqa: ARG002
        self._changed()

    def _notify_of_results(self, _: ObjectName) -> None:
        self._results_changed.set()
        self._changed()

    def _notify_of_node(self, key: str, old: HasMetadata | None, new: HasMetadata | None) -> None:  # noqa: ARG002
        if old is None or new is None or old.metadata.annotations != new.metadata.annotations:
            self._changed()

    async def run(self, prometheus: PrometheusClient | None) -> None:
        """Follow which results are shown, and ask Prometheus, until cancelled; what it said is forgotten then."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_topologies())
                group.create_task(self._follow_status())
                if prometheus is not None:
                    group.create_task(self._ask(prometheus))
                self._running.set()
        finally:
            self._running.clear()
            self._readings, self._status = Readings(), None
            self._results.want("page", ())

    async def settle(self) -> None:
        """Wait until the mirrors have listed once, but not for ever: what cannot be read is shown as missing."""
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._running.wait()
                await self._caches.pods.settled.wait()
                while not self._results.is_known(ObjectName(self._namespace, RESULTS_NAME)):
                    self._results_changed.clear()
                    await self._results_changed.wait()
        except TimeoutError:
            pass

    async def _follow_topologies(self) -> None:
        """Say which results are shown; which they are changes rarely."""
        while True:
            self._results.want("page", self._wanted(await self._plans()))
            await asyncio.sleep(2.0)

    def _wanted(self, plans: Iterable[ZonePlan]) -> frozenset[ObjectName]:
        home, zones = self._namespace, len(self._caches.plans)
        named = (name for t in self._caches.topologies for name in results_named_by(t, home, zones))
        return frozenset((*results_of_agents(home, RESULTS_NAME, zones, plans), *named))

    async def _follow_status(self) -> None:
        while True:
            before, self._status = self._status, await self.read_status()
            # A Lease that is renewed is no news; one that is not is seen at the next regular refresh.
            if before is None or _without_times(before) != _without_times(self._status):
                self._changed()
            await asyncio.sleep(STATUS_INTERVAL_S)

    async def look(self, now_s: float) -> ClusterSnapshot:
        """The same as `snapshot`, with how our programs fare at this moment, also while nobody looks at the page."""
        status = await self.read_status()
        return msgspec.structs.replace(await self.snapshot(now_s), control_plane=status)

    async def read_status(self) -> ControlPlaneStatus:
        """The state of our own programs now."""
        topologies, problems = self._caches.topologies, self._caches.problems()
        status = await read_control_plane(
            self._client,
            self._namespace,
            installed=topologies.synced.is_set() or not topologies.settled.is_set(),
            complaints=(f"not listed yet: {problems}",) if problems else (),
        )
        # A controller without leader election has no Lease, and it is the one that serves the page.
        return msgspec.structs.replace(status, lease_known=status.lease_known and status.lease is not None)

    async def _ask(self, prometheus: PrometheusClient) -> None:
        while True:
            self._readings = await read_all(prometheus)
            self._changed()
            await asyncio.sleep(READINGS_INTERVAL_S)

    async def _plans(self) -> tuple[ZonePlan, ...]:
        """The plans in force. Those of a hundred zones take a tenth of a second to decode: once each, and in a thread."""
        objects = tuple(self._caches.plans)
        versions = {found.metadata.name: found.metadata.resource_version for found in objects}
        known = self._decoded
        if versions != {name: version for name, (version, _) in known.items()}:
            known = self._decoded = await asyncio.to_thread(_decode, objects, known)
        return tuple(plan for _, plan in known.values() if plan is not None)

    async def snapshot(self, now_s: float) -> ClusterSnapshot:
        """Everything as it is mirrored now."""
        plans = await self._plans()
        return ClusterSnapshot(
            now_s=now_s,
            home=self._namespace,
            nodes=tuple(self._caches.nodes),
            topologies=tuple(self._caches.topologies),
            groups=tuple(self._caches.app_groups),
            namespaces=tuple(self._caches.namespaces),
            pods=tuple(self._caches.group_pods),
            bandwidth_pods=tuple(self._caches.pods),
            agent_pods=tuple(self._caches.agent_pods),
            results={str(n): data for n in self._wanted(plans) if (data := self._results.data(n)) is not None},
            plans=plans,
            services=tuple(self._caches.services),
            policy=self._policy,
            scheduler=self._scheduler,
            readings=self._readings,
            prices=self._prices,
            control_plane=self._status,
        )


def _decode(
    objects: Iterable[ConfigMap], known: Mapping[str, tuple[str, ZonePlan | None]]
) -> dict[str, tuple[str, ZonePlan | None]]:
    """Plans by the object's name, with its version; None where it cannot be read: whoever writes plans reports this."""
    plans: dict[str, tuple[str, ZonePlan | None]] = {}
    for found in objects:
        name, version = found.metadata.name, found.metadata.resource_version
        before = known.get(name)
        if before is not None and before[0] == version:
            plans[name] = before
            continue
        try:
            plans[name] = version, decode_plan(found.data).plan
        except PlanRefusedError:
            plans[name] = version, None
    return plans


def _without_times(status: ControlPlaneStatus) -> ControlPlaneStatus:
    lease = status.lease
    return msgspec.structs.replace(status, lease=lease and msgspec.structs.replace(lease, renewed=None))
