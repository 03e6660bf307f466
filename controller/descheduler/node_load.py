"""Classifies nodes as hot, low or neither, and since when (docs/contracts, section 11).

"5 consecutive" means the fifth round, and one normal round resets the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.args import AnomalyCondition, LowNodeLoad, Pool
from controller.descheduler.snapshot import LoadSnapshot
from controller.descheduler.usage import Amounts, Percents, above, percents, weighted_percent

Class = Literal["over", "under", "normal", "unknown"]


@dataclass(frozen=True, slots=True, eq=False)
class NodeLoad:
    """One node's load.

    Attributes:
        low, high: thresholds in this round, percent by resource.
        used: amounts in use, of resources with a threshold.
        share: the same in percent of allocatable.
        exceeded: resources above the high threshold.
        mean: of the shares by weight, for sorting.
    """

    node: Host
    pool: Pool
    low: Percents
    high: Percents
    kind: Class
    used: Amounts
    share: Percents
    exceeded: tuple[str, ...]
    mean: float

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    def limit(self, resource: str) -> float:
        """The high threshold as an amount of the resource."""
        return self.high[resource] / 100.0 * self.node.allocatable.get(resource, 0)

    def overload(self, used: Amounts, arriving: Amounts) -> str:
        """Why the node would be hot if a pod came, beside those that are arriving; empty if it would not."""
        for resource in self.high:
            more = used.get(resource, 0.0)
            total = self.used.get(resource, 0.0) + arriving.get(resource, 0.0) + more
            if total > self.limit(resource) and (more > 0 or resource in self.used):
                return f"{resource} usage would exceed the high threshold"
        return ""


def nodes_by_pool(nodes: Iterable[Host], pools: Iterable[Pool]) -> dict[str, list[Host]]:
    """Pool name -> its nodes, by name; a node belongs to the first pool that selects it, or to none."""
    found: dict[str, list[Host]] = {pool.name: [] for pool in pools}
    for node in sorted(nodes, key=lambda node: node.name):
        pool = next((pool for pool in pools if pool.selector.matches(node.labels)), None)
        if pool is not None:
            found[pool.name].append(node)
    return found


def thresholds_of(pool: Pool, shares: Iterable[Percents]) -> tuple[Percents, Percents]:
    """The pool's thresholds; with deviation, ``mean - low`` and ``mean + high``, within 0 and 100.

    Args:
        pool: its settings.
        shares: percent by resource of every node of the pool whose usage is known.
    """
    if not pool.deviation:
        return pool.low, pool.high
    shares = tuple(shares)
    low, high = {}, {}
    for resource in pool.high:
        known = [share[resource] for share in shares if resource in share]
        mean = sum(known) / len(known) if known else 0.0
        low[resource] = min(100.0, max(0.0, mean - pool.low[resource]))
        high[resource] = min(100.0, max(0.0, mean + pool.high[resource]))
    return low, high


def classify(settings: LowNodeLoad, nodes: Iterable[Host], usage: Mapping[str, Mapping[str, float]]) -> list[NodeLoad]:
    """The load of every node of every pool, in order of pools and names.

    A node is over with any resource above high; under with all at or below low, schedulable and ready; unknown when usage of
    a resource with a threshold is missing, since half a picture may hide the hot half. A resource that the node does not have
    (no bandwidth is published for it) is not asked for.
    """
    found: list[NodeLoad] = []
    by_pool = nodes_by_pool(nodes, settings.pools)
    for pool in settings.pools:
        used = {node.name: _used(node, pool, usage.get(node.name, {})) for node in by_pool[pool.name]}
        shares = {node.name: percents(used[node.name], node.allocatable) for node in by_pool[pool.name]}
        thresholds = thresholds_of(pool, (share for name, share in shares.items() if name in usage))
        found += [_load_of(n, pool, thresholds, used[n.name], shares[n.name]) for n in by_pool[pool.name]]
    return found


def _used(node: Host, pool: Pool, usage: Mapping[str, float]) -> dict[str, float]:
    return {r: usage[r] for r in pool.high if node.allocatable.get(r, 0) > 0 and r in usage}


def _load_of(node: Host, pool: Pool, thresholds: tuple[Percents, Percents], used: Amounts, share: Percents) -> NodeLoad:
    low, high = thresholds
    exceeded = above(share, high)
    is_low = node.takes_pods and all(share[resource] <= low[resource] for resource in share)
    kind: Class = "over" if exceeded else "under" if is_low else "normal"
    if not share or any(r not in share for r in pool.high if node.allocatable.get(r, 0) > 0):
        kind, exceeded = "unknown", ()
    return NodeLoad(node, pool, low, high, kind, used, share, exceeded, weighted_percent(share, pool.weights))


def describe_overload(share: Mapping[str, float], high: Mapping[str, float], exceeded: Iterable[str]) -> str:
    """The reason that users know: ``node is overutilized, node cpu usage(75.12%)>threshold(70.00%)``."""
    parts = [f"node {resource} usage({share[resource]:.2f}%)>threshold({high[resource]:.2f}%)" for resource in exceeded]
    return "node is overutilized, " + ", ".join(parts)


def usage_of(pod: PodInfo, snapshot: LoadSnapshot, resources: Iterable[str]) -> dict[str, float]:
    """The pod's known usage. A request is not usage: moving an idle pod relieves nothing."""
    measured = snapshot.usage.pods.get(pod.key, {})
    return {resource: measured[resource] for resource in resources if resource in measured}


@dataclass(frozen=True, slots=True)
class Detector:
    """Counts of rounds of one node above or below its thresholds.

    Attributes:
        hot: found hot, and neither normal again nor expired.
        warm: found hot, and not normal again, though that may have expired: what plans go by that only avoid it.
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

    def updated(self, *, over: bool, condition: AnomalyCondition, now: float) -> Detector:
        """The detector after one more round in which the node was ``over`` its threshold, or was not."""
        before = self
        if self.hot and now - self.hot_since_s > float(condition.timeout):
            before = Detector(warm=True)
        if over:
            count = before.abnormal + 1
            hot = replace(before, abnormal=count, normal=0, seen_s=now)
            newly = not before.hot and count >= condition.consecutive_abnormalities
            return replace(hot, hot=True, warm=True, hot_since_s=now) if newly else hot
        count = before.normal + 1
        if before.warm and count < condition.consecutive_normalities:
            return replace(before, abnormal=0, normal=count, seen_s=now)
        return Detector(normal=count, seen_s=now)


def update_detectors(
    detectors: Mapping[str, Detector], loads: Iterable[NodeLoad], keep_s: float, now: float
) -> dict[str, Detector]:
    """The detectors of all nodes after one more round.

    A round that does not know a node's usage ends what counts in a row; a node whose usage no round of the last ``keep_s``
    knew starts over.
    """
    found: dict[str, Detector] = {}
    for load in loads:
        before = detectors.get(load.name)
        if before is not None and now - before.seen_s > keep_s:
            before = None
        if load.kind != "unknown":
            over = load.kind == "over"
            found[load.name] = (before or Detector()).updated(over=over, condition=load.pool.anomaly, now=now)
        elif before is not None:
            found[load.name] = replace(before, abnormal=0, normal=0)
    return found
