"""Classifies nodes by their load, and detects those that have been hot for long enough (docs/descheduling.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.args import AnomalyCondition, LowNodeLoadConfig, Pool
from controller.descheduler.snapshot import DeschedulerSnapshot
from controller.descheduler.usage import Amounts, Percents, exceeded_resources, percents, weighted_percent

LoadClass = Literal["overutilized", "underutilized", "normal", "unknown"]
"""By koordinator's names: hot, with low load, between the thresholds, without usage."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeLoad:
    """One node's load.

    Attributes:
        low, high: thresholds in this round, percent by resource.
        kind: see `LoadClass`.
        used: usage of resources with a threshold, where known.
        usage_percent: the same in percent of allocatable.
        exceeded: resources above the high threshold.
        mean_percent: weighted mean of ``usage_percent``.
    """

    node: Host
    pool: Pool
    low: Percents
    high: Percents
    kind: LoadClass
    used: Amounts
    usage_percent: Percents
    exceeded: tuple[str, ...]
    mean_percent: float

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    def high_amount(self, resource: str) -> float:
        """The high threshold as an amount of the resource."""
        return self.high[resource] / 100.0 * self.node.allocatable.get(resource, 0)

    def overload_reason(self, used: Amounts, arriving: Amounts) -> str:
        """Why the node would be hot with another pod; empty if it would not.

        Args:
            used: usage of the pod.
            arriving: usage of pods that are moving there.
        """
        for resource in self.high:
            added = used.get(resource, 0.0)
            total = self.used.get(resource, 0.0) + arriving.get(resource, 0.0) + added
            if total > self.high_amount(resource) and (added > 0 or resource in self.used):
                return f"{resource} usage would exceed the high threshold"
        return ""


def thresholds_of(pool: Pool, usage_percents: Iterable[Percents]) -> tuple[Percents, Percents]:
    """The pool's low and high thresholds; with deviation thresholds, ``mean - low`` and ``mean + high``, within 0 and 100.

    Args:
        pool: its settings.
        usage_percents: percent by resource of every node of the pool whose usage is known.
    """
    if not pool.use_deviation:
        return pool.low, pool.high
    usage_percents = tuple(usage_percents)
    low, high = {}, {}
    for resource in pool.high:
        values = [percent[resource] for percent in usage_percents if resource in percent]
        mean = sum(values) / len(values) if values else 0.0
        low[resource] = min(100.0, max(0.0, mean - pool.low[resource]))
        high[resource] = min(100.0, max(0.0, mean + pool.high[resource]))
    return low, high


def classify_nodes(config: LowNodeLoadConfig, nodes: Iterable[Host], usage: Mapping[str, Amounts]) -> list[NodeLoad]:
    """The load of every node of every pool, in order of pools and names.

    A node is overutilized if any resource is above high, underutilized if all are at or below low and it is schedulable and ready,
    and unknown if usage of a resource with a threshold is missing. A resource that the node does not have does not count.
    """
    loads: list[NodeLoad] = []
    by_pool: dict[str, list[Host]] = {pool.name: [] for pool in config.pools}
    for node in sorted(nodes, key=lambda node: node.name):
        pool_name = next((pool.name for pool in config.pools if pool.selector.matches(node.labels)), None)
        if pool_name is not None:
            by_pool[pool_name].append(node)
    for pool in config.pools:
        used = {node.name: _used(node, pool, usage.get(node.name, {})) for node in by_pool[pool.name]}
        percent = {node.name: percents(used[node.name], node.allocatable) for node in by_pool[pool.name]}
        thresholds = thresholds_of(pool, (percent[name] for name in percent if name in usage))
        loads += [_load_of(n, pool, thresholds, used[n.name], percent[n.name]) for n in by_pool[pool.name]]
    return loads


def _used(node: Host, pool: Pool, usage: Mapping[str, float]) -> dict[str, float]:
    return {r: usage[r] for r in pool.high if node.allocatable.get(r, 0) > 0 and r in usage}


def _load_of(
    node: Host, pool: Pool, thresholds: tuple[Percents, Percents], used: Amounts, percent: Percents
) -> NodeLoad:
    low, high = thresholds
    exceeded = exceeded_resources(percent, high)
    is_low = node.accepts_pods and all(percent[resource] <= low[resource] for resource in percent)
    kind: LoadClass = "overutilized" if exceeded else "underutilized" if is_low else "normal"
    if not percent or any(r not in percent for r in pool.high if node.allocatable.get(r, 0) > 0):
        kind, exceeded = "unknown", ()
    return NodeLoad(node, pool, low, high, kind, used, percent, exceeded, weighted_percent(percent, pool.weights))


def describe_overload(percent: Percents, high: Percents, exceeded: Iterable[str]) -> str:
    """The reason of a move, in koord-descheduler's wording: ``node is overutilized, node cpu usage(75.12%)>threshold(70.00%)``."""
    parts = [f"node {r} usage({percent[r]:.2f}%)>threshold({high[r]:.2f}%)" for r in exceeded]
    return "node is overutilized, " + ", ".join(parts)


def usage_of(pod: PodInfo, snapshot: DeschedulerSnapshot, resources: Iterable[str]) -> dict[str, float]:
    """The pod's measured usage of some resources; without those that are unknown."""
    measured = snapshot.usage.pods.get(pod.key, {})
    return {resource: measured[resource] for resource in resources if resource in measured}


@dataclass(frozen=True, slots=True)
class AnomalyDetector:
    """Decides by consecutive rounds whether one node has been overutilized for long enough.

    Attributes:
        is_anomalous: overutilized for enough rounds; ends with enough normal rounds, or with the condition's timeout.
        is_avoided: the same without the timeout; plans avoid the node.
        anomalous_since_s: time since which ``is_anomalous`` is true, unix seconds.
        abnormal_rounds, normal_rounds: number of consecutive rounds, up to the newest, in which it was overutilized, or not.
        known_at_s: time of the newest round in which the node's usage was known.
    """

    is_anomalous: bool = False
    is_avoided: bool = False
    anomalous_since_s: float = 0.0
    abnormal_rounds: int = 0
    normal_rounds: int = 0
    known_at_s: float = 0.0

    def after_round(self, *, is_overutilized: bool, condition: AnomalyCondition, now: float) -> AnomalyDetector:
        """The detector after one more round."""
        before = self
        if self.is_anomalous and now - self.anomalous_since_s > float(condition.timeout):
            before = AnomalyDetector(is_avoided=True)
        if is_overutilized:
            after = replace(before, abnormal_rounds=before.abnormal_rounds + 1, normal_rounds=0, known_at_s=now)
            if not before.is_anomalous and after.abnormal_rounds >= condition.consecutive_abnormalities:
                return replace(after, is_anomalous=True, is_avoided=True, anomalous_since_s=now)
            return after
        normal_rounds = before.normal_rounds + 1
        if before.is_avoided and normal_rounds < condition.consecutive_normalities:
            return replace(before, abnormal_rounds=0, normal_rounds=normal_rounds, known_at_s=now)
        return AnomalyDetector(normal_rounds=normal_rounds, known_at_s=now)


def update_detectors(
    detectors: Mapping[str, AnomalyDetector], loads: Iterable[NodeLoad], keep_s: float, now: float
) -> dict[str, AnomalyDetector]:
    """The detectors of all nodes after one more round.

    A round without a node's usage sets its counts to 0. After ``keep_s`` without usage a node gets a new detector.
    """
    updated: dict[str, AnomalyDetector] = {}
    for load in loads:
        before = detectors.get(load.name)
        if before is not None and now - before.known_at_s > keep_s:
            before = None
        if load.kind != "unknown":
            is_overutilized, condition = load.kind == "overutilized", load.pool.anomaly
            updated[load.name] = (before or AnomalyDetector()).after_round(
                is_overutilized=is_overutilized, condition=condition, now=now
            )
        elif before is not None:
            updated[load.name] = replace(before, abnormal_rounds=0, normal_rounds=0)
    return updated
