"""A group's last plan, and the check whether it is still valid.

Pods are bound one after the other, and most bindings follow the plan. With a new plan after each binding a group would need one plan per
pod, and targets could change for no reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.pods import Pod, pending_target_of
from controller.cluster.resource_requests import Amounts, add_amounts
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.placement.planner import Plan

MIN_REPLAN_S = 5.0
"""Resources that were freed cause a new plan of a group with pods that lack a node, but only if its plan is older than this."""


class CachedPlan(NamedTuple):
    """A plan, with the key of its inputs.

    Attributes:
        plan: the plan.
        cache_key: its `PlanInputs.make_cache_key`; the plan is outdated once the key has changed.
        freed_count: `ReservationCache.freed_count` before the plan was made.
        made_at: time at which it was complete, monotonic seconds.
        took_s: time from the start of its computation until then, with the wait for the planning process.
        preempts_below_priority: the priority below which pods are evicted for it; None if it needs no evictions.
    """

    plan: Plan
    cache_key: tuple[object, ...]
    freed_count: int
    made_at: float
    took_s: float
    preempts_below_priority: int | None


class PlanCheck(msgspec.Struct, frozen=True):
    """Whether a plan is still valid.

    Attributes:
        unaccounted_pods: see `find_unaccounted_pods`.
        is_feasible: whether the plan `is_followed`, and the unaccounted pods fit on their nodes beside other groups' reservations. Pods that
            a rollout replaces, or that the scheduler may preempt, do not count.
        awaiting_rollout: keys of gated pods whose nodes are full until a rollout has removed the pods that it replaces.
    """

    unaccounted_pods: Sequence[tuple[Pod, str]]
    is_feasible: bool
    awaiting_rollout: frozenset[str]


def check_plan(
    plan: Plan,
    group: str,
    pods: Sequence[Pod],
    reservations: ReservationCache,
    outdated: Mapping[str, Amounts],
    *,
    preemptible: Mapping[str, Amounts] = {},
) -> PlanCheck:
    """Check whether the plan of a group is still valid, by the group's pods and all reservations.

    ``outdated`` is node -> requests of the group's pods that a rollout is about to replace; ``preemptible`` is node -> requests of pods
    that the scheduler may evict for pods of the group.
    """
    unaccounted_pods = find_unaccounted_pods(plan, pods, reservations)
    is_feasible = is_followed(plan, pods, reservations)
    pods_by_node: dict[str, list[Pod]] = {}
    for pod, node in unaccounted_pods:
        pods_by_node.setdefault(node, []).append(pod)
    awaiting_rollout: set[str] = set()
    for node, node_pods in pods_by_node.items():
        requests = {name: -value for name, value in preemptible.get(node, {}).items()}  # They count as gone.
        for pod in node_pods:
            add_amounts(requests, reservations.requests_with_ports_of(pod))
        if not reservations.fits(group, node, requests, released_only=True):
            awaiting_rollout.update(_excess_keys(node, node_pods, group, reservations, preemptible.get(node, {})))
        add_amounts(requests, outdated.get(node, {}), -1)
        is_feasible = is_feasible and reservations.fits(group, node, requests)
    return PlanCheck(unaccounted_pods, is_feasible, frozenset(awaiting_rollout))


def _excess_keys(
    node: str, pods: Sequence[Pod], group: str, reservations: ReservationCache, preemptible: Amounts
) -> Iterator[str]:
    """Keys of gated pods for which a node has no capacity left. Released pods get the capacity first, then older pods."""
    fitting_requests = {name: -value for name, value in preemptible.items()}
    for pod in sorted(pods, key=lambda p: (p.is_gated, *age_order(p))):
        requests = reservations.requests_with_ports_of(pod)
        add_amounts(fitting_requests, requests)
        if pod.is_gated and not reservations.fits(group, node, fitting_requests, released_only=True):
            add_amounts(fitting_requests, requests, -1)
            yield pod.metadata.key


def find_unaccounted_pods(plan: Plan, pods: Sequence[Pod], reservations: ReservationCache) -> list[tuple[Pod, str]]:
    """Pods that the usage of their nodes does not include yet, each with its node: planned pods, and pods that were bound a moment ago."""
    unaccounted_pods: list[tuple[Pod, str]] = []
    for pod in pods:
        if pod.is_active and not reservations.node_cache.assigned_node(pod.metadata.key):
            target = plan.targets.get(pod.metadata.key)
            node = pod.spec.node_name or (target.node if target is not None else "")
            if node:
                unaccounted_pods.append((pod, node))
    return unaccounted_pods


def is_followed(plan: Plan, pods: Sequence[Pod], reservations: ReservationCache) -> bool:
    """Whether every planned pod may still get its node: none is bound to or was released for another node, or was refused its node."""
    refused = reservations.refused_nodes.nodes_by_pod(pods)
    for pod in pods:
        key = pod.metadata.key
        target = plan.targets.get(key) if pod.is_active else None
        if target is None:
            continue
        node = pod.spec.node_name or reservations.node_cache.assigned_node(key)
        # Only released pods have the annotation, whose decoding takes time.
        released_for = pending_target_of(pod) if not pod.is_gated else None
        is_elsewhere = (node and node != target.node) or (released_for is not None and released_for.node != target.node)
        if is_elsewhere or (refused and target.node in refused.get(key, ())):
            return False
    return True


def age_order(pod: Pod) -> tuple[str, str]:
    """Sort key: older pods first, then by key."""
    return pod.metadata.creation_timestamp or "", pod.metadata.key
