"""Makes and caches the plans of all groups.

Plans are made one after the other, because each depends on the reservations of earlier plans. If a group cannot be planned (too
large, too slow), its condition Planned is False, and its pods are placed by NetworkOverhead's rule; other groups do not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from controller.cluster.crds import AppGroup
from controller.cluster.pods import Pod, Target
from controller.cluster.resource_requests import Amounts
from controller.scheduler.config import GatesConfig
from controller.scheduler.gating.cached_plan import (
    MIN_REPLAN_S,
    CachedPlan,
    PlanCheck,
    check_plan,
    find_unaccounted_pods,
)
from controller.scheduler.gating.planner_time import MAX_SEARCH_S, MIN_SEARCH_S, PlannerTime
from controller.scheduler.gating.release import ReleaseInputs
from controller.scheduler.gating.replacements import ExpectedReplacement, ExpectedReplacements
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.gating.rollout_waits import RolloutWaits, Solve
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import Plan, PlanningError
from controller.scheduler.placement.snapshot import GroupSnapshot, without_pod
from kubekit import logs
from kubekit.conditions import make_condition
from kubekit.text import join_first
from kubekit.waiting import backoff_delay_s
from kubekit.wire import Condition
from kubekit.workqueue import WorkQueue

log = logs.get("controller.scheduler.gating.group_plans")

PLANNED = "Planned"
MAX_PODS = 10_000
"""A group with more existing and declared pods is not planned."""
PAUSE_RATIO = 3.0
"""Pause of a group after its plan, as a multiple of the plan's time, so that a group that changes all the time leaves time to others."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 30.0, 600.0
"""Shortest and longest exponential back-off of a group whose planning failed."""
REPLICA_S, DEPENDENCY_S = 2.5e-3, 3e-5
"""Estimated time of a plan per replica and per dependency, seconds."""
AGING_RATIO = 0.01
"""A group in the queue counts as smaller by this many seconds of planner time for each second that it waits. So smaller groups of its
namespace delay a large group for a bounded time."""
MAX_NAMES_SHOWN = 3
"""Unplaced pods that the condition Planned names."""
PODS_PER_STEP = 1000
"""Pods whose requests are computed between yields to the event loop."""


class PlanState(msgspec.Struct, frozen=True):
    """A group's plan.

    Attributes:
        plan: None if plans are off, the group does not exist or cannot be planned, or no valid plan is made yet.
        is_pending: whether a new plan is being made; until then only the targets of ``plan`` count.
        awaiting_rollout: see `PlanCheck`.
    """

    plan: Plan | None = None
    is_pending: bool = False
    awaiting_rollout: frozenset[str] = frozenset()

    def add_to(self, inputs: ReleaseInputs) -> ReleaseInputs:
        """The inputs with the results of the plan; while a new plan is being made, no pod counts as unplaced."""
        return msgspec.structs.replace(
            inputs,
            is_plan_pending=self.is_pending,
            placed=frozenset(self.plan.targets if self.plan is not None else ()),
            unplaced=frozenset(self.plan.unplaced if self.plan is not None and not self.is_pending else ()),
            awaiting_rollout=self.awaiting_rollout,
        )


class GroupPlans:
    """Makes plans on request, checks whether they are still valid, and reserves their resources.

    Args:
        inputs: the cluster.
        pods_of: returns a group's pods by its key.
        config: the section ``scheduler.gates``.
        metrics: receives the duration of plans.
        solve: makes a plan in another process; raises `PlanningError`.
        enqueue: reconciles a group, by its key: after its plan was made or failed, and if another plan may use its reservations.
        notify: called with a group's key when its condition Planned changes.
        clock: monotonic seconds.

    Attributes:
        reservations: the reservations of all groups.
    """

    def __init__(
        self,
        inputs: PlanInputs,
        pods_of: Callable[[str], Sequence[Pod]],
        *,
        config: GatesConfig,
        metrics: GateMetrics,
        solve: Solve,
        enqueue: Callable[[str], None],
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inputs, self._state = inputs, inputs.state
        self._pods_of, self._config, self._metrics = pods_of, config, metrics
        self._solve, self._enqueue, self._notify, self._clock = solve, enqueue, notify, clock
        self.reservations = ReservationCache(inputs.node_cache)
        self._planner_time = PlannerTime(clock)
        self._queue = WorkQueue(self._queue_order)
        self._cached_plans: dict[str, CachedPlan] = {}
        self._requested_at: dict[str, float] = {}
        """Group -> time since which it is queued; by `clock`, as all times here."""
        self._failures: dict[str, tuple[float, int]] = {}
        """Group -> time of its last failed plan, and how many failed in a row; such a group has no cached plan."""
        self._planned_conditions: dict[str, Condition] = {}
        self._expected_replacements = ExpectedReplacements()
        self._rollout_waits = RolloutWaits(self.reservations, config, clock)

    async def run(self) -> None:
        """Make plans, one after the other, until cancelled."""
        await self._queue.work(self.make_plan, name="plans", base_s=0.1, cap_s=10.0)

    def _queue_order(self, group: str) -> float:
        """Fair queueing by namespace: a small group does not wait for many or large groups of other namespaces."""
        app_group = self._state.groups.get(group)
        if app_group is None:
            return 0.0
        replicas = max(app_group.spec.num_members, len(self._pods_of(group)))
        plan_s = REPLICA_S * replicas + DEPENDENCY_S * len(self._state.graph(group).edges)
        waited_s = self._clock() - self._requested_at.get(group, self._clock())
        return self._planner_time.used_s(app_group.metadata.namespace) + plan_s - AGING_RATIO * waited_s

    def get_or_request(self, group: str, pods: Sequence[Pod]) -> PlanState:
        """The current plan of a group. If it has none, requests one, and returns the outdated plan if that is still feasible."""
        if group not in self._state.groups:
            self.drop_plan(group, pods)
            return PlanState()
        cached = self._cached_plans.get(group)
        if cached is None:
            return PlanState(is_pending=self._request_plan(group))
        self._record_progress(group, cached.plan, pods)
        self._drop_expired_replacements()
        outdated_requests = self._inputs.outdated_requests(pods)
        check = self._check_cached(group, cached, pods, outdated_requests)
        is_current = check.is_feasible and self._is_current(group, cached, pods, check)
        if is_current:
            waits_too_long = self._rollout_waits.refuse_nodes_after_overlong_wait(
                group, cached, pods, check.awaiting_rollout, outdated_requests
            )
            if waits_too_long:
                check = self._check_cached(group, cached, pods, outdated_requests)
        if is_current and check.is_feasible:
            self.reservations.reserve(group, check.unaccounted_pods, outdated_requests)
            return PlanState(cached.plan, awaiting_rollout=check.awaiting_rollout)
        is_pending = self._request_plan(group)
        return PlanState(cached.plan if check.is_feasible else None, is_pending, check.awaiting_rollout)

    def _check_cached(
        self, group: str, cached: CachedPlan, pods: Sequence[Pod], outdated_requests: Mapping[str, Amounts]
    ) -> PlanCheck:
        priority = cached.preempts_below_priority
        preemptible = self._inputs.preemptible_requests(pods, priority) if priority is not None else {}
        return check_plan(cached.plan, group, pods, self.reservations, outdated_requests, preemptible=preemptible)

    def _is_current(self, group: str, cached: CachedPlan, pods: Sequence[Pod], check: PlanCheck) -> bool:
        """Whether the plan is up to date: its inputs are the same, and no resources were freed that pods without a node could use."""
        has_freed_resources = cached.freed_count != self.reservations.freed_count
        lacks_nodes = bool(cached.plan.unplaced or check.awaiting_rollout)
        if has_freed_resources and lacks_nodes and self._clock() - cached.made_at > MIN_REPLAN_S:
            return False
        return cached.cache_key == self._inputs.make_cache_key(group, pods)

    def _request_plan(self, group: str) -> bool:
        """Queue the group for a new plan, after its pause; returns False while a group whose planning failed backs off."""
        now = self._clock()
        failed_at, failures = self._failures.get(group, (0.0, 0))
        if failures and now < failed_at + backoff_delay_s(failures, MIN_BACKOFF_S, MAX_BACKOFF_S):
            return False
        cached = self._cached_plans.get(group)
        pause_s = cached.made_at + PAUSE_RATIO * cached.took_s - now if cached is not None else 0.0
        self._requested_at.setdefault(group, now)
        if pause_s > 0:
            self._queue.add_after(group, pause_s)
        else:
            self._queue.add(group)
        return True

    def drop_plan(self, group: str, pods: Sequence[Pod]) -> None:
        """Drop the plan of a group that is gone or has no waiting pods; bound pods keep reservations until the node cache has them."""
        self._cached_plans.pop(group, None)
        self._failures.pop(group, None)
        self._rollout_waits.forget_group(group)
        self._requested_at.pop(group, None)
        self.reservations.record_progress(group, has_started=False, is_complete=True)
        self.reservations.reserve(group, find_unaccounted_pods(Plan(), pods, self.reservations))
        if group not in self._state.groups:
            self._planned_conditions.pop(group, None)
            self.reservations.record_ended(self._expected_replacements.forget_group(group))

    def groups_with_plan_or_reservations(self) -> frozenset[str]:
        """Keys of the groups that have a plan or reservations."""
        return frozenset((*self._cached_plans, *self.reservations.groups()))

    def planned_condition(self, group: str) -> Condition | None:
        """The condition Planned of the group; None before its first plan or failure."""
        return self._planned_conditions.get(group)

    async def make_plan(self, group: str) -> None:
        """Make and cache a group's plan, and report it or its failure; does nothing if the group has no waiting pods."""
        self._requested_at.pop(group, None)
        app_group = self._state.groups.get(group)
        pods = self._pods_of(group)
        if app_group is None or not any(pod.is_waiting for pod in pods):
            return
        replicas, omitted_replicas = self._inputs.replicas_to_plan(group, pods)
        began = self._clock()
        freed_count = self.reservations.freed_count
        previous = self._cached_plans.get(group)
        self._record_progress(group, previous.plan if previous is not None else None, pods)
        try:
            _check_size(pods, replicas)
            cache_key = self._inputs.make_cache_key(group, pods)
            await asyncio.sleep(0)  # Key and snapshot of thousands of pods would block the event loop together.
            if group not in self._state.groups:
                return  # It was deleted meanwhile.
            snapshot = self._build_snapshot(group, pods)
            with self._metrics.plan_duration.time():
                plan, below_priority = await self._plan_with_preemption(group, snapshot)
                # Pods may have changed during each await, so they are looked up again.
                outdated_requests = self._inputs.outdated_requests(self._pods_of(group))
                plan = await self._rollout_waits.solve_with_fewer_waits(
                    group, snapshot, plan, outdated_requests, self._solve
                )
        except PlanningError as error:
            self._record_failure(group, app_group, error)
        else:
            now = self._clock()
            cached = CachedPlan(
                plan, cache_key, freed_count, made_at=now, took_s=now - began, preempts_below_priority=below_priority
            )
            await self._cache_plan(group, cached)
            self._report_plan(group, app_group, plan, omitted_replicas)
            if any(pod.is_bound for pod in pods):
                # The plan may use resources that were reserved for these groups.
                for other in self.reservations.yielding_groups:
                    self._enqueue(other)
        self._planner_time.record(app_group.metadata.namespace, self._clock() - began)
        self._enqueue(group)

    async def _cache_plan(self, group: str, cached: CachedPlan) -> None:
        """Cache a new plan, and reserve its resources for the group's present pods."""
        self._failures.pop(group, None)
        self._cached_plans[group] = cached
        # The requests of thousands of pods would block the event loop, so they are computed and cached in steps.
        for begin in range(0, len(self._pods_of(group)), PODS_PER_STEP):
            await asyncio.sleep(0)
            for pod in self._pods_of(group)[begin : begin + PODS_PER_STEP]:
                self.reservations.requests_with_ports_of(pod)
        await asyncio.sleep(0)
        pods = self._pods_of(group)
        self._record_progress(group, cached.plan, pods)
        unaccounted_pods = find_unaccounted_pods(cached.plan, pods, self.reservations)
        self.reservations.reserve(group, unaccounted_pods, self._inputs.outdated_requests(pods))

    async def _plan_with_preemption(self, group: str, snapshot: GroupSnapshot) -> tuple[Plan, int | None]:
        """A plan, and the priority below which it preempts pods; None if it preempts none. See `PlanInputs.plan_with_preemption`."""
        search_s = self._planner_time.search_limit_s(group.partition("/")[0], others_wait=len(self._queue) > 0)
        began = self._clock()
        plan = await self._solve(snapshot, search_s)
        preemption = self._inputs.build_preemption(snapshot, plan)
        if preemption is None:
            return plan, None
        remaining_s = max(search_s - (self._clock() - began), MIN_SEARCH_S)
        preempting_plan = await self._solve(preemption.snapshot, remaining_s)
        places_more = len(preempting_plan.unplaced) < len(plan.unplaced)
        return (preempting_plan, preemption.below_priority) if places_more else (plan, None)

    async def simulate_replacement(self, group: str, key: str, seed_offset: int) -> Target | None:
        """The node on which a plan would place the replacement of a bound pod, by the pod's key; None if no node has the capacity.

        ``seed_offset`` varies the random seed; answers differ only if placements are about equal.

        Raises:
            PlanningError: nothing was planned.
        """
        pods = self._pods_of(group)
        if group not in self._state.groups or not any(pod.metadata.key == key and pod.is_bound for pod in pods):
            raise PlanningError("PodGone", "the pod or its group is gone")
        snapshot = without_pod(self._build_snapshot(group, pods), key)
        previous = {k: target for k, target in snapshot.previous_targets.items() if k != key}
        snapshot = msgspec.structs.replace(snapshot, previous_targets=previous, seed_offset=seed_offset)
        return (await self._solve(snapshot, MAX_SEARCH_S)).targets.get(key)

    def expect_replacement(self, group: str, key: str, target: Target, *, duration_s: float) -> None:
        """Reserve a node for the replacement of a pod that will be evicted, where the group's next plan places it, if possible.

        The reservation bridges the time until the replacement exists: a StatefulSet creates it after the evicted pod is gone. It ends after
        ``duration_s``. ``group`` and ``key`` are the keys of the pod and its group; nothing is reserved if the pod is gone.
        """
        pods = {pod.metadata.key: pod for pod in self._pods_of(group)}
        if (pod := pods.pop(key, None)) is not None:
            requests, expires_at_s = self.reservations.requests_with_ports_of(pod), self._clock() + duration_s
            expected = ExpectedReplacement(pod.workload, target, frozenset(pods), expires_at_s, requests)
            self.reservations.record_ended(self._expected_replacements.add(group, key, expected))

    def _drop_expired_replacements(self) -> None:
        self.reservations.record_ended(self._expected_replacements.drop_expired(self._clock()))

    def _record_progress(self, group: str, plan: Plan | None, pods: Sequence[Pod]) -> None:
        has_started = any(pod.is_bound for pod in pods)
        is_complete = plan is None or not plan.unplaced
        self.reservations.record_progress(group, has_started=has_started, is_complete=is_complete)

    def _build_snapshot(self, group: str, pods: Sequence[Pod]) -> GroupSnapshot:
        """The inputs of a plan, with reservations of other groups and for replacements that do not exist yet."""
        self._drop_expired_replacements()
        previous = dict(self._cached_plans[group].plan.targets) if group in self._cached_plans else {}
        self._expected_replacements.add_targets(previous, group, pods)
        reserved = self.reservations.reserved_by_others(group)
        self._expected_replacements.add_requests_of_others(reserved, group, self._pods_of)
        refused = self.reservations.refused_nodes.nodes_by_pod(pods)
        snapshot = self._inputs.build_snapshot(group, pods)
        return msgspec.structs.replace(snapshot, previous_targets=previous, reserved=reserved, refused_nodes=refused)

    def _record_failure(self, group: str, app_group: AppGroup, error: PlanningError) -> None:
        _, failures = self._failures.get(group, (0.0, 0))
        self._failures[group] = self._clock(), failures + 1
        self._cached_plans.pop(group, None)
        self.reservations.reserve(group, ())
        self.reservations.record_progress(group, has_started=False, is_complete=True)
        log.log_change(f"plan/{group}", error.reason, "the group is not planned", group=group, error=error)
        self._set_condition(app_group, error.reason, f"{error}; its pods are placed by NetworkOverhead's rule")

    def _report_plan(self, group: str, app_group: AppGroup, plan: Plan, omitted_replicas: int) -> None:
        fault, message = "", "the group's plan is complete"
        if plan.unplaced or plan.violations:
            fault = "unplaced" if plan.unplaced else "violations"
            message = "the group's plan has unplaced pods or violates maxNetworkCost"
        cost, violations, unplaced = plan.cost, plan.violations, len(plan.unplaced)
        topic = f"plan/{group}"
        log.log_change(topic, fault, message, group=group, cost=cost, violations=violations, unplaced=unplaced)
        if plan.unplaced:
            names = join_first([key.partition("/")[2] for key in plan.unplaced], MAX_NAMES_SHOWN)
            self._set_condition(app_group, "InsufficientCapacity", f"no node has the capacity for {names}")
        elif omitted_replicas:
            members = app_group.spec.num_members
            message = f"only {members} pods get reservations, and workloads declare more; raise spec.numMembers"
            self._set_condition(app_group, "MoreDeclared", message, holds=True)
        else:
            self._set_condition(app_group, "Complete", "every waiting pod has a node", holds=True)

    def _set_condition(self, app_group: AppGroup, reason: str, message: str, *, holds: bool = False) -> None:
        group, generation = app_group.metadata.key, app_group.metadata.generation
        planned = make_condition(PLANNED, holds=holds, reason=reason, message=message, generation=generation)
        if self._planned_conditions.get(group) != planned:
            self._planned_conditions[group] = planned
            self._notify(group)


def _check_size(pods: Sequence[Pod], replicas: Mapping[str, int]) -> None:
    active = Counter(pod.workload for pod in pods if pod.is_active)
    count = active.total() + sum(max(declared - active[workload], 0) for workload, declared in replicas.items())
    if count > MAX_PODS:
        message = f"{count} existing and declared pods; at most {MAX_PODS} are planned together"
        raise PlanningError("TooManyPods", message)
