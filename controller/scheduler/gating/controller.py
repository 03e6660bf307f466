"""Reconciles one group: its pods, its plan and the time decide which gates to open.

`group_pods` indexes pods by group, `group_plans` plans them, `release` orders them, `pod_updater` patches them, and `retries` requeues
or replaces those that found no node. Here these are put together, one group at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from controller.appgroups.order import order
from controller.cluster.caches import Caches
from controller.cluster.declared_replicas import Declared
from controller.cluster.hosts import NodeCache
from controller.cluster.pods import GroupPod, target_of
from controller.cluster.resources import AppGroup
from controller.cluster.volumes import Volumes
from controller.scheduler.balance import advice_conditions, placed_group
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.cached_plan import UNPLACED_FOR_S
from controller.scheduler.gating.group_plans import GroupPlans, PlanState
from controller.scheduler.gating.group_pods import GroupPods
from controller.scheduler.gating.pod_events import WAITING, PlacementEvents, WaitingEvents
from controller.scheduler.gating.pod_updater import PodUpdater, PodWriter, may_delete
from controller.scheduler.gating.release import GroupQueue, plan_release, settles_in_s
from controller.scheduler.gating.retries import StuckPods
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.worker import PlanningProcess
from controller.scheduler.state import State
from controller.traffic.prices import PriceTable
from kubekit.client import Client
from kubekit.events import EventRecorder, reference
from kubekit.runtime import supervise
from kubekit.wire import PODS, Condition
from kubekit.workqueue import WorkQueue

DEBOUNCE_S = 0.1
"""Costs, nodes and workloads change in bursts: groups with waiting pods are reconciled once per this time."""
WORKERS = 4
RIGHTS_EVERY_S = 60.0
"""The component that lets us delete stale pods may be added or removed while we lead."""


class GatingController:
    """Plans, gates, retries and replacements.

    Args:
        client: fenced; only the leader writes.
        caches: the manager's stores; nodes, AppGroups and NetworkTopologies are taken from there.
        config: the section ``scheduler``.
        recorder: for events on pods.
        registry: for metrics.
        notify: called with a group's key when its condition Planned changes.
        prices: of bytes between zones, for groups whose plans weigh money.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: SchedulerConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        notify: Callable[[str], None] = lambda _: None,
        prices: PriceTable | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._config, self._recorder, self._clock = client, config, recorder, clock
        self.metrics = GateMetrics(registry)
        self.state, self.node_cache, self.volumes = State(config, caches.home), NodeCache(), Volumes()
        self._store = caches.group_pods
        self._declared = Declared(client)
        self._queue = WorkQueue()
        self._pods = GroupPods(self._store, self.state, clock)
        self.pods_of = self._pods.of
        self._process = PlanningProcess(self.node_cache)
        self.inputs = PlanInputs(self.state, self.node_cache, self.volumes, prices, self._declared)
        self.plans = GroupPlans(
            self.inputs,
            self._pods.of,
            config=config.gates,
            metrics=self.metrics,
            solve=self._process.solve,
            wake=self._wake,
            notify=notify,
        )
        self._stuck = StuckPods(config)
        self._waiting_events = WaitingEvents()
        self._updater = PodUpdater(
            PodWriter(client, self._pods),
            self.state,
            self.node_cache,
            self._stuck,
            config=config,
            metrics=self.metrics,
            recorder=recorder,
            clock=clock,
        )
        self._placements = PlacementEvents(self.state, self.node_cache, recorder, config, self.metrics)
        self._debounce_timer: asyncio.TimerHandle | None = None
        self._leading = False
        self._seen_versions = (0, 0, 0)
        self._subscribe(caches)
        self.metrics.gated.set_function(self._pods.gated_count)

    def _subscribe(self, caches: Caches) -> None:
        self.state.subscribe_to(
            caches.nodes,
            self._store,
            caches.app_groups,
            caches.topologies,
            namespaces=caches.namespaces,
            services=caches.services,
        )
        self.node_cache.subscribe_to(caches.nodes, caches.pods)
        self._process.subscribe_to(caches.nodes, caches.pods)
        self.volumes.subscribe_to(caches.volumes, caches.claims, caches.classes)
        self._store.subscribe(self._on_pod)
        for store in (
            caches.volumes,
            caches.claims,
            caches.classes,
            caches.nodes,
            caches.topologies,
            caches.namespaces,
            caches.services,
            caches.app_groups,
        ):
            store.subscribe(lambda *_: self._on_cluster_change())
        self._declared.subscribe(lambda *_: self._wake_waiting())

    def stores(self) -> dict[str, Awaitable[None]]:
        """Endless tasks that keep the stores warm; every replica runs them, leading or not."""
        return self._declared.tasks()

    async def conditions(self, group: str) -> list[Condition]:
        """Conditions of the group: of its plan, and advice. While a pod waits there is no new advice, and the last one stays."""
        planned = self.plans.report(group)
        found = [planned] if planned is not None else []
        if group not in self.state.groups or any(pod.waiting for pod in self._pods.of(group)):
            return found
        current = placed_group(self.state, group)
        # Hundreds of dependencies take tens of milliseconds, which the event loop does not have.
        return await asyncio.to_thread(lambda: [*found, *advice_conditions(current)])

    async def run(self) -> None:
        """Work while leading, until cancelled."""
        await self._store.ready.wait()
        self._pods.forget_writes()
        self._stuck.may_delete = await may_delete(self._client)
        self._leading = True
        self._wake_waiting()
        try:
            workers = {f"gates {i}": self._work() for i in range(WORKERS)}
            await supervise({**workers, "plans": self.plans.run(), "rights": self._check_delete_right()})
        finally:
            self._leading = False
            await self._process.stop()

    async def _check_delete_right(self) -> None:
        while True:
            await asyncio.sleep(RIGHTS_EVERY_S)
            self._stuck.may_delete = await may_delete(self._client)

    async def _work(self) -> None:
        await self._queue.work(self._reconcile, name="gates", base_s=0.1, cap_s=10.0)

    def _on_pod(self, key: str, old: GroupPod | None, new: GroupPod | None) -> None:
        group = self._pods.on_change(key, old, new)
        if new is None:
            self._stuck.forget(key)
            self._waiting_events.forget(key)
            self.plans.assumed.forget(key)
        elif old is not None and new.found_no_node and not new.pod_group and _attempts(old) != _attempts(new):
            # A PodGroup is refused as a whole, and a nominated node is being preempted: neither says that the planned host is wrong.
            target = target_of(new)
            if target is not None and new.status.nominated_node_name != target.node:
                self.plans.assumed.refuse(new, target.node)
        if self._leading and old is not None and new is not None and old.waiting and new.bound:
            self._placements.report(new)
        self._wake(group)

    def _wake(self, group: str) -> None:
        if self._leading:
            self._queue.add(group)

    def _on_cluster_change(self) -> None:
        """Nodes, costs, groups or volumes changed; heartbeats and our own status writes did not."""
        versions = self.state.surroundings_version, self.node_cache.version, self.volumes.version
        if versions != self._seen_versions:
            self._seen_versions = versions
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        if (
            self._leading
            and (self._pods.waiting or self.plans.groups_with_reservations())
            and self._debounce_timer is None
        ):
            self._debounce_timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._wake_all)

    def _wake_all(self) -> None:
        self._debounce_timer = None
        # Reservations of a group that is gone, or whose pods are no longer admitted, end.
        for group in {*self._pods.waiting_groups(), *self.plans.groups_with_reservations()}:
            self._wake(group)

    async def _reconcile(self, group: str) -> float | None:
        pods, now = self._pods.of(group), self._clock()
        if not any(pod.waiting for pod in pods):
            self.plans.drop(group, pods)
            return None
        queue = self._queue_of(group, pods)
        settled = settles_in_s(queue, now) <= 0
        plan_state = self.plans.get_or_request(group, pods) if settled and self._config.plans else PlanState()
        decision = plan_release(plan_state.applied_to(queue), now, self._config.gates)
        for release in decision.releases:
            self.plans.assumed.release(release.pod.metadata.key)
        await self._updater.release(group, decision.releases, plan_state.plan)
        if decision.releases:
            self._wake(group)
        event_in_s = self._report_waiting(pods, decision.waiting, now)
        actions, again_s = self._stuck.plan(pods, plan_state.plan, self.state, now)
        await self._updater.execute(actions)
        if actions:
            self._wake(group)
        stale_s = (
            UNPLACED_FOR_S if decision.waiting and plan_state.plan is not None and plan_state.plan.unplaced else None
        )
        return min((s for s in (decision.again_s, again_s, stale_s, event_in_s) if s is not None), default=None)

    def _report_waiting(self, pods: Sequence[GroupPod], waiting: Mapping[str, str], now: float) -> float | None:
        """Records one event on each pod that has waited for a few seconds; returns in how many seconds to check again."""
        news, again_s = self._waiting_events.of(pods, waiting, now)
        for pod, text in news:
            self._recorder.normal(reference(PODS, pod.metadata), WAITING, text)
        return again_s

    def _queue_of(self, group: str, pods: Sequence[GroupPod]) -> GroupQueue:
        known = self.state.groups.get(group)
        if known is None:
            return GroupQueue(
                {}, exists=False, pods=pods, seen_at=self._pods.seen_at, others_opened_at=self._pods.others_opened_at
            )
        return GroupQueue(
            self._order_of(group, known),
            exists=True,
            pods=pods,
            replicas=self._declared.replicas(known.metadata.namespace, self.state.graph(group).workloads),
            members=known.spec.num_members,
            seen_at=self._pods.seen_at,
            others_opened_at=self._pods.others_opened_at,
        )

    def _order_of(self, key: str, group: AppGroup) -> dict[str, int]:
        """The order from the status if it is up to date, else computed."""
        graph = self.state.graph(key)
        listed = {item.workload.selector: item.index for item in group.status.topology_order or ()}
        fresh = group.status.observed_generation in (0, group.metadata.generation)
        if fresh and listed.keys() == set(graph.selectors):
            return listed
        sequence = order(graph.children, group.spec.topology_sorting_algorithm).sequence
        return {graph.selectors[position]: index for index, position in enumerate(sequence, start=1)}


def _attempts(pod: GroupPod) -> tuple[bool, str]:
    """Key of the last scheduling attempt; changes if its message does."""
    found = pod.condition("PodScheduled")
    return pod.found_no_node, found.message if found is not None else ""
