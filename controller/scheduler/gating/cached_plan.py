"""A group's last plan, and whether it is still valid.

Pods are bound one after the other, and most bindings follow the plan. A new plan after each binding would cost one plan per pod, and
could change targets for no reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.pods import Pod, pending_target_of
from controller.cluster.resource_requests import Amounts, add_amounts
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.placement.planner import Plan

UNPLACED_FOR_S = 5.0
"""A plan with unplaced pods is made again after this time, if resources were freed since then."""


class CachedPlan(NamedTuple):
    """A plan with its inputs.

    Attributes:
        plan: the plan.
        inputs: from `PlanInputs.cache_key`; equal inputs give an equal plan.
        freed: `ReservationCache.freed` at that time.
        made_at: time of its completion, monotonic seconds.
        took_s: how long it took.
        preempts_below: the priority below which pods are evicted for it; None if it needs no evictions.
    """

    plan: Plan
    inputs: tuple[object, ...]
    freed: int
    made_at: float
    took_s: float
    preempts_below: int | None


class PlanCheck(msgspec.Struct, frozen=True):
    """Whether a plan is still valid.

    Attributes:
        uncounted: pods that the usage of their nodes does not include yet, each with its node: planned, or bound a moment ago.
        is_feasible: whether the plan is followed (see `compare_with_pods`), and the uncounted pods fit on their nodes beside other groups'
            reservations once a rollout has removed the pods that it replaces.
        awaiting_rollout: keys of gated pods whose nodes are full until then.
    """

    uncounted: Sequence[tuple[Pod, str]]
    is_feasible: bool
    awaiting_rollout: frozenset[str]


def check_plan(
    plan: Plan,
    group: str,
    pods: Sequence[Pod],
    reservations: ReservationCache,
    outgoing: Mapping[str, Amounts],
    *,
    preemptible: Mapping[str, Amounts] = {},
) -> PlanCheck:
    """Compare a plan with the cluster.

    Args:
        plan: of the group.
        group: its key.
        pods: its pods.
        reservations: reservations and refusals.
        outgoing: node -> requests of the group's pods that a rollout is about to replace.
        preemptible: node -> requests of pods that the scheduler may evict for pods of the group.
    """
    uncounted, is_feasible = compare_with_pods(plan, pods, reservations)
    by_node: dict[str, list[Pod]] = {}
    for pod, node in uncounted:
        by_node.setdefault(node, []).append(pod)
    awaiting_rollout: set[str] = set()
    for node, node_pods in by_node.items():
        requests = {name: -value for name, value in preemptible.get(node, {}).items()}
        for pod in node_pods:
            add_amounts(requests, reservations.requests_with_ports_of(pod))
        if not reservations.fits(group, node, requests, released_only=True):
            excess = _gated_in_excess(node, node_pods, group, reservations, preemptible.get(node, {}))
            awaiting_rollout.update(excess)
        add_amounts(requests, outgoing.get(node, {}), -1)
        is_feasible = is_feasible and reservations.fits(group, node, requests)
    return PlanCheck(uncounted, is_feasible, frozenset(awaiting_rollout))


def _gated_in_excess(
    node: str, pods: Sequence[Pod], group: str, reservations: ReservationCache, preemptible: Amounts
) -> Iterator[str]:
    """Keys of gated pods that do not fit on a node now. Released pods come first, then older pods."""
    total = {name: -value for name, value in preemptible.items()}
    for pod in sorted(pods, key=lambda p: (p.is_gated, *age_order(p))):
        requests = reservations.requests_with_ports_of(pod)
        add_amounts(total, requests)
        if pod.is_gated and not reservations.fits(group, node, total, released_only=True):
            add_amounts(total, requests, -1)
            yield pod.metadata.key


def age_order(pod: Pod) -> tuple[str, str]:
    """Sort key: older pods first."""
    return pod.metadata.creation_timestamp or "", pod.metadata.key


def compare_with_pods(
    plan: Plan, pods: Sequence[Pod], reservations: ReservationCache
) -> tuple[list[tuple[Pod, str]], bool]:
    """``uncounted`` of `PlanCheck`, and whether the plan is followed.

    It is followed if no pod is bound to, or was released for, another node than the planned one, and no pod was refused its node.
    """
    uncounted: list[tuple[Pod, str]] = []
    is_followed = True
    refused = reservations.refused(pods)
    for pod in pods:
        if not pod.is_active:
            continue
        key = pod.metadata.key
        target, assigned = plan.targets.get(key), reservations.node_cache.assigned_node(key)
        node = pod.spec.node_name or assigned
        if target is not None:
            # Reading the annotation takes time, and only released pods have it.
            carried = pending_target_of(pod) if not pod.is_gated else None
            is_elsewhere = (node and node != target.node) or (carried is not None and carried.node != target.node)
            is_followed &= not is_elsewhere and not (refused and target.node in refused.get(key, ()))
        if not assigned and (node or target is not None):
            uncounted.append((pod, node or (target.node if target is not None else "")))
    return uncounted, is_followed
