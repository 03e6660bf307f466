"""Reconciles AppGroups: reads spec, pods and costs, and writes the status."""

from __future__ import annotations

import collections
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.appgroups.config import AppGroupConfig
from controller.appgroups.status import (
    COMPLETE,
    ROUTED_NEAR,
    DependencyVerdict,
    GroupState,
    build_status,
    compute_group_state,
    consent_condition,
)
from controller.cluster.cluster_cache import ClusterCache, call_unless
from controller.cluster.costs import CostIndex, Location, are_costs_unchanged, location_of
from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.membership import Membership, is_consent_unchanged, is_spec_unchanged
from controller.cluster.pods import Pod
from controller.cluster.services import ServiceIndex, is_routing_unchanged
from controller.cluster.statuses import StatusWriter, delay_after_failed_write
from controller.cluster.zones import is_location_unchanged
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.events import EventRecorder
from kubekit.wire import Condition, Node
from kubekit.workqueue import WorkQueue

DEBOUNCE_S = 0.3
"""Delay of a reconciliation after a change, because pods and costs change in bursts."""
RESYNC_S = 300.0
"""Longest time between two reconciliations of a group."""
ALL_GROUPS = "*"
"""Key of the queue for all groups, so that an event that affects all of them adds one key only."""


class GroupIndexes(NamedTuple):
    """Indexes that are updated before the handlers of `AppGroupController` run.

    ``services`` is None in upstream parity, where every replica may answer.
    """

    membership: Membership
    cost_index: CostIndex
    services: ServiceIndex | None


class AppGroupController:
    """Reconciles every AppGroup in the watched namespaces.

    Given a group's key, ``pods_of`` returns its pods, and ``extra_conditions`` the conditions that other controllers compute.
    """

    def __init__(
        self,
        client: Client,
        cache: ClusterCache,
        config: AppGroupConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        indexes: GroupIndexes,
        pods_of: Callable[[str], Iterable[Pod]],
        extra_conditions: Callable[[str], Awaitable[Iterable[Condition]]] | None = None,
    ) -> None:
        self._cache, self._config = cache, config
        self._membership, self._cost_index, self._services = indexes
        self._pods_of, self._extra_conditions = pods_of, extra_conditions
        self._status_writer = StatusWriter(
            client, recorder, APPGROUPS, count_field="runningWorkloads", action="Order", is_bad=_reports_problem
        )
        self._queue = WorkQueue()
        self._metrics = AppGroupMetrics(registry)
        self._locations: dict[str, Location] = {}  # By node name.
        cache.app_groups.subscribe(self._on_group_change)
        cache.group_pods.subscribe(self._on_pod_change)
        cache.nodes.subscribe(self._on_node_change)
        enqueue_all = partial(self.enqueue, ALL_GROUPS)
        cache.namespaces.subscribe(call_unless(is_consent_unchanged, enqueue_all))
        cache.topologies.subscribe(call_unless(are_costs_unchanged, enqueue_all))
        cache.services.subscribe(call_unless(is_routing_unchanged, enqueue_all))

    def enqueue(self, key: str) -> None:
        """Queue a group, or `ALL_GROUPS`."""
        self._queue.add_after(key, DEBOUNCE_S)

    def _on_group_change(self, key: str, old: AppGroup | None, new: AppGroup | None) -> None:
        self.enqueue(key)
        if not is_spec_unchanged(old, new):
            # A pod names its group without a namespace, so it may now belong to another group of this name.
            for other in self._membership.group_keys_named(key.rpartition("/")[2]):
                self.enqueue(other)

    def _on_pod_change(self, _: str, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            # Only the pod's own group: hundreds of namespaces may have a group of this name.
            if pod is not None and (group := self._membership.group_key_of(pod.metadata.namespace, pod.group)):
                self.enqueue(group)

    def _on_node_change(self, node_name: str, old: Node | None, new: Node | None) -> None:
        if is_location_unchanged(old, new):
            return
        if new is not None:
            self._locations[node_name] = location_of(new)
        else:
            self._locations.pop(node_name, None)
        self.enqueue(ALL_GROUPS)

    async def run(self) -> None:
        """Reconcile groups until cancelled."""
        self._queue.add(ALL_GROUPS)
        try:
            await self._queue.work(self._reconcile, name="appgroup")
        finally:
            self._metrics.states.clear()  # This replica does not lead any more.

    async def _reconcile(self, key: str) -> float | None:
        if key == ALL_GROUPS:
            for group_key in self._cache.app_groups.items:
                self._queue.add(group_key)
            return None
        group = self._cache.app_groups.get(key)
        if group is None or (self._config.namespaces and group.metadata.namespace not in self._config.namespaces):
            self._metrics.states.pop(key, None)
            return None
        costs = self._cost_index.for_namespace(group.metadata.namespace).table
        pods = self._pods_of(key)
        state = compute_group_state(group, pods, self._locations, costs, self._membership, services=self._services)
        # Before the first await, after which the group may be deleted.
        consent = consent_condition(group, self._membership.list_namespaces_without_consent(key))
        self._metrics.states[key] = group, state
        try:
            await self._write_status(key, group, state, consent)
        except ApiError as error:
            return delay_after_failed_write(error, key, self._cache.app_groups)
        return RESYNC_S

    async def _write_status(self, key: str, group: AppGroup, state: GroupState, consent: Condition | None) -> None:
        extra_conditions = [consent] if consent is not None else []
        if self._extra_conditions is not None:
            extra_conditions += await self._extra_conditions(key)
        desired = build_status(group, state, time.time(), extra_conditions=extra_conditions)
        if await self._status_writer.write(group, desired):
            self._metrics.writes.inc()


def _reports_problem(condition: Condition) -> bool:
    """Whether a condition reports a problem. Complete and RoutedNear never do: pods start one by one, and routing is advice."""
    return condition.status == "False" and condition.type not in {COMPLETE, ROUTED_NEAR}


class AppGroupMetrics(Collector):
    """Gauges of all groups, and a counter of status writes.

    ``states`` has each group and its state at the last reconciliation, by key; it is empty on replicas that do not lead.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.states: dict[str, tuple[AppGroup, GroupState]] = {}
        self.writes = Counter("netaware_appgroup_writes", "Statuses of AppGroups written.", registry=registry)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Metrics of all groups."""
        pods_help = "Pods of a group, by state: wanted, running, placed."
        pods = _gauge("netaware_appgroup_pods", pods_help, "state")
        verdicts_help = "Dependencies of a group, by verdict: met, violated, unknown, idle (one end has no placed pod)."
        dependencies = _gauge("netaware_appgroup_dependencies", verdicts_help, "verdict")
        faults = _gauge("netaware_appgroup_spec_faults", "Faults of a group's spec, by reason.", "reason")
        cycles = _gauge("netaware_appgroup_cycles", "1 if dependencies of a group form a cycle, else 0.")
        for key, (group, state) in tuple(self.states.items()):  # A copy, because metrics are collected in a thread.
            pods.add_metric([key, "wanted"], group.spec.num_members)
            pods.add_metric([key, "running"], state.running_count)
            pods.add_metric([key, "placed"], sum(sum(counts.values()) for counts in state.pods_by_node))
            verdict_counts = collections.Counter(check.verdict for check in state.checks)
            for verdict in get_args(DependencyVerdict):
                dependencies.add_metric([key, verdict], verdict_counts[verdict])
            for reason, count in collections.Counter(fault.reason for fault in state.spec_faults).items():
                faults.add_metric([key, reason], count)
            cycles.add_metric([key], len(state.order.cycle) > 0)
        yield from (pods, dependencies, faults, cycles)


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=("appgroup", *labels))
