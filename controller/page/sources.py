"""Builds the page's snapshots from the manager's stores."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping

import msgspec

from controller.cluster.caches import Caches
from controller.diagnosis.reading import read_control_plane
from controller.diagnosis.snapshot import ClusterSnapshot, ControlPlaneStatus
from controller.scheduler.config import SchedulerConfig
from controller.topology.results import results_of
from kubekit.client import Client
from kubekit.wire import ConfigMap
from netperf.errors import PlanRefusedError
from netperf.plans import ZonePlan, decode_plan
from netperf.policy import CostPolicy

READING_INTERVAL_S, READING_TIMEOUT_S = 10.0, 5.0


class Sources:
    """Builds snapshots from the manager's caches.

    Args:
        caches: the manager's.
        client: reads the Lease and our programs' pods, which no store keeps.
        namespace: the one that netaware lives in.
        policy: the controller's default cost policy.
        scheduler: the scheduler's configuration: costs to show, the gates' limits, the schedulers' names.
    """

    def __init__(
        self,
        caches: Caches,
        client: Client,
        namespace: str,
        *,
        policy: CostPolicy,
        scheduler: SchedulerConfig,
    ) -> None:
        self._caches, self._namespace = caches, namespace
        self._client, self._policy, self._scheduler = client, policy, scheduler
        self._status: ControlPlaneStatus | None = None
        self._status_until = float("-inf")

    async def snapshot(self, now_s: float) -> ClusterSnapshot:
        """The snapshot now; the state of our own programs may be some seconds old, or missing if it cannot be read in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READING_TIMEOUT_S):
                if time.monotonic() >= self._status_until:
                    self._status = await self._read_status()
                    self._status_until = time.monotonic() + READING_INTERVAL_S
        # The plans of a hundred zones take a tenth of a second to decode.
        plans = await asyncio.to_thread(_decode, tuple(self._caches.plans))
        caches = self._caches
        return ClusterSnapshot(
            now_s=now_s,
            home=self._namespace,
            nodes=tuple(caches.nodes),
            topologies=tuple(caches.topologies),
            groups=tuple(caches.app_groups),
            namespaces=tuple(caches.namespaces),
            pods=tuple(caches.group_pods),
            bandwidth_pods=tuple(caches.pods),
            agent_pods=tuple(caches.agent_pods),
            results=self._results(plans),
            plans=plans,
            services=tuple(caches.services),
            policy=self._policy,
            scheduler=self._scheduler,
            control_plane=self._status,
        )

    async def _read_status(self) -> ControlPlaneStatus:
        """The state of our own programs now."""
        topologies, problems = self._caches.topologies, self._caches.unsynced()
        status = await read_control_plane(
            self._client,
            self._namespace,
            installed=topologies.synced.is_set() or not topologies.ready.is_set(),
            complaints=(f"not listed yet: {problems}",) if problems else (),
        )
        # A controller without leader election has no Lease, and it is the one that serves the page.
        return msgspec.structs.replace(status, lease_known=status.lease_known and status.lease is not None)

    def _results(self, plans: Iterable[ZonePlan]) -> dict[str, Mapping[str, str]]:
        names = map(str, results_of(self._caches.topologies, plans, self._namespace, len(self._caches.plans)))
        return {name: found.data or {} for name in names if (found := self._caches.results.get(name)) is not None}


def _decode(objects: Iterable[ConfigMap]) -> tuple[ZonePlan, ...]:
    """Plans; one that cannot be read is left out, and its writer reports it."""
    plans = []
    for found in objects:
        with contextlib.suppress(PlanRefusedError):
            plans.append(decode_plan(found.data).plan)
    return tuple(plans)
