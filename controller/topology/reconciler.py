"""Reconciles NetworkTopologies: reads samples, writes the weight NetperfCosts, the annotation with latencies, and the status.

The state between decisions (smoothing, last good values) may be lost: it is rebuilt from samples and from the costs written last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache, call_unless
from controller.cluster.crds import FIELD_MANAGER, NETWORK_TOPOLOGIES, NetworkTopology
from controller.cluster.membership import Membership, is_consent_unchanged, is_spec_unchanged
from controller.cluster.pods import Pod
from controller.cluster.statuses import StatusWriter, delay_after_failed_write
from controller.cluster.zones import ZoneMap, build_zone_map, is_location_unchanged
from controller.topology import bandwidth, status
from controller.topology.config import TopologyConfig
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide_topology
from controller.topology.metrics import TopologyMetrics
from controller.topology.planner import ProbePlanner
from controller.topology.results_names import ObjectName
from controller.topology.weights import build_topology_patch, build_weight
from kubekit import logs
from kubekit.client import JSON_PATCH, Client
from kubekit.errors import ApiError
from kubekit.events import EventRecorder
from kubekit.fence import boot_clock
from kubekit.patches import Operation
from kubekit.runtime import supervise
from kubekit.waiting import CooperativeYield
from kubekit.wire import CONFIGMAPS, Condition, ConfigMap
from kubekit.workqueue import WorkQueue
from netperf.cost_state import CostState
from netperf.latencies import ZonePair
from netperf.sample import NodeLocation

log = logs.get("controller.topology")

PLAN_RETRY_S = 0.2
"""Interval of checks for the first probe plan."""
MIN_DEBOUNCE_S = 0.1  # with short rounds, as in tests
DEBOUNCES_PER_ROUND = 60
"""A decision waits a probing round divided by this after a change, because each pair has one sample per round."""
RESYNC_S = 15.0
"""Longest time between two decisions, because measurements age without events."""
ALL = "*"
"""Key of the queue for all NetworkTopologies."""


class TopologyController:
    """Reconciles every NetworkTopology in the configured namespaces, and runs the probe planner."""

    def __init__(
        self,
        client: Client,
        cache: ClusterCache,
        config: TopologyConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        membership: Membership,
    ) -> None:
        self._client, self._cache, self._config = client, cache, config
        self._defaults = config.resolve_cost_policy()
        self._status_writer = StatusWriter(
            client, recorder, NETWORK_TOPOLOGIES, count_field="nodeCount", action="Measure", is_bad=status.is_bad
        )
        self._queue = WorkQueue()
        self.planner = ProbePlanner(client, cache, config, registry)
        self._metrics = TopologyMetrics(registry)
        # By key of a NetworkTopology: the state of its costs, that of an earlier leadership, and when its status was written.
        self._states: dict[str, CostState] = {}
        self._earlier_states: dict[str, CostState] = {}
        self._status_written_at: dict[str, float] = {}
        self._keys_with_new_weight: set[str] = set()
        # Empty or one value. A change replaces the list, so that a value which a thread computes from the state before is not kept.
        self._cached_zone_maps: list[ZoneMap] = []
        self._cached_allocations: list[Mapping[ZonePair, int]] = []
        self._membership = membership
        cache.topologies.subscribe(lambda key, _old, _new: self._enqueue(key))
        cache.nodes.subscribe(call_unless(is_location_unchanged, self._on_location_change))
        cache.results.subscribe(self._on_results_change)
        cache.app_groups.subscribe(call_unless(is_spec_unchanged, self._on_placement_change))
        cache.namespaces.subscribe(call_unless(is_consent_unchanged, self._on_placement_change))
        cache.group_pods.subscribe(call_unless(_is_placement_unchanged, self._on_placement_change))

    def _enqueue(self, key: str) -> None:
        self._queue.add_after(key, max(MIN_DEBOUNCE_S, self.planner.interval_s / DEBOUNCES_PER_ROUND))

    def _on_location_change(self) -> None:
        self._cached_zone_maps = []
        self._on_placement_change()

    def _on_placement_change(self) -> None:
        self._cached_allocations = []
        self._enqueue(ALL)

    def _on_results_change(self, name: str, _old: ConfigMap | None, _new: ConfigMap | None) -> None:
        for key, topology in self._cache.topologies.items.items():
            if name in map(str, self.planner.list_results_names(topology)):
                self._enqueue(key)

    async def run(self) -> None:
        """Reconcile topologies and the probe plan until cancelled."""
        # Another replica may have led meanwhile, so only the age of costs is taken from the states of an earlier leadership.
        self._earlier_states |= self._states
        self._states.clear()
        self._keys_with_new_weight.clear()
        self._metrics.decisions.clear()
        self._queue.add(ALL)
        try:
            topologies = self._queue.work(self._reconcile, name="topology")
            await supervise({"planner": self.planner.run(), "topologies": topologies})
        finally:
            self._metrics.decisions.clear()

    async def _reconcile(self, key: str) -> float | None:
        if key == ALL:
            for topology_key in self._cache.topologies.items:
                self._queue.add(topology_key)
            return None
        topology = self._cache.topologies.get(key)
        namespaces = self._config.namespaces
        if topology is None or (namespaces and topology.metadata.namespace not in namespaces):
            self._forget(key)
            return None
        # Without the probe plan, results of unplanned pairs would be trusted.
        if self.planner.expected_keys is None:
            return PLAN_RETRY_S
        snapshot = await self._read_snapshot(topology)
        # In a thread: a decision for 100 zones takes long, and the leader must renew its lease.
        decision, operations = await asyncio.to_thread(self._decide, key, snapshot, boot_clock(), time.time())
        self._states[key] = decision.state
        try:
            await self._write_decision(key, snapshot.topology, decision, operations)
        except ApiError as error:
            return delay_after_failed_write(error, key, self._cache.topologies)
        return min(RESYNC_S, self.planner.interval_s / 4)

    def _decide(
        self, key: str, snapshot: TopologySnapshot, now_s: float, wall_s: float
    ) -> tuple[TopologyDecision, list[Operation] | None]:
        """The decision, and the patch of the NetworkTopology; None if its weight and latencies stay. Runs in a thread."""
        state, earlier_state = self._states.get(key), self._earlier_states.get(key)
        decision = decide_topology(
            snapshot, state, self._defaults, now_s=now_s, wall_s=wall_s, earlier_state=earlier_state
        )
        weight = build_weight(decision.costs, decision.zone_bandwidths, decision.region_bandwidths)
        return decision, build_topology_patch(snapshot.topology, weight, decision.latencies)

    def _forget(self, key: str) -> None:
        self._states.pop(key, None)
        self._earlier_states.pop(key, None)
        self._status_written_at.pop(key, None)
        self._keys_with_new_weight.discard(key)
        self._metrics.decisions.pop(key, None)

    async def _read_results(self, name: ObjectName) -> Mapping[str, str] | None:
        """The data of a results ConfigMap; None if it cannot be read. Those of other namespaces are in no store."""
        if name.namespace == self._cache.netaware_namespace:
            configmap = self._cache.results.get(str(name))
            return None if configmap is None else configmap.data or {}
        try:
            return (await self._client.get(CONFIGMAPS, name.name, ConfigMap, namespace=name.namespace)).data or {}
        except ApiError:
            return None

    async def _compute_zone_map(self) -> ZoneMap:
        """Zones and locations of nodes, computed in a thread; cached until they change."""
        # Again if they have changed meanwhile, because allocations with outdated locations would be cached.
        while not (cached := self._cached_zone_maps):
            cached.append(await asyncio.to_thread(build_zone_map, tuple(self._cache.nodes)))
        return cached[0]

    async def _compute_allocations(self, locations: Mapping[str, NodeLocation]) -> Mapping[ZonePair, int]:
        """Allocated bits per second by zone pair, computed in a thread; cached until pods, nodes, AppGroups or namespaces change."""
        cached = self._cached_allocations
        if cached:
            return cached[0]
        maybe_yield = CooperativeYield()
        for key in tuple(self._membership.groups):
            if key in self._membership.groups:
                self._membership.graph(key)  # Builds the graph, which the copy shares.
            await maybe_yield()
        membership, pods = self._membership.copy(), tuple(self._cache.group_pods)
        cached.append(await asyncio.to_thread(bandwidth.compute_allocations, membership, pods, locations))
        return cached[0]

    async def _read_snapshot(self, topology: NetworkTopology) -> TopologySnapshot:
        zone_map = await self._compute_zone_map()
        allocations = await self._compute_allocations(zone_map.location_by_node)
        names = self.planner.list_results_names(topology)
        data_by_configmap = {str(name): data for name in names if (data := await self._read_results(name)) is not None}
        return TopologySnapshot(
            topology=topology,
            zone_map=zone_map,
            data_by_configmap=data_by_configmap,
            allocated_bps=allocations,
            interval_s=self.planner.interval_s,
            expected_keys=self.planner.expected_keys,
        )

    async def _write_decision(
        self, key: str, topology: NetworkTopology, decision: TopologyDecision, operations: list[Operation] | None
    ) -> None:
        if operations is not None:
            topology = await self._client.patch(
                NETWORK_TOPOLOGIES,
                topology.metadata.name,
                operations,
                NetworkTopology,
                patch_type=JSON_PATCH,
                namespace=topology.metadata.namespace,
                field_manager=FIELD_MANAGER,
            )
            self._keys_with_new_weight.add(key)
            self._metrics.writes.labels("weights").inc()
            costs = decision.costs
            log.info("costs written", topology=key, pairs=len(costs.by_zone_pair), absent=len(costs.absent_pairs))
        self._metrics.decisions[key] = decision
        conditions = status.build_conditions(
            decision.pairs_by_basis, decision.costs, decision.faults, topology.metadata.generation
        )
        await self._write_status(key, topology, conditions)

    async def _write_status(self, key: str, topology: NetworkTopology, conditions: list[Condition]) -> None:
        """Write the status if it changed; a change of nodeCount alone may wait."""
        desired = status.build_status(
            topology.status,
            conditions,
            node_count=len(self._cache.nodes),
            generation=topology.metadata.generation,
            has_written_weight=key in self._keys_with_new_weight,
            now=time.time(),
        )
        since_last_write_s = boot_clock() - self._status_written_at.get(key, float("-inf"))
        needs_write = status.needs_write(topology.status, desired, since_last_write_s=since_last_write_s)
        if needs_write and await self._status_writer.write(topology, desired):
            self._status_written_at[key] = boot_clock()
            self._metrics.writes.labels("status").inc()
        self._keys_with_new_weight.discard(key)


def _is_placement_unchanged(old: Pod | None, new: Pod | None) -> bool:
    """Whether two versions of a pod are equal in the fields that allocations depend on."""
    if old is None or new is None:
        return False
    is_location_equal = (old.is_bound, old.spec.node_name) == (new.is_bound, new.spec.node_name)
    return is_location_equal and old.metadata.labels == new.metadata.labels
