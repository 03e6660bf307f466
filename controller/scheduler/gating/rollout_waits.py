"""Finds other nodes for pods whose planned node is full until a rollout removes the pods that they replace.

A plan assumes that the rollout is complete; until then the replaced pods occupy their nodes.
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
from controller.scheduler.gating.planner_time import LEAST_SEARCH_S
from controller.scheduler.gating.release import ROLLOUT_PAUSE_S
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.gating.retries import owner_key
from controller.scheduler.placement.planner import Plan, PlanningError
from controller.scheduler.placement.snapshot import GroupSnapshot

Solve = Callable[[GroupSnapshot, float], Awaitable[Plan]]
"""Makes a plan; the second argument limits the search in seconds."""
WAIT_SHARE = 0.75
"""Share of ``maxWaitS`` that a pod waits for a rollout at most."""
MAX_SLOWDOWN = 1.05
"""A plan in which fewer pods wait is preferred if its calls take at most this many times as long."""


class RolloutWaits:
    """Pods of all groups that wait for rollouts, and since when.

    Args:
        reservations: of all groups.
        config: the section ``scheduler.gates``.
        clock: monotonic seconds.
    """

    def __init__(self, reservations: ReservationCache, config: GatesConfig, clock: Callable[[], float]) -> None:
        self._reservations, self._config, self._clock = reservations, config, clock
        self._waiting_since: dict[str, dict[str, float]] = {}
        """Group -> pod key -> begin of its wait."""
        self._failed_attempts: dict[str, tuple[list[str], dict[str, frozenset[str]]]] = {}
        """Group -> keys of pods for which no plan without waits was found, and the nodes that were full then, by owner."""

    def forget(self, group: str) -> None:
        """Forget the waits of a group of which no pod waits any more."""
        self._waiting_since.pop(group, None)
        self._failed_attempts.pop(group, None)

    async def solve_without_waits(
        self, group: str, snapshot: GroupSnapshot, plan: Plan, outgoing: Mapping[str, Amounts], solve: Solve
    ) -> Plan:
        """A plan that is about as good and in which fewer pods wait; the given plan if there is none.

        The first search moves all waiting pods to other nodes, the second only the oldest.

        Args:
            group: its key.
            snapshot: what the plan was made from.
            plan: the plan to improve.
            outgoing: node -> requests of pods that a rollout is about to replace there.
            solve: makes a plan.
        """
        if not outgoing:
            return plan
        await asyncio.sleep(0)  # The check of thousands of pods blocks the event loop.
        awaiting_rollout = check_plan(plan, group, snapshot.pods, self._reservations, outgoing).awaiting_rollout
        waiting = sorted((pod for pod in snapshot.pods if pod.metadata.key in awaiting_rollout), key=age_order)
        if not waiting:
            return plan
        full_nodes = await self._full_nodes_by_owner(group, waiting, outgoing)
        attempt = [pod.metadata.key for pod in waiting], full_nodes
        if self._failed_attempts.get(group) == attempt:
            return plan
        oldest = waiting[:1]
        for movable in [waiting] if waiting == oldest else [waiting, oldest]:
            refused = dict(snapshot.refused_hosts)
            for pod in movable:
                refused[pod.metadata.key] = refused.get(pod.metadata.key, frozenset()) | full_nodes[owner_key(pod)]
            wanted = msgspec.structs.replace(snapshot, refused_hosts=refused, previous_targets=plan.targets)
            try:
                other = await solve(wanted, LEAST_SEARCH_S)
            except PlanningError:
                return plan
            is_worse = (len(other.unplaced), other.violations) > (len(plan.unplaced), plan.violations)
            is_slower = other.latency_us > MAX_SLOWDOWN * plan.latency_us and _locations(other) != _locations(plan)
            if not is_worse and not is_slower:
                return other
        self._failed_attempts[group] = attempt
        return plan

    async def _full_nodes_by_owner(
        self, group: str, waiting: Iterable[Pod], nodes: Iterable[str]
    ) -> dict[str, frozenset[str]]:
        """Owner of pods -> the nodes on which a pod of that owner does not fit now."""
        full_nodes: dict[str, frozenset[str]] = {}
        for pod in waiting:
            if owner_key(pod) not in full_nodes:
                await asyncio.sleep(0)  # The check of thousands of nodes blocks the event loop.
                full_nodes[owner_key(pod)] = frozenset(self._full_nodes(group, pod, nodes))
        return full_nodes

    def end_overlong_wait(
        self,
        group: str,
        cached: CachedPlan,
        pods: Sequence[Pod],
        awaiting_rollout: Collection[str],
        outgoing: Iterable[str],
    ) -> bool:
        """End the wait of the oldest waiting pod if it takes too long, by refusals of its node and of other full nodes.

        The start of the pod elsewhere lets the rollout continue. A wait takes too long if nothing has changed for a while, or if the pod's
        gate is about to open regardless of the plan. Returns whether a wait was ended, so that a new plan is needed.
        """
        now, before = self._clock(), self._waiting_since.get(group, {})
        waiting_since = self._waiting_since[group] = {key: before.get(key, now) for key in awaiting_rollout}
        oldest = min((pod for pod in pods if pod.metadata.key in awaiting_rollout), key=age_order, default=None)
        if oldest is None:
            return False
        key, assigned_node = oldest.metadata.key, self._reservations.node_cache.assigned_node
        # Pods that start or terminate mean that the rollout makes progress.
        has_progress = any(not p.is_active or not p.is_ready for p in pods if assigned_node(p.metadata.key))
        quiet_s = self._config.max_wait_s / 2 if has_progress else ROLLOUT_PAUSE_S
        if now - cached.made_at < quiet_s and now - waiting_since[key] < WAIT_SHARE * self._config.max_wait_s:
            return False
        for node in self._full_nodes(group, oldest, {*outgoing, cached.plan.targets[key].node}):
            self._reservations.refuse(oldest, node)
        return True

    def _full_nodes(self, group: str, pod: Pod, nodes: Iterable[str]) -> list[str]:
        """The nodes on which a pod does not fit now."""
        requests = self._reservations.requests_with_ports_of(pod)
        return [node for node in nodes if not self._reservations.fits(group, node, requests, released_only=True)]


def _locations(plan: Plan) -> dict[str, Location]:
    return {key: target.location for key, target in plan.targets.items()}
