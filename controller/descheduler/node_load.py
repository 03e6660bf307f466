"""Classifies nodes by their load, and detects nodes that have been overutilized for long enough (docs/descheduling.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from controller.cluster.hosts import Host
from controller.descheduler.args import LowNodeLoadConfig, Pool
from controller.descheduler.usage import Amounts, Percents, find_exceeded_resources, to_percents, weighted_mean

LoadClass = Literal["overutilized", "underutilized", "normal", "unknown"]
"""koordinator's names, see `classify_nodes`; ``normal`` is every other known load."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeLoad:
    """The load of one node in one round.

    Attributes:
        low_thresholds, high_thresholds: percent by resource; with deviation thresholds those of this round.
        usage: of resources with a threshold, where known.
        usage_percent: the same in percent of allocatable.
        exceeded_resources: those above the high threshold; none if ``load_class`` is unknown.
        mean_percent: weighted mean of ``usage_percent``.
    """

    node: Host
    pool: Pool
    low_thresholds: Percents
    high_thresholds: Percents
    load_class: LoadClass
    usage: Amounts
    usage_percent: Percents
    exceeded_resources: tuple[str, ...]
    mean_percent: float

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    def high_amount(self, resource: str) -> float:
        """The high threshold as an amount of the resource."""
        return self.high_thresholds[resource] / 100.0 * self.node.allocatable.get(resource, 0)

    def overload_reason(self, pod_usage: Amounts, arriving_usage: Amounts) -> str:
        """Why the node would be overutilized with a pod of this usage and those that are arriving; empty if it would not."""
        for resource in self.high_thresholds:
            added = pod_usage.get(resource, 0.0)
            total = self.usage.get(resource, 0.0) + arriving_usage.get(resource, 0.0) + added
            if total > self.high_amount(resource) and (added > 0 or resource in self.usage):
                return f"{resource} usage would exceed the high threshold"
        return ""


def thresholds_of(pool: Pool, usage_percents: Sequence[Percents]) -> tuple[Percents, Percents]:
    """The pool's low and high thresholds; with deviation thresholds, low below and high above the pool's mean.

    ``usage_percents`` are those of the pool's nodes, without unknown resources. Thresholds stay within 0 and 100.
    """
    if not pool.use_deviation:
        return pool.low_thresholds, pool.high_thresholds
    low, high = {}, {}
    for resource in pool.high_thresholds:
        values = [percents[resource] for percents in usage_percents if resource in percents]
        mean = sum(values) / len(values) if values else 0.0
        low[resource] = min(100.0, max(0.0, mean - pool.low_thresholds[resource]))
        high[resource] = min(100.0, max(0.0, mean + pool.high_thresholds[resource]))
    return low, high


def classify_nodes(
    config: LowNodeLoadConfig, nodes: Iterable[Host], usage_by_node: Mapping[str, Amounts]
) -> list[NodeLoad]:
    """The load of every node of every pool, in order of pools and names.

    A node is overutilized if any resource is above its high threshold. It is underutilized if all are at or below the low one, and
    it is schedulable and ready. Resources that the node does not have are ignored. Its load is unknown if usage of any other resource
    with a threshold is missing, or if the node has none of these resources.
    """
    loads: list[NodeLoad] = []
    nodes_by_pool: dict[str, list[Host]] = {pool.name: [] for pool in config.pools}
    for node in sorted(nodes, key=lambda node: node.name):
        if pool := next((pool for pool in config.pools if pool.selector.matches(node.labels)), None):
            nodes_by_pool[pool.name].append(node)
    for pool in config.pools:
        usages = [(node, usage_by_node.get(node.name, {})) for node in nodes_by_pool[pool.name]]
        thresholds = thresholds_of(pool, [to_percents(usage, node.allocatable) for node, usage in usages])
        loads += [_make_load(node, pool, thresholds, usage) for node, usage in usages]
    return loads


def _make_load(node: Host, pool: Pool, thresholds: tuple[Percents, Percents], usage: Amounts) -> NodeLoad:
    low, high = thresholds
    required = [resource for resource in high if node.allocatable.get(resource, 0) > 0]
    usage = {resource: usage[resource] for resource in required if resource in usage}
    percents = to_percents(usage, node.allocatable)
    exceeded = find_exceeded_resources(percents, high)
    load_class: LoadClass = "normal"
    if not percents or len(percents) < len(required):
        load_class, exceeded = "unknown", ()
    elif exceeded:
        load_class = "overutilized"
    elif node.accepts_pods and all(percents[resource] <= low[resource] for resource in percents):
        load_class = "underutilized"
    return NodeLoad(node, pool, low, high, load_class, usage, percents, exceeded, weighted_mean(percents, pool.weights))


def describe_overload(percents: Percents, high_thresholds: Percents, exceeded: Iterable[str]) -> str:
    """The reason of a move, in koord-descheduler's wording: ``node is overutilized, node cpu usage(75.12%)>threshold(70.00%)``."""
    parts = [f"node {r} usage({percents[r]:.2f}%)>threshold({high_thresholds[r]:.2f}%)" for r in exceeded]
    return "node is overutilized, " + ", ".join(parts)


@dataclass(frozen=True, slots=True)
class AnomalyDetector:
    """Decides by consecutive rounds whether one node has been overutilized for long enough.

    Attributes:
        is_anomalous: overutilized for enough rounds; ends after enough normal rounds, or with the timeout.
        is_avoided: the same without the timeout, because the planner should avoid the node while it is overutilized.
        anomalous_since_s: time since which ``is_anomalous`` is true, unix seconds.
        abnormal_rounds, normal_rounds: number of consecutive rounds, up to the newest, in which it was overutilized, or not.
        usage_known_at_s: time of the newest round in which the node's usage was known, unix seconds.
    """

    is_anomalous: bool = False
    is_avoided: bool = False
    anomalous_since_s: float = 0.0
    abnormal_rounds: int = 0
    normal_rounds: int = 0
    usage_known_at_s: float = 0.0

    def after_round(self, load: NodeLoad, now: float) -> AnomalyDetector:
        """The detector after one more round, in which the node had this load; unknown usage resets the counts of consecutive rounds."""
        if load.load_class == "unknown":
            return replace(self, abnormal_rounds=0, normal_rounds=0)
        before, pool = self, load.pool
        if self.is_anomalous and now - self.anomalous_since_s > pool.anomaly_timeout_s:
            before = AnomalyDetector(is_avoided=True)
        if load.load_class == "overutilized":
            after = replace(before, abnormal_rounds=before.abnormal_rounds + 1, normal_rounds=0, usage_known_at_s=now)
            if not before.is_anomalous and after.abnormal_rounds >= pool.consecutive_abnormalities:
                return replace(after, is_anomalous=True, is_avoided=True, anomalous_since_s=now)
            return after
        normal_rounds = before.normal_rounds + 1
        if before.is_avoided and normal_rounds < pool.consecutive_normalities:
            return replace(before, abnormal_rounds=0, normal_rounds=normal_rounds, usage_known_at_s=now)
        return AnomalyDetector(normal_rounds=normal_rounds, usage_known_at_s=now)


def update_detectors(
    detectors: Mapping[str, AnomalyDetector], loads: Iterable[NodeLoad], keep_s: float, now: float
) -> dict[str, AnomalyDetector]:
    """The detectors after one more round, by name of the node.

    After ``keep_s`` of unknown usage, a node has no detector until its usage is known again.
    """
    unexpired = {name: detector for name, detector in detectors.items() if now - detector.usage_known_at_s <= keep_s}
    return {
        load.name: unexpired.get(load.name, AnomalyDetector()).after_round(load, now)
        for load in loads
        if load.name in unexpired or load.load_class != "unknown"
    }
