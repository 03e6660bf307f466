"""Limits the wait of pods whose planned nodes are full until a rollout removes the pods that they replace.

A plan assumes that the rollout is complete; until then the replaced pods occupy their nodes. A node is full for a pod if the pod's
requests or host ports do not fit beside the node's pods and other groups' released pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from controller.cluster.costs import Location
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import Amounts
from controller.scheduler.config import GatesConfig
from controller.scheduler.gating.cached_plan import CachedPlan, age_order, check_plan
from controller.scheduler.gating.planner_time import MIN_SEARCH_S
from controller.scheduler.gating.release import ROLLOUT_STEP_S
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.gating.retries import owner_key
from controller.scheduler.placement.planner import Plan, PlanningError
from controller.scheduler.placement.snapshot import GroupSnapshot

Solve = Callable[[GroupSnapshot, float], Awaitable[Plan]]
"""Makes a plan; the second argument limits the search in seconds."""
MAX_WAIT_SHARE = 0.75
"""Longest wait of a pod for a rollout, as a share of ``maxWaitS``. After ``maxWaitS`` itself the gate is opened regardless of the plan."""
MAX_PLAN_AGE_SHARE = 0.5
"""Longest age of a plan for which pods wait while the rollout makes progress, as a share of ``maxWaitS``."""
MAX_SLOWDOWN = 1.05
"""A plan in which fewer pods wait is preferred if its calls take at most this many times as long."""


class RolloutWaits:
    """Remembers since when pods wait for rollouts, by a monotonic clock, and limits their waits. ``config`` is ``scheduler.gates``."""

    def __init__(self, reservations: ReservationCache, config: GatesConfig, clock: Callable[[], float]) -> None:
        self._reservations, self._config, self._clock = reservations, config, clock
        self._waiting_since: dict[str, dict[str, float]] = {}
        """Group -> pod key -> start of its wait."""
        self._failed_searches: dict[str, tuple[list[str], dict[str, frozenset[str]]]] = {}
        """Group -> waiting pods, and owner -> full nodes, of a search that found no better plan; the same search is not repeated."""

    def forget_group(self, group: str) -> None:
        """Forget the waits of a group that has no waiting pods any more."""
        self._waiting_since.pop(group, None)
        self._failed_searches.pop(group, None)

    async def solve_with_fewer_waits(
        self, group: str, snapshot: GroupSnapshot, plan: Plan, outdated_requests: Mapping[str, Amounts], solve: Solve
    ) -> Plan:
        """Search a plan, about as good, in which fewer pods wait for a rollout; returns ``plan`` if there is none.

        ``plan`` was made from the snapshot; ``outdated_requests`` is node -> requests of pods that a rollout is about to replace there.
        The first search keeps all waiting pods off full nodes, the second only the oldest.
        """
        if not outdated_requests:
            return plan
        await asyncio.sleep(0)  # The check of thousands of pods blocks the event loop.
        awaiting = check_plan(plan, group, snapshot.pods, self._reservations, outdated_requests).awaiting_rollout
        waiting = sorted((pod for pod in snapshot.pods if pod.metadata.key in awaiting), key=age_order)
        if not waiting:
            return plan
        full_nodes: dict[str, frozenset[str]] = {}
        for pod in waiting:
            if owner_key(pod) not in full_nodes:
                await asyncio.sleep(0)  # The check of thousands of nodes blocks the event loop.
                full_nodes[owner_key(pod)] = frozenset(self._full_nodes(group, pod, outdated_requests))
        search_key = [pod.metadata.key for pod in waiting], full_nodes
        if self._failed_searches.get(group) == search_key:
            return plan
        for moved_pods in [waiting] if len(waiting) == 1 else [waiting, waiting[:1]]:
            refused_nodes = dict(snapshot.refused_nodes)
            for pod in moved_pods:
                key = pod.metadata.key
                refused_nodes[key] = refused_nodes.get(key, frozenset()) | full_nodes[owner_key(pod)]
            restricted = msgspec.structs.replace(snapshot, refused_nodes=refused_nodes, previous_targets=plan.targets)
            try:
                alternative = await solve(restricted, MIN_SEARCH_S)
            except PlanningError:
                return plan  # No failed search is recorded, so the next plan tries again.
            if _is_about_as_good(alternative, plan):
                return alternative
        self._failed_searches[group] = search_key
        return plan

    def refuse_nodes_after_overlong_wait(
        self,
        group: str,
        cached: CachedPlan,
        pods: Sequence[Pod],
        awaiting_rollout: Collection[str],
        nodes_with_outdated_pods: Iterable[str],
    ) -> bool:
        """Refuse the full nodes to the oldest waiting pod, if the pod has waited or its plan has existed for too long; returns whether so.

        Its planned node is one of the full nodes, so it needs a new plan. The rollout continues when it has started elsewhere. The limit is
        `MAX_WAIT_SHARE` for the pod; for the plan `MAX_PLAN_AGE_SHARE`, or `ROLLOUT_STEP_S` if the rollout makes no progress.
        """
        now = self._clock()
        before = self._waiting_since.get(group, {})
        waiting_since = self._waiting_since[group] = {key: before.get(key, now) for key in awaiting_rollout}
        oldest = min((pod for pod in pods if pod.metadata.key in awaiting_rollout), key=age_order, default=None)
        if oldest is None:
            return False
        key, assigned_node = oldest.metadata.key, self._reservations.node_cache.assigned_node
        # Pods that start or terminate show that the rollout makes progress.
        is_progressing = any(not p.is_active or not p.is_ready for p in pods if assigned_node(p.metadata.key))
        max_plan_age_s = MAX_PLAN_AGE_SHARE * self._config.max_wait_s if is_progressing else ROLLOUT_STEP_S
        is_wait_over = now - waiting_since[key] >= MAX_WAIT_SHARE * self._config.max_wait_s
        if now - cached.made_at < max_plan_age_s and not is_wait_over:
            return False
        for node in self._full_nodes(group, oldest, {*nodes_with_outdated_pods, cached.plan.targets[key].node}):
            self._reservations.refused_nodes.add(oldest, node)
        return True

    def _full_nodes(self, group: str, pod: Pod, nodes: Iterable[str]) -> list[str]:
        requests = self._reservations.requests_with_ports_of(pod)
        return [node for node in nodes if not self._reservations.fits(group, node, requests, released_only=True)]


def _is_about_as_good(alternative: Plan, plan: Plan) -> bool:
    if (len(alternative.unplaced), alternative.violations) > (len(plan.unplaced), plan.violations):
        return False
    is_fast_enough = alternative.latency_us <= MAX_SLOWDOWN * plan.latency_us
    return is_fast_enough or _locations(alternative) == _locations(plan)


def _locations(plan: Plan) -> dict[str, Location]:
    return {key: target.location for key, target in plan.targets.items()}
