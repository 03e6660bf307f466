"""Which nodes are hot, since when, which have room, and by which thresholds (docs/contracts, section 11).

"5 consecutive" means the fifth round, and one normal round starts the count anew (deliberate difference 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from controller.cluster.hosts import Host
from controller.descheduler.args import Anomaly, LowNodeLoad, Pool
from controller.descheduler.usage import RESOURCES, percents, weighted_percent

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
    for name, members in assign(nodes, load.pools).items():
        pool = next(pool for pool in load.pools if pool.name == name)
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
    exceeded = tuple(r for r in RESOURCES if r in share and share[r] > thresholds.high[r])
    low = all(share[resource] <= thresholds.low[resource] for resource in share)
    kind: Class = (
        "over" if exceeded else "under" if low and node.schedulable and node.ready and not node.closing else "normal"
    )
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
