"""Makes and keeps the plans of all groups, one after the other, within limits.

One after the other, because a plan has to know what the one before it reserved. A group that cannot be planned (too
large, too slow) says so in its condition, and its pods are placed by NetworkOverhead's rule; other groups do not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from controller.cluster.pods import GroupPod, Target
from controller.cluster.requests import Amounts
from controller.cluster.resources import AppGroup
from controller.scheduler.config import GatesConfig
from controller.scheduler.gating.cached_plan import (
    UNPLACED_FOR_S,
    CachedPlan,
    check_plan,
    compare_with_pods,
)
from controller.scheduler.gating.planner_time import LEAST_SEARCH_S, SEARCH_S, PlannerTime
from controller.scheduler.gating.release import GroupQueue
from controller.scheduler.gating.replacements import Expected, ExpectedReplacements
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.gating.rollout_room import RolloutRoom, Solve
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import Plan, PlanningError
from controller.scheduler.placement.snapshot import GroupSnapshot, without_pod
from kubekit import logs
from kubekit.conditions import condition
from kubekit.text import listed
from kubekit.waiting import backoff_s
from kubekit.wire import Condition
from kubekit.workqueue import WorkQueue

log = logs.get("controller.scheduler.gating.group_plans")

PLANNED = "Planned"
MAX_PODS = 10_000
"""A group with more pods, declared ones included, is not planned."""
SHARE = 3.0
"""A group rests this many times as long as its last plan took, so that one that never settles leaves time to others."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 600.0
AGING = 0.01
"""Seconds of planner time that a group gains on others for each second that it waits for its turn: its larger size keeps it back for a
bounded time, though smaller groups of its namespace come again and again."""
SHOWN = 3
AT_A_TIME = 1000
"""Pods whose requests are worked out in one turn of the event loop: some 5 ms."""


class PlanState(msgspec.Struct, frozen=True):
    """A group's plan, or that one is pending.

    Attributes:
        plan: None without one: plans are off, refused, or not made yet.
        pending: a new one is being made; of the one there is, only what it has places for counts.
        awaiting_room: keys of gated pods whose places are held by pods that a rollout is about to replace.
    """

    plan: Plan | None = None
    pending: bool = False
    awaiting_room: frozenset[str] = frozenset()

    def applied_to(self, queue: GroupQueue) -> GroupQueue:
        """The queue with what the plan says of its pods. A plan that is being made may have a place for those without one."""
        targets, unplaced = (self.plan.targets, self.plan.unplaced) if self.plan is not None else ({}, ())
        return msgspec.structs.replace(
            queue,
            unplaced=frozenset() if self.pending else frozenset(unplaced),
            planned=frozenset(targets) if self.pending else None,
            awaiting_room=self.awaiting_room,
        )


class GroupPlans:
    """The plans.

    Args:
        inputs: the cluster.
        pods_of: a group's pods by its key.
        config: the section ``scheduler.gates``.
        metrics: where to count.
        solve: makes a plan, elsewhere; raises `PlanningError`.
        wake: called with a group's key when it has a new plan, or is to have none.
        notify: called with a group's key when `report` says something new of it.
        clock: monotonic seconds.

    Attributes:
        assumed: reservations and refusals of all groups.
    """

    def __init__(
        self,
        inputs: PlanInputs,
        pods_of: Callable[[str], Sequence[GroupPod]],
        *,
        config: GatesConfig,
        metrics: GateMetrics,
        solve: Solve,
        wake: Callable[[str], None],
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inputs, self._state, self._node_cache = inputs, inputs.state, inputs.node_cache
        self._pods_of, self._say = pods_of, notify
        self._config, self._metrics, self._solve, self._wake, self._clock = config, metrics, solve, wake, clock
        self.assumed = ReservationCache(inputs.node_cache)
        self._planner_time = PlannerTime(clock)
        self._queue = WorkQueue(self._order)
        self._cached: dict[str, CachedPlan] = {}
        self._asked_at: dict[str, float] = {}
        self._failed: dict[str, tuple[float, int]] = {}
        self._reports: dict[str, Condition] = {}
        self._expected = ExpectedReplacements()
        self._rollouts = RolloutRoom(self.assumed, config, clock)

    async def run(self) -> None:
        """Make plans, one after the other, until cancelled."""
        await self._queue.work(self.make, name="plans", base_s=0.1, cap_s=10.0)

    def _order(self, group: str) -> float:
        """Fair queueing by namespace: no tenant's groups, of however many namespaces, keep a small group of others waiting."""
        known = self._state.groups.get(group)
        if known is None:
            return 0.0
        replicas = max(known.spec.num_members, len(self._pods_of(group)))
        namespace, dependencies = known.metadata.namespace, len(self._state.graph(group).edges)
        waited_s = self._clock() - self._asked_at.get(group, self._clock())
        return self._planner_time.used_after_s(namespace, replicas, dependencies) - AGING * waited_s

    def get_or_request(self, group: str, pods: Sequence[GroupPod]) -> PlanState:
        """The valid plan of a group; requests one if there is none."""
        if group not in self._state.groups:
            self.drop(group, pods)
            return PlanState()
        cached = self._cached.get(group)
        if cached is None:
            return self._ask(group)
        now = self._clock()
        self._record_progress(group, cached.plan, pods)
        leaving, evictable = self._inputs.leaving(pods), self._inputs.evictable(pods, cached.evicts_below)
        check = check_plan(cached.plan, group, pods, self.assumed, leaving, evictable=evictable)
        self._drop_expired()
        room_came = bool(cached.plan.unplaced or check.awaiting_room) and cached.freed != self.assumed.freed
        stale = room_came and now - cached.made_at > UNPLACED_FOR_S
        same = not stale and cached.inputs == self._inputs.key(group, pods)
        valid = same and check.followed and check.has_room
        if valid and self._rollouts.give_up(group, cached, pods, check.awaiting_room, leaving):
            check = check_plan(cached.plan, group, pods, self.assumed, leaving, evictable=evictable)
        if same and check.followed and check.has_room:
            self.assumed.reserve(group, check.uncounted, leaving)
            return PlanState(cached.plan, awaiting_room=check.awaiting_room)
        asked = self._ask(group)
        usable = check.followed and check.has_room and asked.pending
        return PlanState(cached.plan if usable else None, asked.pending, check.awaiting_room)

    def _ask(self, group: str) -> PlanState:
        """Have a plan made as soon as it is the group's turn again; refused groups have to wait."""
        now = self._clock()
        failed_at, times = self._failed.get(group, (0.0, 0))
        if times and now < failed_at + backoff_s(times, FIRST_PAUSE_S, LONGEST_PAUSE_S):
            return PlanState()
        cached = self._cached.get(group)
        rest_s = cached.made_at + SHARE * cached.took_s - now if cached is not None else 0.0
        self._asked_at.setdefault(group, now)
        self._queue.add_after(group, rest_s) if rest_s > 0 else self._queue.add(group)
        return PlanState(pending=True)

    def drop(self, group: str, pods: Sequence[GroupPod]) -> None:
        """Drop the plan of a group that is gone or has no waiting pods; hosts stay reserved for pods that are not counted there yet."""
        self._cached.pop(group, None)
        self._failed.pop(group, None)
        self._rollouts.forget(group)
        self._asked_at.pop(group, None)
        self.assumed.record_progress(group, begun=False, whole=True)
        bound = [(p, p.spec.node_name) for p in pods if p.bound and not self._node_cache.assigned_node(p.metadata.key)]
        self.assumed.reserve(group, bound)
        if group not in self._state.groups:
            self._reports.pop(group, None)
            self._expected.forget(group)

    def groups_with_reservations(self) -> frozenset[str]:
        """Groups that have a plan, or have reservations."""
        return frozenset((*self._cached, *self.assumed.holders()))

    def report(self, group: str) -> Condition | None:
        """The condition Planned of the group; None without one."""
        return self._reports.get(group)

    async def make(self, group: str) -> None:
        """Make a group's plan now."""
        self._asked_at.pop(group, None)
        known, pods = self._state.groups.get(group), self._pods_of(group)
        if known is None or not any(pod.waiting for pod in pods):
            self._reports.pop(group, None) if known is None else None
            return
        replicas, left_out = self._inputs.replicas(group, pods)
        namespace = group.partition("/")[0]
        began, freed = self._clock(), self.assumed.freed
        before = self._cached.get(group)
        self._record_progress(group, before.plan if before is not None else None, pods)
        try:
            _check_size(pods, replicas)
            inputs = self._inputs.key(group, pods)
            await asyncio.sleep(0)  # of thousands of pods each takes some 10 ms
            snapshot = self._snapshot(group, pods)
            with self._metrics.planning.time():
                plan, evicts_below = await self._solve_evicting(group, snapshot)
                plan = await self._rollouts.solve_without_waits(
                    group, snapshot, plan, self._inputs.leaving(self._pods_of(group)), self._solve
                )
        except PlanningError as error:
            self._fail(group, known, error)
        else:
            took_s = self._clock() - began
            self._failed.pop(group, None)
            self._cached[group] = CachedPlan(plan, inputs, freed, self._clock(), took_s, evicts_below)
            # Thousands of pods take their time: not all of it in one turn of the event loop.
            for begin in range(0, len(pods), AT_A_TIME):
                await asyncio.sleep(0)
                self.assumed.precompute_requests(self._pods_of(group)[begin : begin + AT_A_TIME])
            await asyncio.sleep(0)
            self._reserve(group, plan)
            self._notify(group, known, plan, left_out)
            if any(pod.bound for pod in pods):
                # It may have taken room that was reserved for some of these.
                for idle in self.assumed.idle:
                    self._wake(idle)
        self._planner_time.add(namespace, self._clock() - began)
        self._wake(group)

    async def _solve_evicting(self, group: str, snapshot: GroupSnapshot) -> tuple[Plan, int | None]:
        """A plan in the room that there is; else one for which pods of less priority than that, too, are evicted."""
        search_s = self._planner_time.search_s(group.partition("/")[0], others_wait=len(self._queue) > 0)
        began = self._clock()
        plan = await self._solve(snapshot, search_s)
        second = self._inputs.with_evictions(snapshot, plan)
        if second is None:
            return plan, None
        left_s = max(search_s - (self._clock() - began), LEAST_SEARCH_S)
        evicting = await self._solve(second.snapshot, left_s)
        return second.choose(plan, evicting)

    async def simulate_replacement(self, group: str, key: str, turn: int) -> Target | None:
        """Where a plan would place a bound pod's replacement; None if nowhere.

        Args:
            group: its key.
            key: of the pod.
            turn: asked again with another turn, a plan that holds gives the same answer.

        Raises:
            PlanningError: nothing was planned.
        """
        known, pods = self._state.groups.get(group), self._pods_of(group)
        if known is None or not any(pod.metadata.key == key and pod.bound for pod in pods):
            raise PlanningError("PodGone", "the pod or its group is gone")
        question = without_pod(self._snapshot(group, pods), key)
        previous = {k: target for k, target in question.previous.items() if k != key}
        question = msgspec.structs.replace(question, previous=previous, turn=turn)
        plan = await self._solve(question, SEARCH_S)
        return plan.targets.get(key)

    def expect(
        self,
        group: str,
        workload: str,
        target: Target,
        known: Iterable[str],
        *,
        for_s: float,
        requests: Mapping[str, int] = {},
    ) -> None:
        """A pod of a workload is evicted for the sake of a host: its replacement is meant for that host.

        Its room there is kept from other groups' plans until it has come, for a StatefulSet's comes when its predecessor is gone.

        Args:
            group: key of its AppGroup.
            workload: its selector.
            target: the host.
            known: keys of the group's pods that are there now, none of which is the replacement.
            for_s: how long it is waited for.
            requests: what it will ask for.
        """
        until = self._clock() + for_s
        self._expected.add(group, Expected(workload, target, frozenset(known), until, dict(requests)))

    def _drop_expired(self) -> None:
        self.assumed.ended += self._expected.drop_expired(self._clock())

    def _reserved_by_others(self, group: str) -> dict[str, Amounts]:
        """Host -> reservations of other groups, those that have yet to be made among them."""
        found = self.assumed.reserved_by_others(group)
        self._drop_expired()
        self._expected.add_promises_to_others(found, group, self._pods_of)
        return found

    def _previous(self, group: str, pods: Sequence[GroupPod]) -> dict[str, Target]:
        """Targets of the previous plan, and hosts reserved for replacements of evicted pods."""
        before = self._cached.get(group)
        self._drop_expired()
        return self._expected.with_targets(dict(before.plan.targets) if before else {}, group, pods)

    def _reserve(self, group: str, plan: Plan) -> None:
        pods = self._pods_of(group)
        self._record_progress(group, plan, pods)
        uncounted, _ = compare_with_pods(plan, pods, self.assumed)
        self.assumed.reserve(group, uncounted, self._inputs.leaving(pods))

    def _record_progress(self, group: str, plan: Plan | None, pods: Sequence[GroupPod]) -> None:
        begun = any(pod.bound for pod in pods)
        self.assumed.record_progress(group, begun=begun, whole=plan is None or not plan.unplaced)

    def _snapshot(self, group: str, pods: Sequence[GroupPod]) -> GroupSnapshot:
        return msgspec.structs.replace(
            self._inputs.snapshot(group, pods),
            previous=self._previous(group, pods),
            promised=self._reserved_by_others(group),
            refused=self.assumed.refused(pods),
        )

    def _fail(self, group: str, known: AppGroup, error: PlanningError) -> None:
        _, times = self._failed.get(group, (0.0, 0))
        self._failed[group] = (self._clock(), times + 1)
        self._cached.pop(group, None)
        self.assumed.reserve(group, ())
        self.assumed.record_progress(group, begun=False, whole=True)
        log.change(f"plan/{group}", error.reason, "the group is not planned", group=group, error=str(error))
        self._report(group, known, error.reason, f"{error}; its pods are placed by the plain rule")

    def _notify(self, group: str, known: AppGroup, plan: Plan, left_out: int) -> None:
        result = "unplaced" if plan.unplaced else "violations" if plan.violations else "complete"
        log.change(
            f"plan/{group}",
            "" if result == "complete" else result,
            "the group's plan is complete" if result == "complete" else "the group cannot be placed as it asks",
            group=group,
            cost=plan.cost,
            violations=plan.violations,
            unplaced=len(plan.unplaced),
        )
        if plan.unplaced:
            names = listed([key.partition("/")[2] for key in plan.unplaced], SHOWN)
            self._report(group, known, "NoRoom", f"no node has room for {names}")
        elif left_out:
            message = (
                f"declared replicas that do not exist count up to numMembers ({known.spec.num_members}); more are declared, "
                "for which no room is kept"
            )
            self._report(group, known, "MoreDeclared", message, holds=True)
        else:
            self._report(group, known, "Complete", "every waiting pod has a place", holds=True)

    def _report(self, group: str, known: AppGroup, reason: str, message: str, *, holds: bool = False) -> None:
        generation = known.metadata.generation
        report = condition(PLANNED, holds=holds, reason=reason, message=message, generation=generation)
        if self._reports.get(group) != report:
            self._reports[group] = report
            self._say(group)


def _check_size(pods: Sequence[GroupPod], replicas: Mapping[str, int]) -> None:
    live = Counter(pod.workload for pod in pods if pod.is_active)
    count = live.total() + sum(max(wanted - live[workload], 0) for workload, wanted in replicas.items())
    if count > MAX_PODS:
        raise PlanningError(
            "TooManyPods", f"{count} pods, declared ones included; at most {MAX_PODS} are planned together"
        )
