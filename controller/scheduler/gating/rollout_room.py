"""Pods that wait until a rollout frees room on their node: other nodes for them, and the end of their wait.

A plan is for the state after the rollout. Until then the pods that it replaces hold their room, so a new pod may find its node full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from controller.cluster.pods import GroupPod
from controller.cluster.requests import Amounts
from controller.scheduler.config import GatesConfig
from controller.scheduler.gating.cached_plan import CachedPlan, check_plan
from controller.scheduler.gating.planner_time import LEAST_SEARCH_S
from controller.scheduler.gating.release import ROLLOUT_PAUSE_S
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.gating.retries import class_of
from controller.scheduler.placement.planner import Plan, PlanningError
from controller.scheduler.placement.snapshot import GroupSnapshot

Solve = Callable[[GroupSnapshot, float], Awaitable[Plan]]
"""Makes a plan, with a search of at most so many seconds."""
WAIT_SHARE = 0.75
"""Share of ``maxWaitS`` for which a pod waits until a rollout frees room."""
SLOWER = 1.05
"""Ratio of the times of a call up to which a plan that waits for nothing is preferred."""


class RolloutRoom:
    """Pods that wait for room, of all groups.

    Args:
        assumed: reservations and refusals.
        config: the section ``scheduler.gates``.
        clock: monotonic seconds.
    """

    def __init__(self, assumed: ReservationCache, config: GatesConfig, clock: Callable[[], float]) -> None:
        self._assumed, self._config, self._clock = assumed, config, clock
        self._since: dict[str, dict[str, float]] = {}
        self._unsuccessful: dict[str, object] = {}

    def forget(self, group: str) -> None:
        """No pod of the group waits any more."""
        self._since.pop(group, None)
        self._unsuccessful.pop(group, None)

    async def solve_without_waits(
        self, group: str, snapshot: GroupSnapshot, plan: Plan, leaving: Mapping[str, Amounts], solve: Solve
    ) -> Plan:
        """A plan that is as good and in which fewer pods wait for room; the given plan if there is none.

        It first looks for other nodes for all waiting pods, then for the oldest alone.

        Args:
            group: its key.
            snapshot: what the plan was made from.
            plan: its plan.
            leaving: node -> requests of pods that a rollout is about to replace there.
            solve: makes a plan.
        """
        if not leaving:
            return plan
        await asyncio.sleep(0)  # the check of thousands of pods takes some 20 ms
        awaiting_room = check_plan(plan, group, snapshot.pods, self._assumed, leaving).awaiting_room
        waiting = sorted((pod for pod in snapshot.pods if pod.metadata.key in awaiting_room), key=_age_order)
        locations = {key: target.location for key, target in plan.targets.items()}
        full = await self._full_by_class(group, waiting, leaving)
        tried = [pod.metadata.key for pod in waiting], full
        if self._unsuccessful.get(group) == tried:
            return plan
        for movable in (waiting, waiting[:1])[: len(waiting)]:
            refused = dict(snapshot.refused)
            for pod in movable:
                refused[pod.metadata.key] = refused.get(pod.metadata.key, frozenset()) | full[class_of(pod)]
            wanted = msgspec.structs.replace(snapshot, refused=refused, previous=plan.targets)
            try:
                other = await solve(wanted, LEAST_SEARCH_S)
            except PlanningError:
                return plan
            lacks = (len(other.unplaced), other.violations) > (len(plan.unplaced), plan.violations)
            near = locations == {key: target.location for key, target in other.targets.items()}
            if not lacks and (near or other.latency_us <= SLOWER * plan.latency_us):
                return other
        self._unsuccessful[group] = tried
        return plan

    async def _full_by_class(
        self, group: str, waiting: Iterable[GroupPod], nodes: Iterable[str]
    ) -> dict[str, frozenset[str]]:
        """Class of pods -> the nodes that have no room for one of it now."""
        found: dict[str, frozenset[str]] = {}
        for pod in waiting:
            if class_of(pod) not in found:
                await asyncio.sleep(0)  # 1,000 nodes take some 5 ms
                found[class_of(pod)] = frozenset(self._full(group, pod, nodes))
        return found

    def give_up(
        self,
        group: str,
        cached: CachedPlan,
        pods: Sequence[GroupPod],
        awaiting_room: Collection[str],
        leaving: Iterable[str],
    ) -> bool:
        """Refuse full nodes to the oldest waiting pod, once nothing has changed for a while or before its gate would open without regard
        to the plan. Its start lets the rollout go on. Returns whether the plan is out of date by that.
        """
        now, known = self._clock(), self._since.get(group, {})
        since = self._since[group] = {key: known.get(key, now) for key in awaiting_room}
        oldest = min((pod for pod in pods if pod.metadata.key in awaiting_room), key=_age_order, default=None)
        if oldest is None:
            return False
        key, held = oldest.metadata.key, (p for p in pods if self._assumed.node_cache.assigned_node(p.metadata.key))
        # A pod that is starting will take an old one's place, and one that is going will leave its room.
        moves = any(not pod.is_active or not pod.ready for pod in held)
        quiet_s = self._config.max_wait_s / 2 if moves else ROLLOUT_PAUSE_S
        if now - cached.made_at < quiet_s and now - since[key] < WAIT_SHARE * self._config.max_wait_s:
            return False
        for node in self._full(group, oldest, {*leaving, cached.plan.targets[key].node}):
            self._assumed.refuse(oldest, node)
        return True

    def _full(self, group: str, pod: GroupPod, nodes: Iterable[str]) -> list[str]:
        """The nodes that have no room for a pod now."""
        asks = self._assumed.host_requests_of(pod)
        return [node for node in nodes if not self._assumed.has_room(group, node, asks, now=True)]


def _age_order(pod: GroupPod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.key
