"""Reconciles NetworkTopologies: reads samples, writes the weight NetperfCosts and the status.

`decision.decide` is pure; `_execute` writes the differences. The state between decisions (smoothing, last good values) may be lost:
it is rebuilt from samples and from the costs that were written last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.crds import FIELD_MANAGER, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.cluster.membership import Membership, is_consent_unchanged, is_spec_unchanged
from controller.cluster.pods import Pod
from controller.cluster.status_writing import delay_after_failed_write, report_conditions, write_status
from controller.cluster.zones import ZoneMap, build_zone_map, is_location_unchanged
from controller.topology import bandwidth, status
from controller.topology.config import TopologyConfig
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide
from controller.topology.metrics import TopologyMetrics
from controller.topology.planner import ProbePlanner
from controller.topology.results import ObjectName
from controller.topology.weights import build_weight, patch_topology
from kubekit import logs
from kubekit.client import JSON_PATCH, Client
from kubekit.errors import ApiError
from kubekit.events import EventRecorder, reference_to
from kubekit.fence import boot_clock
from kubekit.patches import Operation
from kubekit.runtime import supervise
from kubekit.waiting import CooperativeYield
from kubekit.wire import CONFIGMAPS, Condition, ConfigMap, Node, Object
from kubekit.workqueue import WorkQueue
from netperf.cost_state import CostState
from netperf.latencies import ZonePair
from netperf.sample import NodeLocation

log = logs.get("controller.topology")

PLAN_RETRY_S = 0.2
"""Interval of checks for the first plan."""
LEAST_DEBOUNCE_S = 0.1
DEBOUNCES_PER_ROUND = 60
"""Debounce as a part of a probing round, since each pair has one sample per round."""
RESYNC_S = 15.0
"""Longest time between two decisions, because measurements age without events."""
ALL = "*"
"""Key of the queue for all topologies."""


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
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._cache, self._config, self._recorder = client, cache, config, recorder
        self._clock, self._wall = clock, wall
        self._defaults = config.policy()
        self._queue = WorkQueue()
        self.planner = ProbePlanner(client, cache, config, registry, clock=clock, wall=wall)
        self._metrics = TopologyMetrics(registry)
        self._states: dict[str, CostState] = {}
        self._earlier_states: dict[str, CostState] = {}
        self._unwritten_change: set[str] = set()
        self._status_written_at: dict[str, float] = {}
        self._cached_zone_map: ZoneMap | None = None
        self._node_changes = self._placement_changes = 0
        self._allocated: Mapping[ZonePair, int] | None = None
        self._membership = membership
        cache.topologies.subscribe(lambda key, _old, _new: self._enqueue(key))
        cache.nodes.subscribe(self._node_changed)
        cache.results.subscribe(self._result_changed)
        cache.app_groups.subscribe(self._group_changed)
        cache.namespaces.subscribe(self._namespace_changed)
        cache.group_pods.subscribe(self._pod_changed)

    def _enqueue(self, key: str) -> None:
        self._queue.add_after(key, max(LEAST_DEBOUNCE_S, self.planner.interval_s / DEBOUNCES_PER_ROUND))

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if not is_location_unchanged(old, new):
            self._cached_zone_map = None
            self._node_changes += 1
            self._placement_changed()

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or _placement_key(old) != _placement_key(new):
            self._placement_changed()

    def _group_changed(self, _key: str, old: AppGroup | None, new: AppGroup | None) -> None:
        if not is_spec_unchanged(old, new):
            self._placement_changed()

    def _namespace_changed(self, _key: str, old: Object | None, new: Object | None) -> None:
        if not is_consent_unchanged(old, new):
            self._placement_changed()

    def _placement_changed(self) -> None:
        self._allocated = None
        self._placement_changes += 1
        self._enqueue(ALL)

    def _result_changed(self, name: str, _old: ConfigMap | None, _new: ConfigMap | None) -> None:
        for key, topology in self._cache.topologies.items.items():
            if name in map(str, self.planner.result_objects(topology)):
                self._enqueue(key)

    async def run(self) -> None:
        """Reconcile topologies and the probe plan until cancelled."""
        # Another replica may have led since then, so only the age of costs is taken from earlier states.
        self._earlier_states |= self._states
        self._states.clear()
        self._unwritten_change.clear()
        self._metrics.decisions.clear()
        self._queue.add(ALL)
        try:
            await supervise(
                {
                    "planner": self.planner.run(),
                    "topologies": self._queue.work(self._reconcile, name="topology"),
                }
            )
        finally:
            self._metrics.decisions.clear()

    async def _reconcile(self, key: str) -> float | None:
        if key == ALL:
            for topology_key in self._cache.topologies.items:
                self._queue.add(topology_key)
            return None
        topology = self._cache.topologies.get(key)
        managed = self._config.namespaces
        if topology is None or (managed and topology.metadata.namespace not in managed):
            self._forget(key)
            return None
        # Wait for the plan, because without it results of unplanned pairs would be trusted.
        if self.planner.expected_keys is None:
            return PLAN_RETRY_S
        snapshot = await self._read(topology)
        # In a thread: a decision for 100 zones takes long, and the leader must renew its lease.
        decision, operations = await asyncio.to_thread(
            self._evaluate,
            snapshot,
            self._states.get(key),
            earlier=self._earlier_states.get(key),
            now_s=self._clock(),
            wall_s=self._wall(),
        )
        self._states[key] = decision.state
        try:
            await self._execute(key, snapshot.topology, decision, operations)
        except ApiError as error:
            return delay_after_failed_write(error, key, self._cache.topologies)
        return min(RESYNC_S, self.planner.interval_s / 4)

    def _evaluate(
        self,
        snapshot: TopologySnapshot,
        state: CostState | None,
        *,
        earlier: CostState | None,
        now_s: float,
        wall_s: float,
    ) -> tuple[TopologyDecision, list[Operation] | None]:
        """The decision, and the patch of the object if its weight or latencies change. Runs in a thread."""
        decision = decide(snapshot, state, self._defaults, now_s=now_s, wall_s=wall_s, earlier=earlier)
        weight = build_weight(decision.table, decision.bandwidths)
        return decision, patch_topology(snapshot.topology, weight, decision.latencies)

    def _forget(self, key: str) -> None:
        self._states.pop(key, None)
        self._earlier_states.pop(key, None)
        self._status_written_at.pop(key, None)
        self._unwritten_change.discard(key)
        self._metrics.decisions.pop(key, None)

    async def _read_results(self, name: ObjectName) -> Mapping[str, str] | None:
        """The data of a ConfigMap; None if it cannot be read. A store has only those of netaware's namespace."""
        if name.namespace == self._cache.netaware_namespace:
            configmap = self._cache.results.get(str(name))
            return None if configmap is None else configmap.data or {}
        try:
            return (await self._client.get(CONFIGMAPS, name.name, ConfigMap, namespace=name.namespace)).data or {}
        except ApiError:
            return None

    async def _zone_map(self) -> ZoneMap:
        """Zones and locations of nodes; computed in a thread after nodes changed."""
        if self._cached_zone_map is not None:
            return self._cached_zone_map
        changes = self._node_changes
        zone_map = await asyncio.to_thread(build_zone_map, tuple(self._cache.nodes))
        if changes == self._node_changes:
            self._cached_zone_map = zone_map
        return zone_map

    async def _compute_allocations(self, locations: Mapping[str, NodeLocation]) -> Mapping[ZonePair, int]:
        """Allocated bits per second by zone pair; computed in a thread after pods or AppGroups changed."""
        if self._allocated is not None:
            return self._allocated
        changes, maybe_yield = self._placement_changes, CooperativeYield()
        for key in tuple(self._membership.groups):
            if key in self._membership.groups:
                self._membership.graph(key)  # Fills the cache of graphs, which the copy shares.
            await maybe_yield()
        groups, pods = self._membership.copy(), tuple(self._cache.group_pods)
        allocated = await asyncio.to_thread(bandwidth.compute_allocations, groups, pods, locations)
        if changes == self._placement_changes:
            self._allocated = allocated
        return allocated

    async def _read(self, topology: NetworkTopology) -> TopologySnapshot:
        zone_map = await self._zone_map()
        allocated = await self._compute_allocations(zone_map.locations)
        names = self.planner.result_objects(topology)
        results = {str(name): data for name in names if (data := await self._read_results(name)) is not None}
        named = ObjectName(topology.metadata.namespace, topology.spec.configmap_name)
        return TopologySnapshot(
            topology=topology,
            zone_map=zone_map,
            results=results,
            missing=() if results else (str(named),),
            allocated=allocated,
            interval_s=self.planner.interval_s,
            expected=self.planner.expected_keys,
        )

    async def _execute(
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
            self._unwritten_change.add(key)
            self._metrics.writes.labels("weights").inc()
            log.info(
                "costs written",
                topology=key,
                pairs=len(decision.table.by_zone_pair),
                absent=len(decision.table.absent_pairs),
            )
        self._metrics.decisions[key] = decision
        conditions = status.conditions_of(
            decision.counts, decision.table, decision.faults, topology.metadata.generation
        )
        await self._write_status(key, topology, conditions)

    async def _write_status(self, key: str, topology: NetworkTopology, conditions: list[Condition]) -> None:
        """Write the status if it changed; a change of nodeCount alone may wait."""
        before = topology.status
        desired = status.build_status(
            before,
            conditions,
            node_count=len(self._cache.nodes),
            generation=topology.metadata.generation,
            weights_changed=key in self._unwritten_change,
            now=self._wall(),
        )
        since_last_write_s = self._clock() - self._status_written_at.get(key, float("-inf"))
        if not status.needs_write(before, desired, since_last_write_s=since_last_write_s):
            self._unwritten_change.discard(key)
            return
        written = await write_status(self._client, NETWORK_TOPOLOGIES, topology, desired, count_field="nodeCount")
        if written is not None:
            self._status_written_at[key] = self._clock()
            self._metrics.writes.labels("status").inc()
        self._unwritten_change.discard(key)
        about = reference_to(NETWORK_TOPOLOGIES, topology.metadata)
        report_conditions(
            self._recorder, about, before.conditions, desired.conditions, is_bad=status.is_bad, action="Measure"
        )


def _placement_key(pod: Pod) -> tuple[object, ...]:
    return pod.is_bound, pod.spec.node_name, pod.metadata.labels
