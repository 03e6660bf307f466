"""Reconciles groups: a group's pods, its plan and the time decide which gates are opened.

`group_pods` indexes pods by group, `group_plans` plans them, `release` decides which gates to open, `retries` decides which pods to
requeue or replace because they found no node, and `pod_updater` writes to the pods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from prometheus_client import CollectorRegistry

from controller.appgroups.order import sort_workloads
from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.crds import AppGroup
from controller.cluster.declared_replicas import DeclaredReplicas
from controller.cluster.hosts import NodeCache
from controller.cluster.pods import Pod, Target, calls_extender, target_of
from controller.cluster.volumes import Volumes
from controller.scheduler.advice import advice_conditions, copy_placed_group
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.explain import explain
from controller.scheduler.gating.cached_plan import MIN_REPLAN_S
from controller.scheduler.gating.group_plans import GroupPlans, PlanState
from controller.scheduler.gating.group_pods import GroupPods
from controller.scheduler.gating.pod_events import WAITING_EVENT_REASON, WaitingEvents
from controller.scheduler.gating.pod_updater import PodUpdater, may_delete_pods
from controller.scheduler.gating.release import ReleaseInputs, decide_releases, seconds_until_complete
from controller.scheduler.gating.retries import UnschedulablePods
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.worker import PlanningProcess
from controller.scheduler.state import DeletedNodeError, State
from controller.traffic.prices import PriceTable
from kubekit.client import Client
from kubekit.events import EventRecorder, make_reference
from kubekit.runtime import supervise
from kubekit.wire import PODS, Condition
from kubekit.workqueue import WorkQueue

DEBOUNCE_S = 0.1
"""Changes of costs, nodes and workloads within this time enqueue the groups with waiting pods once, because they come in bursts."""
WORKERS = 4
"""Groups that are reconciled at once; each awaits the API server's answers to its patches."""
PERMISSION_CHECK_INTERVAL_S = 60.0
"""Time between checks whether pending pods may be deleted: the component that allows it may be added or removed at any time."""


class GatingController:
    """Opens gates as the groups' plans say, and requeues or replaces pods that found no node.

    Args:
        client: API client, whose writes are fenced by the leadership.
        cache: the manager's stores.
        config: the section ``scheduler``.
        recorder: records events on pods.
        registry: registers the metrics.
        notify: called with a group's key when its condition Planned changes.
        prices: prices of bytes between zones, for groups whose plans weigh money.

    Attributes:
        metrics: metrics of gates and plans.
        state, node_cache, volumes: indexes of the cluster.
        pods_of: returns the pods of a group by its key.
        inputs, plans: the inputs of plans, and the plans of all groups.
    """

    def __init__(
        self,
        client: Client,
        cache: ClusterCache,
        config: SchedulerConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        notify: Callable[[str], None] = lambda _: None,
        prices: PriceTable | None = None,
    ) -> None:
        self._client, self._config, self._recorder = client, config, recorder
        self.metrics = GateMetrics(registry)
        self.state, self.node_cache, self.volumes = State(config, cache.netaware_namespace), NodeCache(), Volumes()
        self._pod_store, self._declared_replicas, self._queue = cache.group_pods, DeclaredReplicas(client), WorkQueue()
        self._group_pods = GroupPods(self._pod_store, self.state, time.time)
        self.pods_of = self._group_pods.pods_of
        self._planning_process = PlanningProcess(self.node_cache)
        self.inputs = PlanInputs(self.state, self.node_cache, self.volumes, prices, self._declared_replicas)
        self.plans = GroupPlans(
            self.inputs,
            self.pods_of,
            config=config.gates,
            metrics=self.metrics,
            solve=self._planning_process.plan,
            enqueue=self._enqueue,
            notify=notify,
        )
        self._unschedulable_pods, self._waiting_events = UnschedulablePods(config), WaitingEvents()
        self._updater = PodUpdater(
            client,
            self._group_pods,
            self.inputs,
            self._unschedulable_pods,
            self.plans.reservations,
            config=config,
            metrics=self.metrics,
            recorder=recorder,
        )
        self._debounce_timer: asyncio.TimerHandle | None = None
        self._is_leading = False
        self._last_versions = (0, 0, 0)
        """Versions of the state without pods, the node cache and the volumes when groups were last enqueued for their changes."""
        self._subscribe(cache)
        self.metrics.gated_pods.set_function(self._group_pods.gated_count)

    def _subscribe(self, cache: ClusterCache) -> None:
        # The indexes subscribe first, so that they are up to date when this controller's own handlers run.
        stores = cache.nodes, self._pod_store, cache.app_groups, cache.topologies
        self.state.subscribe_to(*stores, namespaces=cache.namespaces, services=cache.services)
        self.node_cache.subscribe_to(cache.nodes, cache.pods)
        self._planning_process.subscribe_to(cache.nodes, cache.pods)
        volume_stores = cache.volumes, cache.claims, cache.storage_classes
        self.volumes.subscribe_to(*volume_stores)
        self._pod_store.subscribe(self._on_pod_change)
        other_stores = cache.nodes, cache.topologies, cache.namespaces, cache.services, cache.app_groups
        for store in (*volume_stores, *other_stores):
            store.subscribe(lambda *_: self._on_cluster_change())
        self._declared_replicas.subscribe(lambda *_: self._schedule_enqueue_all())

    def store_tasks(self) -> dict[str, Awaitable[None]]:
        """Endless tasks that keep the stores up to date; every replica runs them, also without leadership."""
        return self._declared_replicas.tasks()

    async def conditions(self, group: str) -> list[Condition]:
        """Planned if the group had a plan; also RoutedNear and Balanced if no pod waits. Conditions that are not returned stay unchanged."""
        planned = self.plans.planned_condition(group)
        conditions = [planned] if planned is not None else []
        if group not in self.state.groups or any(pod.is_waiting for pod in self.pods_of(group)):
            return conditions
        current = copy_placed_group(self.state, group)
        # Hundreds of dependencies would block the event loop.
        return await asyncio.to_thread(lambda: [*conditions, *advice_conditions(current)])

    async def run(self) -> None:
        """Reconcile groups while leading, until cancelled."""
        await self._pod_store.ready.wait()
        self._group_pods.forget_writes()
        self._unschedulable_pods.may_delete = await may_delete_pods(self._client, last_known=False)
        self._is_leading = True
        self._schedule_enqueue_all()
        try:
            tasks = {"plans": self.plans.run(), "permission": self._refresh_delete_permission()}
            for i in range(WORKERS):
                tasks[f"gates {i}"] = self._queue.work(self._reconcile, name="gates", base_s=0.1, cap_s=10.0)
            await supervise(tasks)
        finally:
            self._is_leading = False
            await self._planning_process.stop()

    async def _refresh_delete_permission(self) -> None:
        while True:
            await asyncio.sleep(PERMISSION_CHECK_INTERVAL_S)
            last_known = self._unschedulable_pods.may_delete
            self._unschedulable_pods.may_delete = await may_delete_pods(self._client, last_known=last_known)

    def _on_pod_change(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and (old.metadata.uid, old.group) != (new.metadata.uid, new.group):
            # The pod has another group now, or a list after an interrupted watch shows a StatefulSet's new pod in place of the old one.
            self._on_pod_change(key, old, None)
            old = None
        group = self._group_pods.on_change(key, old, new)
        if new is None:
            self._unschedulable_pods.forget_pod(key)
            self._waiting_events.forget_pod(key)
            self.plans.reservations.forget_pod(key)
        elif old is not None:
            self._record_refusal(old, new)
            if self._is_leading and old.is_waiting and new.is_bound:
                self._report_placement(new)
        self._enqueue(group)

    def _record_refusal(self, old: Pod, new: Pod) -> None:
        """Record a refusal of the planned node if a new scheduling attempt has failed."""
        if new.status.scheduling_failed and _attempt_result(old) != _attempt_result(new):
            target = target_of(new)
            # The failure of a PodGroup says nothing about the node. On a nominated node, pods are being preempted for this pod.
            if target is not None and not new.pod_group and new.status.nominated_node_name != target.node:
                self.plans.reservations.refused_nodes.add(new, target.node)

    def _report_placement(self, pod: Pod) -> None:
        """Report a pod that was bound: by an event with the reason for its node, and in the metric of placed pods."""
        target = target_of(pod)
        if not calls_extender(pod.spec.scheduler_name, self._config.scheduler_names) and target is None:
            return
        try:
            explanation = explain(self.state, pod)
        except DeletedNodeError:
            return  # With upstream parity, a peer on a deleted node has no costs to explain.
        self._recorder.record("Normal", make_reference(PODS, pod.metadata), "NetworkPlacement", explanation.conclusion)
        self.metrics.placed_pods.labels(self._compare_with_target(pod, target)).inc()

    def _compare_with_target(self, pod: Pod, target: Target | None) -> str:
        """The label ``result`` of the metric of placed pods: where a pod was bound, compared with its target."""
        if target is None:
            return "by-rule"
        if target.node == pod.spec.node_name:
            return "as-planned"
        host = self.node_cache.hosts.get(pod.spec.node_name)
        return "planned-zone" if host is not None and host.location == target.location else "elsewhere"

    def _enqueue(self, group: str) -> None:
        if self._is_leading:
            self._queue.add(group)

    def _on_cluster_change(self) -> None:
        """Enqueue groups when nodes, costs, groups or volumes changed; heartbeats and our own status writes do not count."""
        versions = self.state.version_without_pods, self.node_cache.version, self.volumes.version
        if versions != self._last_versions:
            self._last_versions = versions
            self._schedule_enqueue_all()

    def _schedule_enqueue_all(self) -> None:
        """Enqueue all groups with waiting pods, a plan or reservations, together with those of other changes in `DEBOUNCE_S`."""
        has_work = self._group_pods.waiting_keys or self.plans.groups_with_plan_or_reservations()
        if self._is_leading and has_work and self._debounce_timer is None:
            self._debounce_timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._enqueue_all)

    def _enqueue_all(self) -> None:
        self._debounce_timer = None
        # Includes groups that are gone, or whose pods' namespaces withdrew their consent, so that their reservations end.
        for group in {*self._group_pods.waiting_groups(), *self.plans.groups_with_plan_or_reservations()}:
            self._enqueue(group)

    async def _reconcile(self, group: str) -> float | None:
        """Open gates, report waits, and handle unschedulable pods; returns seconds until the next check, None to wait for a change."""
        pods, now = self.pods_of(group), time.time()
        if not any(pod.is_waiting for pod in pods):
            self.plans.drop_plan(group, pods)
            return None
        inputs = self._release_inputs(group, pods)
        may_plan = seconds_until_complete(inputs, now) <= 0 and not self._config.has_upstream_parity
        plan_state = self.plans.get_or_request(group, pods) if may_plan else PlanState()
        decision = decide_releases(plan_state.add_to(inputs), now, self._config.gates)
        await self._updater.open_gates(group, decision.releases, plan_state.plan)
        if decision.releases:
            self._enqueue(group)
        due_events, events_due_in_s = self._waiting_events.pop_due(pods, decision, now)
        for pod, note in due_events:
            self._recorder.record("Normal", make_reference(PODS, pod.metadata), WAITING_EVENT_REASON, note)
        actions, actions_due_in_s = self._unschedulable_pods.choose_actions(pods, plan_state.plan, self.state, now)
        await self._updater.execute_actions(actions)
        if actions:
            self._enqueue(group)
        check_delays_s = [decision.next_check_s, events_due_in_s, actions_due_in_s]
        if decision.wait_reasons and plan_state.plan is not None and plan_state.plan.unplaced:
            check_delays_s.append(MIN_REPLAN_S)
        return min((seconds for seconds in check_delays_s if seconds is not None), default=None)

    def _release_inputs(self, group: str, pods: Sequence[Pod]) -> ReleaseInputs:
        seen_at, opened_at = self._group_pods.first_seen_at, self._group_pods.other_gates_opened_at
        inputs = ReleaseInputs(pods, first_seen_at=seen_at, other_gates_opened_at=opened_at)
        app_group = self.state.groups.get(group)
        if app_group is None:
            return inputs
        workloads, namespace = self.state.graph(group).workloads, app_group.metadata.namespace
        return msgspec.structs.replace(
            inputs,
            positions=self._positions_of(group, app_group),
            declared_replicas=self._declared_replicas.replicas_by_selector(namespace, workloads),
            num_members=app_group.spec.num_members,
        )

    def _positions_of(self, key: str, group: AppGroup) -> dict[str, int]:
        """Workload selector -> position in the topological order, from the status if that is up to date, else computed."""
        graph = self.state.graph(key)
        listed = {item.workload.selector: item.index for item in group.status.topology_order or ()}
        is_current = group.status.observed_generation in (0, group.metadata.generation)
        if is_current and listed.keys() == set(graph.selectors):
            return listed
        sequence = sort_workloads(graph.callees_by_caller(), group.spec.topology_sorting_algorithm).sequence
        return {graph.selectors[position]: index for index, position in enumerate(sequence, start=1)}


def _attempt_result(pod: Pod) -> tuple[bool, str]:
    """Whether the last scheduling attempt found no node, and its message; equal for attempts with the same result."""
    scheduled = pod.condition("PodScheduled")
    return pod.status.scheduling_failed, scheduled.message if scheduled is not None else ""
