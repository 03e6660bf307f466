"""Which pods of a hot node may go, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.cluster.pod_info import PodInfo
from controller.descheduler.args import LowNodeLoad
from controller.descheduler.classify import Load
from controller.descheduler.config import ProtectionConfig
from controller.descheduler.snapshot import Snapshot


class Victim(NamedTuple):
    """A pod that may go.

    Attributes:
        used: what leaves the node with it, as far as it is known.
    """

    pod: PodInfo
    used: Mapping[str, float]


def protection_of(pod: PodInfo, protection: ProtectionConfig) -> tuple[str, str]:
    """Kind and text of why the pod never goes under these settings; empty when it may."""
    kind = pod.workload.split("/")[1] if pod.workload else ""
    bars = (
        (bool(pod.barred), "protected", pod.barred),
        (pod.bare and not protection.bare_pods, "bare", "no controller would make it anew"),
        (
            bool(kind) and kind not in protection.owner_kinds,
            "owner",
            f"it belongs to a {kind}, and protection.ownerKinds are {', '.join(protection.owner_kinds)}",
        ),
        (
            bool(pod.claims) and not protection.volume_claims,
            "volume",
            f"it mounts PersistentVolumeClaim {', '.join(pod.claims)}, which may hold it to this node or zone",
        ),
        (pod.local_storage and not protection.local_storage, "local-storage", "it has an emptyDir or hostPath volume"),
        (
            pod.priority >= protection.priority_below,
            "priority",
            f"priority {pod.priority} is not below {protection.priority_below}",
        ),
    )
    return next(((kind, why) for holds, kind, why in bars if holds), ("", ""))


def selection_of(pod: PodInfo, load: LowNodeLoad) -> tuple[str, str]:
    """Kind and text of why the arguments do not select the pod; empty when they do."""
    if not load.admits_namespace(pod.namespace):
        return "namespace", f"namespace {pod.namespace} is not evictable"
    if load.pod_selectors and not any(selector.matches(pod.labels) for selector in load.pod_selectors):
        return "not-selected", "no pod selector matches it"
    return "", ""


def usage_of(pod: PodInfo, snapshot: Snapshot, resources: Iterable[str]) -> dict[str, float]:
    """What the pod is known to use. A request is no use: to move an idle pod for what it asked for relieves nobody."""
    measured = snapshot.usage.pods.get(pod.key, {})
    return {resource: measured[resource] for resource in resources if resource in measured}


def victim_refusal(
    pod: PodInfo, node: Load, load: LowNodeLoad, protection: ProtectionConfig, used: Mapping[str, float]
) -> tuple[str, str]:
    """Kind and text of why a pod of a hot node stays, whatever room and limits there are; empty when it may go."""
    kind, text = protection_of(pod, protection)
    if not kind:
        kind, text = selection_of(pod, load)
    if not kind and not any(used.get(resource, 0) > 0 for resource in node.exceeded):
        if any(resource in used for resource in node.exceeded):
            return "no-relief", f"it uses no {' or '.join(node.exceeded)}"
        return "no-usage", f"its use of {' and '.join(node.exceeded)} is not known"
    return kind, text


def next_victim(
    victims: Iterable[Victim],
    node: Load,
    used: Mapping[str, float],
    exceeded: Iterable[str],
    *,
    least_relief: float = 0.0,
) -> Victim | None:
    """The best victim for what is still exceeded.

    In order: lower priority; lower QoS class; lower eviction cost; those whose move alone suffices, the one that uses least
    first, so that no more is moved than needed; then those that use more; then younger ones; then by name.

    Args:
        victims: who may go.
        node: the hot node.
        used: what is in use on it, after the moves planned so far.
        exceeded: resources still above their threshold.
        least_relief: the share of what has to leave that a pod must take along, of one resource at least.
    """
    exceeded = tuple(exceeded)
    # What has to leave, by resource.
    bound = {r: used[r] - node.thresholds.high[r] / 100.0 * node.node.allocatable[r] for r in exceeded}

    def rank(victim: Victim) -> tuple[object, ...]:
        weight = sum(node.pool.weights.get(r, 1) for r in exceeded)
        share = sum(
            node.pool.weights.get(r, 1) * victim.used.get(r, 0.0) / node.node.allocatable[r] for r in exceeded
        ) / max(weight, 1)
        suffices = all(victim.used.get(r, 0.0) >= bound[r] for r in exceeded)
        pod = victim.pod
        by_use = share if suffices else -share
        return (pod.priority, pod.qos, pod.cost, not suffices, by_use, -pod.created_s, pod.key)

    # A pod of a millicore relieves nobody, however low its priority: it would only be the first of many.
    worth = (v for v in victims if any(v.used.get(r, 0.0) >= least_relief * bound[r] for r in exceeded))
    return min(worth, key=rank, default=None)
