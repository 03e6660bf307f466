"""Which nodes are hot, since when, which have room, and by which thresholds (docs/contracts, section 11); which pods of a hot node may go.

"5 consecutive" means the fifth round, and one normal round starts the count anew (deliberate difference 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.args import Anomaly, LowNodeLoad, Pool
from controller.descheduler.config import ProtectionConfig
from controller.descheduler.snapshot import LoadSnapshot
from controller.descheduler.usage import above, percents, weighted_percent

Class = Literal["over", "under", "normal", "unknown"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Percent by resource that hold for every node of a pool in this round."""

    low: Mapping[str, float]
    high: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Load:
    """One node's load.

    Attributes:
        used: amounts in use, of resources with a threshold.
        share: the same in percent of allocatable.
        exceeded: resources above the high threshold.
        load: mean of the shares by weight, for sorting.
    """

    node: Host
    pool: Pool
    thresholds: Thresholds
    kind: Class
    used: Mapping[str, float]
    share: Mapping[str, float]
    exceeded: tuple[str, ...]
    load: float

    def limit(self, resource: str) -> float:
        """How much of a resource may be in use there: the high threshold as an amount."""
        return self.thresholds.high[resource] / 100.0 * self.node.allocatable.get(resource, 0)


def assign(nodes: Iterable[Host], pools: Iterable[Pool]) -> dict[str, list[Host]]:
    """Pool name -> its nodes, by name; a node belongs to the first pool that selects it, or to none."""
    pools = tuple(pools)
    found: dict[str, list[Host]] = {pool.name: [] for pool in pools}
    for node in sorted(nodes, key=lambda node: node.name):
        pool = next((pool for pool in pools if pool.selector.matches(node.labels)), None)
        if pool is not None:
            found[pool.name].append(node)
    return found


def thresholds_of(pool: Pool, shares: Iterable[Mapping[str, float]]) -> Thresholds:
    """The pool's thresholds; with deviation, ``mean - low`` and ``mean + high``, within 0 and 100.

    Args:
        pool: its settings.
        shares: percent by resource of every node of the pool whose usage is known.
    """
    if not pool.deviation:
        return Thresholds(pool.low, pool.high)
    shares = tuple(shares)
    low, high = {}, {}
    for resource in pool.high:
        known = [share[resource] for share in shares if resource in share]
        mean = sum(known) / len(known) if known else 0.0
        low[resource] = min(100.0, max(0.0, mean - pool.low[resource]))
        high[resource] = min(100.0, max(0.0, mean + pool.high[resource]))
    return Thresholds(low, high)


def classify(load: LowNodeLoad, nodes: Iterable[Host], usage: Mapping[str, Mapping[str, float]]) -> list[Load]:
    """Judge every node of every pool, in order of pools and names.

    A node is over with any resource above high; under with all at or below low, schedulable and ready; unknown when usage of
    a resource with a threshold is missing, since half a picture may hide the hot half. A resource that the node does not have
    (no bandwidth is published for it) is not asked for.
    """
    found: list[Load] = []
    by_pool = assign(nodes, load.pools)
    for pool in load.pools:
        members = by_pool[pool.name]
        used = {
            node.name: {r: usage[node.name][r] for r in _asked(pool, node) if r in usage[node.name]}
            for node in members
            if node.name in usage
        }
        shares = {node.name: percents(used[node.name], node.allocatable) for node in members if node.name in used}
        thresholds = thresholds_of(pool, shares.values())
        found += [judge(node, pool, thresholds, used.get(node.name, {}), shares.get(node.name, {})) for node in members]
    return found


def judge(
    node: Host, pool: Pool, thresholds: Thresholds, used: Mapping[str, float], share: Mapping[str, float]
) -> Load:
    """Judge one node."""
    weight = weighted_percent(share, pool.weights)
    if not share or len(share) < len(_asked(pool, node)):
        return Load(node, pool, thresholds, "unknown", used, share, (), weight)
    exceeded = above(share, thresholds.high)
    low = all(share[resource] <= thresholds.low[resource] for resource in share)
    kind: Class = "over" if exceeded else "under" if low and node.takes_pods else "normal"
    return Load(node, pool, thresholds, kind, used, share, exceeded, weight)


def _asked(pool: Pool, node: Host) -> list[str]:
    return [resource for resource in pool.high if node.allocatable.get(resource, 0) > 0]


def describe_overload(share: Mapping[str, float], high: Mapping[str, float], exceeded: Iterable[str]) -> str:
    """The reason that users know: ``node is overutilized, node cpu usage(75.12%)>threshold(70.00%)``."""
    parts = [f"node {resource} usage({share[resource]:.2f}%)>threshold({high[resource]:.2f}%)" for resource in exceeded]
    return "node is overutilized, " + ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Detector:
    """What is remembered of one node.

    Attributes:
        hot: found hot, and neither normal again nor expired.
        warm: found hot, and not normal again, though that may have expired: what others go by who only keep away from it.
        hot_since_s: when it was found hot, unix seconds.
        abnormal, normal: rounds in a row, up to now.
        seen_s: time of the newest round that knew the node's usage.
    """

    hot: bool = False
    warm: bool = False
    hot_since_s: float = 0.0
    abnormal: int = 0
    normal: int = 0
    seen_s: float = 0.0


def mark(detector: Detector, *, over: bool, condition: Anomaly, now: float) -> Detector:
    """The detector after one more round in which the node was ``over`` its threshold, or was not."""
    if detector.hot and now - detector.hot_since_s > condition.timeout_s:
        detector = Detector(warm=True, seen_s=detector.seen_s)
    if over:
        count = detector.abnormal + 1
        fresh = replace(detector, abnormal=count, normal=0, seen_s=now)
        if not detector.hot and count >= condition.abnormal:
            return replace(fresh, hot=True, warm=True, hot_since_s=now)
        return fresh
    count = detector.normal + 1
    if detector.warm and count < condition.normal:
        return replace(detector, abnormal=0, normal=count, seen_s=now)
    return Detector(normal=count, seen_s=now)


def miss(detector: Detector) -> Detector:
    """The detector after a round that did not know the node's usage: what counts in a row starts anew."""
    return replace(detector, abnormal=0, normal=0)


def forget_unseen(detectors: Mapping[str, Detector], timeout_s: float, now: float) -> dict[str, Detector]:
    """Without the nodes whose usage no round of the last ``timeout_s`` knew; they start anew when they come back."""
    return {name: detector for name, detector in detectors.items() if now - detector.seen_s <= timeout_s}


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


def usage_of(pod: PodInfo, snapshot: LoadSnapshot, resources: Iterable[str]) -> dict[str, float]:
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
    bound = {r: used[r] - node.limit(r) for r in exceeded}

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
