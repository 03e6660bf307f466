"""A plan that was made, and whether it still holds.

Pods are bound one after the other, and most bindings are as planned: planning again for each of them would cost a plan per pod, and
would let targets wander for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.pods import GroupPod, carried_target
from controller.cluster.requests import Amounts, add
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.placement.planner import Plan

UNPLACED_FOR_S = 5.0
"""A plan with unplaced pods is made again after this time, if resources were freed since."""


class CachedPlan(NamedTuple):
    """A plan with its inputs.

    Attributes:
        plan: the plan.
        inputs: what it was made for, but for places given to pods: a plan for the same would be the same.
        freed: `ReservationCache.freed` at that time.
        made_at: when, on the planner's clock.
        took_s: how long it took.
        evicts_below: pods of less priority are evicted for it; None where it found room without.
    """

    plan: Plan
    inputs: tuple[object, ...]
    freed: int
    made_at: float
    took_s: float
    evicts_below: int | None


class PlanCheck(msgspec.Struct, frozen=True):
    """Whether a plan is still valid.

    Attributes:
        uncounted: pods that their hosts do not count yet, each with its host: planned, or bound a moment ago.
        followed: every pod that was bound or released since is where the plan has it, and none was refused its host.
        has_room: the hosts have room for the rest, beside what other groups were promised, once the pods that a rollout is about to
            replace are gone.
        awaiting_room: gated pods whose hosts have none until then.
    """

    uncounted: Sequence[tuple[GroupPod, str]]
    followed: bool
    has_room: bool
    awaiting_room: frozenset[str]


def check_plan(
    plan: Plan,
    group: str,
    pods: Sequence[GroupPod],
    assumed: ReservationCache,
    leaving: Mapping[str, Amounts],
    *,
    evictable: Mapping[str, Amounts] = {},
) -> PlanCheck:
    """Compare a plan with the cluster.

    Args:
        plan: of the group.
        group: its key.
        pods: its pods.
        assumed: reservations and refusals.
        leaving: node -> requests of the group's pods that a rollout is about to replace.
        evictable: node -> requests of pods that the scheduler may evict for the group's.
    """
    uncounted, followed = compare_with_pods(plan, pods, assumed)
    by_node: dict[str, list[GroupPod]] = {}
    for pod, node in uncounted:
        by_node.setdefault(node, []).append(pod)
    has_room, awaiting_room = True, set[str]()
    for node, there in by_node.items():
        freed = {name: -value for name, value in evictable.get(node, {}).items()}
        wanted = freed.copy()
        for pod in there:
            add(wanted, assumed.host_requests_of(pod))
        if not assumed.has_room(group, node, wanted, now=True):
            awaiting_room.update(_without_room(node, there, group, assumed, freed))
        add(wanted, leaving.get(node, {}), -1)
        has_room = has_room and assumed.has_room(group, node, wanted)
    return PlanCheck(uncounted, followed, has_room, frozenset(awaiting_room))


def _without_room(
    node: str, pods: Sequence[GroupPod], group: str, assumed: ReservationCache, held: Amounts
) -> Iterator[str]:
    """Keys of gated pods that a host has no room for now. Those on their way have theirs first, then the older."""
    for pod in sorted(pods, key=lambda p: (p.gated, p.metadata.creation_timestamp or "", p.metadata.key)):
        asks = assumed.host_requests_of(pod)
        add(held, asks)
        if pod.gated and not assumed.has_room(group, node, held, now=True):
            add(held, asks, -1)
            yield pod.metadata.key


def compare_with_pods(
    plan: Plan, pods: Sequence[GroupPod], assumed: ReservationCache
) -> tuple[list[tuple[GroupPod, str]], bool]:
    """The first two of `PlanCheck`. The third, free capacity, takes longer, and is not needed right after planning."""
    uncounted: list[tuple[GroupPod, str]] = []
    followed = True
    refused = assumed.refused(pods)
    for pod in pods:
        if not pod.is_active:
            continue
        key = pod.metadata.key
        target, assigned = plan.targets.get(key), assumed.node_cache.assigned_node(key)
        node = pod.spec.node_name or assigned
        if target is not None:
            # A gated pod without refusals is where the plan has it, usually most of a large group.
            carried = carried_target(pod) if not pod.gated else None
            astray = (node and node != target.node) or (carried is not None and carried.node != target.node)
            followed &= not astray and not (refused and target.node in refused.get(key, ()))
        if not assigned and (node or target is not None):
            uncounted.append((pod, node or (target.node if target is not None else "")))
    return uncounted, followed
