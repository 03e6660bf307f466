"""Reads snapshots of the cluster from the manager's stores, for the page and for Events of findings."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping

import msgspec

from controller.cluster.cluster_cache import ClusterCache
from controller.diagnosis.control_plane import ControlPlaneStatus, read_control_plane
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.config import SchedulerConfig
from controller.topology.results_names import list_results_names
from kubekit.client import Client
from kubekit.wire import ConfigMap
from netperf.plans import ZonePlan, decode_plan
from netperf.policy import CostPolicy
from netperf.refusals import PlanRefusedError

STATUS_INTERVAL_S = 10.0
"""Time between readings of the control plane's status, which are requests to the API server."""
STATUS_TIMEOUT_S = 5.0


class SnapshotReader:
    """Copies the stores to snapshots, and adds the control plane's status.

    Args:
        client: reads the Lease and the pods of netaware's programs, which no store keeps.
        namespace: where netaware is installed.
        policy: the default cost policy.
    """

    def __init__(
        self, cache: ClusterCache, client: Client, namespace: str, *, policy: CostPolicy, scheduler: SchedulerConfig
    ) -> None:
        self._cache, self._namespace = cache, namespace
        self._client, self._policy, self._scheduler = client, policy, scheduler
        # A status without Lease and pods, for findings before the API server has answered.
        self._status = ControlPlaneStatus(is_lease_conclusive=False)
        self._next_status_read_at = float("-inf")

    async def read(self, now_s: float) -> ClusterSnapshot:
        """The snapshot at ``now_s``, without the agents' verdicts and without prices.

        The control plane's status is at most `STATUS_INTERVAL_S` old. If the API server does not answer in time, the previous status stays.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                if time.monotonic() >= self._next_status_read_at:
                    self._status = await self._read_status()
                    self._next_status_read_at = time.monotonic() + STATUS_INTERVAL_S
        # In a thread, because plans of many zones take long to decode.
        plans = await asyncio.to_thread(_decode_plans, tuple(self._cache.plans))
        cache = self._cache
        return ClusterSnapshot(
            now_s=now_s,
            netaware_namespace=self._namespace,
            nodes=tuple(cache.nodes),
            topologies=tuple(cache.topologies),
            groups=tuple(cache.app_groups),
            namespaces=tuple(cache.namespaces),
            pods=tuple(cache.group_pods),
            bandwidth_pods=tuple(cache.pods),
            agent_pods=tuple(cache.agent_pods),
            results=self._read_results(plans),
            plans=plans,
            services=tuple(cache.services),
            policy=self._policy,
            scheduler=self._scheduler,
            control_plane=self._status,
        )

    async def _read_status(self) -> ControlPlaneStatus:
        topologies, unsynced = self._cache.topologies, self._cache.describe_unsynced()
        status = ControlPlaneStatus(
            # A store that is ready but not synced belongs to a kind without a CustomResourceDefinition.
            is_installed=topologies.synced.is_set() or not topologies.ready.is_set(),
            failed_checks=(f"not listed yet: {unsynced}",) if unsynced else (),
        )
        status = await read_control_plane(self._client, self._namespace, status)
        # Without leader election there is no Lease, and this controller does the leader's work.
        return msgspec.structs.replace(
            status, is_lease_conclusive=status.is_lease_conclusive and status.lease is not None
        )

    def _read_results(self, plans: Iterable[ZonePlan]) -> dict[str, Mapping[str, str]]:
        """Data of the results ConfigMaps by ``namespace/name``."""
        names = map(str, list_results_names(self._cache.topologies, plans, self._namespace, len(self._cache.plans)))
        config_maps = {name: self._cache.results.get(name) for name in names}
        return {name: config_map.data or {} for name, config_map in config_maps.items() if config_map is not None}


def _decode_plans(config_maps: Iterable[ConfigMap]) -> tuple[ZonePlan, ...]:
    """The well-formed plans. The controller that writes plans reports malformed ones."""
    plans = []
    for config_map in config_maps:
        with contextlib.suppress(PlanRefusedError):
            plans.append(decode_plan(config_map.data).plan)
    return tuple(plans)
