"""Finds other nodes for pods whose planned node is full until a rollout removes the pods that they replace.

A plan assumes that the rollout is complete; until then the replaced pods occupy their nodes.
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
from controller.scheduler.gating.retries import owner_key
from controller.scheduler.placement.planner import Plan, PlanningError
from controller.scheduler.placement.snapshot import GroupSnapshot

Solve = Callable[[GroupSnapshot, float], Awaitable[Plan]]
"""Makes a plan; the second argument limits the search in seconds."""
WAIT_SHARE = 0.75
"""Share of ``maxWaitS`` that a pod waits for a rollout."""
MAX_SLOWDOWN = 1.05
"""A plan in which fewer pods wait is preferred if its calls take at most this many times as long."""


class RolloutWaits:
    """Waits of all groups for their rollouts.

    Args:
        reservations: of all groups.
        config: the section ``scheduler.gates``.
        clock: monotonic seconds.
    """

    def __init__(self, reservations: ReservationCache, config: GatesConfig, clock: Callable[[], float]) -> None:
        self._reservations, self._config, self._clock = reservations, config, clock
        self._since: dict[str, dict[str, float]] = {}
        self._tried: dict[str, object] = {}

    def forget(self, group: str) -> None:
        """No pod of the group waits any more."""
        self._since.pop(group, None)
        self._tried.pop(group, None)

    async def solve_without_waits(
        self, group: str, snapshot: GroupSnapshot, plan: Plan, leaving: Mapping[str, Amounts], solve: Solve
    ) -> Plan:
        """A plan that is about as good and in which fewer pods wait; the given plan if there is none.

        First it looks for other nodes for all waiting pods, then for the oldest one alone.

        Args:
            group: its key.
            snapshot: what the plan was made from.
            plan: its plan.
            leaving: node -> requests of pods that a rollout is about to replace there.
            solve: makes a plan.
        """
        if not leaving:
            return plan
        await asyncio.sleep(0)  # The check of thousands of pods takes some 20 ms.
        awaiting_room = check_plan(plan, group, snapshot.pods, self._reservations, leaving).awaiting_room
        waiting = sorted((pod for pod in snapshot.pods if pod.metadata.key in awaiting_room), key=_age_order)
        locations = {key: target.location for key, target in plan.targets.items()}
        if not waiting:
            return plan
        full = await self._full_by_owner(group, waiting, leaving)
        tried = [pod.metadata.key for pod in waiting], full
        if self._tried.get(group) == tried:
            return plan
        for movable in (waiting, waiting[:1]) if len(waiting) > 1 else (waiting,):
            refused = dict(snapshot.refused)
            for pod in movable:
                refused[pod.metadata.key] = refused.get(pod.metadata.key, frozenset()) | full[owner_key(pod)]
            wanted = msgspec.structs.replace(snapshot, refused=refused, previous=plan.targets)
            try:
                other = await solve(wanted, LEAST_SEARCH_S)
            except PlanningError:
                return plan
            is_worse = (len(other.unplaced), other.violations) > (len(plan.unplaced), plan.violations)
            has_same_zones = locations == {key: target.location for key, target in other.targets.items()}
            if not is_worse and (has_same_zones or other.latency_us <= MAX_SLOWDOWN * plan.latency_us):
                return other
        self._tried[group] = tried
        return plan

    async def _full_by_owner(
        self, group: str, waiting: Iterable[GroupPod], nodes: Iterable[str]
    ) -> dict[str, frozenset[str]]:
        """Owner of pods -> the nodes that have no room now for a pod of that owner."""
        full: dict[str, frozenset[str]] = {}
        for pod in waiting:
            if owner_key(pod) not in full:
                await asyncio.sleep(0)  # 1,000 nodes take some 5 ms.
                full[owner_key(pod)] = frozenset(self._full_nodes(group, pod, nodes))
        return full

    def give_up(
        self,
        group: str,
        cached: CachedPlan,
        pods: Sequence[GroupPod],
        awaiting_room: Collection[str],
        leaving: Iterable[str],
    ) -> bool:
        """End the wait of the oldest waiting pod if it takes too long: its node, and other full ones, count as refused.

        The pod's start lets the rollout go on. A wait takes too long if nothing has changed for a while, or if the pod's gate is about to
        open regardless of the plan. Returns whether a wait was ended, so that a new plan is needed.
        """
        now, before = self._clock(), self._since.get(group, {})
        since = self._since[group] = {key: before.get(key, now) for key in awaiting_room}
        oldest = min((pod for pod in pods if pod.metadata.key in awaiting_room), key=_age_order, default=None)
        if oldest is None:
            return False
        key, counted = (
            oldest.metadata.key,
            (p for p in pods if self._reservations.node_cache.assigned_node(p.metadata.key)),
        )
        # Pods that start or terminate mean that the rollout makes progress.
        has_progress = any(not pod.is_active or not pod.ready for pod in counted)
        quiet_s = self._config.max_wait_s / 2 if has_progress else ROLLOUT_PAUSE_S
        if now - cached.made_at < quiet_s and now - since[key] < WAIT_SHARE * self._config.max_wait_s:
            return False
        for node in self._full_nodes(group, oldest, {*leaving, cached.plan.targets[key].node}):
            self._reservations.refuse(oldest, node)
        return True

    def _full_nodes(self, group: str, pod: GroupPod, nodes: Iterable[str]) -> list[str]:
        """The nodes that have no room for a pod now."""
        asks = self._reservations.host_requests_of(pod)
        return [node for node in nodes if not self._reservations.has_room(group, node, asks, released_only=True)]


def _age_order(pod: GroupPod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.key
