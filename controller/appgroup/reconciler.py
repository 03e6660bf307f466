"""Keeps AppGroups: reads the spec, the pods and the costs; writes the status, and never the spec."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.appgroup.config import AppGroupConfig
from controller.appgroup.status import COMPLETE, CostLookup, Facts, Location, gather, plan_status
from controller.caches import Caches, OwnWrites
from controller.capabilities import Capabilities
from controller.resources import (
    APPGROUP_LABEL,
    APPGROUPS,
    FIELD_MANAGER,
    REGION_LABEL,
    ZONE_LABEL,
    AppGroup,
    NetworkTopology,
)
from controller.scheduler.config import NetworkOverheadArgs
from controller.statuses import announce, status_body, stored
from controller.topology.places import same_place
from kubekit.client import Client
from kubekit.conditions import news
from kubekit.errors import ApiError
from kubekit.events import EventRecorder, reference
from kubekit.wire import Condition, Node, Pod
from kubekit.workqueue import WorkQueue

NOT_YET_S = 0.2
ALL = "*"
"""Stands for every group in the queue: ten thousand nodes that appear at once must not queue each group as often."""


class AppGroupController:
    """Reconciles every AppGroup in the watched namespaces."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: AppGroupConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        namespace: str,
        rules: NetworkOverheadArgs,
        capabilities: Capabilities,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._caches, self._config, self._recorder = client, caches, config, recorder
        self._namespace, self._rules, self._capabilities, self._wall = namespace, rules, capabilities, wall
        self._queue = WorkQueue()
        self._own: OwnWrites[AppGroup] = OwnWrites(caches.app_groups)
        self._metrics = AppGroupMetrics(registry)
        self._locations: dict[str, Location] | None = None
        self._pods_of: dict[str, dict[str, Pod]] = defaultdict(dict)
        self._keys_of: dict[str, set[str]] = defaultdict(set)
        self._lookups: dict[str, tuple[str, CostLookup]] = {}
        self._last_conditions: dict[str, list[Condition]] = {}
        caches.app_groups.subscribe(self._group_changed)
        caches.group_pods.subscribe(self._pod_changed)
        caches.nodes.subscribe(self._node_changed)
        caches.topologies.subscribe(self._topology_changed)

    def _soon(self, key: str) -> None:
        self._queue.add_after(key, self._config.settle_s)

    def _group_changed(self, key: str, _old: AppGroup | None, new: AppGroup | None) -> None:
        name = key.rpartition("/")[2]
        if new is not None:
            self._keys_of[name].add(key)
        else:
            self._keys_of[name].discard(key)
        self._soon(key)

    def _pod_changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        for name in {pod.metadata.label(APPGROUP_LABEL) for pod in (old, new) if pod is not None}:
            # A pod names its group but not the group's namespace, which may be another one.
            self._pods_of[name].pop(key, None)
            if not self._pods_of[name]:
                del self._pods_of[name]
            for group in self._keys_of.get(name, ()):
                self._soon(group)
        if new is not None:
            self._pods_of[new.metadata.label(APPGROUP_LABEL)][key] = new

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if not same_place(old, new):
            self._locations = None
            self._soon(ALL)

    def _topology_changed(self, key: str, old: NetworkTopology | None, new: NetworkTopology | None) -> None:
        if old is None or new is None or old.spec.weights != new.spec.weights:
            self._lookups.pop(key, None)
            self._soon(ALL)

    async def run(self) -> None:
        """Keep the groups until cancelled."""
        self._own.forget()
        self._queue.add(ALL)
        try:
            await self._queue.work(self._reconcile, name="appgroup")
        finally:
            self._metrics.clear()

    async def _reconcile(self, key: str) -> float | None:
        if key == ALL:
            for group_key in self._caches.app_groups.items:
                self._queue.add(group_key)
            return None
        group = self._own.newest(key)
        if group is None or (self._config.namespaces and group.metadata.namespace not in self._config.namespaces):
            self._metrics.drop(key)
            self._last_conditions.pop(key, None)
            return None
        pods = self._pods_of.get(group.metadata.name, {}).values()
        facts = gather(group, pods, self._places(), self._costs(group))
        self._metrics.show(key, group, facts)
        try:
            await self._write_status(key, group, facts)
        except ApiError as error:
            if error.not_found:  # deleted while we were at it
                return None
            if error.conflict:  # somebody wrote it since: the mirror will have the new version in a moment
                return NOT_YET_S
            raise
        return self._config.resync_s

    def _places(self) -> dict[str, Location]:
        if self._locations is None:
            self._locations = {
                node.metadata.name: (node.metadata.label(REGION_LABEL), node.metadata.label(ZONE_LABEL))
                for node in self._caches.nodes
            }
        return self._locations

    def _costs(self, group: AppGroup) -> CostLookup:
        topology = self._topology_for(group)
        if topology is None:
            return CostLookup(None)
        key, version = topology.metadata.key, topology.metadata.resource_version
        known = self._lookups.get(key)
        if known is None or known[0] != version:
            names = (self._rules.weights_name, self._rules.fallback_weights_name)
            weights = (topology.weight(name) for name in names if name)
            known = (version, CostLookup(next((weight for weight in weights if weight is not None), None)))
            self._lookups[key] = known
        return known[1]

    def _topology_for(self, group: AppGroup) -> NetworkTopology | None:
        """The NetworkTopology by which the scheduler places this group's pods."""
        mirror, name = self._caches.topologies, self._rules.network_topology_name
        everywhere = self._rules.search_everywhere
        own = (group.metadata.namespace,) if everywhere else ()
        for namespace in (*own, *self._rules.namespaces, *((self._namespace,) if everywhere else ())):
            found = mirror.get(f"{namespace}/{name}")
            if found is not None:
                return found
        return next(iter(mirror)) if everywhere and len(mirror) == 1 else None

    async def _write_status(self, key: str, group: AppGroup, facts: Facts) -> None:
        kept = await self._capabilities.has_status(APPGROUPS)
        if not kept:  # upstream's definition: conditions and observedGeneration would be dropped
            remembered = msgspec.structs.replace(
                group.status,
                conditions=self._last_conditions.get(key),
                observed_generation=group.metadata.generation,
            )
            group = msgspec.structs.replace(group, status=remembered)
        wanted = plan_status(group, facts, self._wall())
        changed = news(group.status.conditions, wanted.conditions)
        if stored(wanted, kept=kept) != stored(group.status, kept=kept):
            after = await self._client.apply(
                APPGROUPS,
                group.metadata.name,
                status_body(APPGROUPS, group.metadata, stored(wanted, kept=kept), count="runningWorkloads"),
                AppGroup,
                field_manager=FIELD_MANAGER,
                namespace=group.metadata.namespace,
                subresource="status" if kept else None,
            )
            self._own.note(key, group, after)
            self._metrics.writes.inc()
        first = group.status.conditions is None
        self._last_conditions[key] = list(wanted.conditions or ())
        told = [c for c in changed if not first or _is_bad(c)]
        announce(self._recorder, reference(APPGROUPS, group.metadata), told, _is_bad, action="Order")


def _is_bad(found: Condition) -> bool:
    """Whether a person should look; a group that is not complete yet is on its way."""
    return found.status == "False" and found.type != COMPLETE


class AppGroupMetrics(Collector):
    """Gauges of all groups, read from the last look at each, and a counter of writes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._facts: dict[str, tuple[AppGroup, Facts]] = {}
        self.writes = Counter("netaware_appgroup_writes", "Statuses of AppGroups written.", registry=registry)
        registry.register(self)

    def show(self, key: str, group: AppGroup, facts: Facts) -> None:
        """Show this from now on for ``namespace/name``."""
        self._facts[key] = group, facts

    def drop(self, key: str) -> None:
        """Show nothing for it any more."""
        self._facts.pop(key, None)

    def clear(self) -> None:
        """Show nothing: this replica does not lead."""
        self._facts.clear()

    def describe(self) -> Iterator[Metric]:
        """No names in advance: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One family after the other, over all groups."""
        pods = GaugeMetricFamily("netaware_appgroup_pods", "Pods of a group.", labels=["appgroup", "state"])
        edges = GaugeMetricFamily(
            "netaware_appgroup_dependencies",
            "Dependencies of a group by how they fare.",
            labels=["appgroup", "verdict"],
        )
        faults = GaugeMetricFamily(
            "netaware_appgroup_spec_faults", "What is wrong with a group's spec.", labels=["appgroup", "problem"]
        )
        cycles = GaugeMetricFamily("netaware_appgroup_cycles", "Cycles among a group's workloads.", labels=["appgroup"])
        for key, (group, facts) in self._facts.items():
            pods.add_metric([key, "wanted"], group.spec.num_members)
            pods.add_metric([key, "running"], facts.running)
            pods.add_metric([key, "placed"], sum(sum(places.values()) for places in facts.members))
            verdicts = Tally(found.verdict for found in facts.judged)
            for verdict in ("met", "violated", "unknown", "idle"):
                edges.add_metric([key, verdict], verdicts[verdict])
            for problem, count in Tally(fault.problem for fault in facts.graph.faults).items():
                faults.add_metric([key, problem], count)
            cycles.add_metric([key], len(facts.order.cycles))
        yield from (pods, edges, faults, cycles)
