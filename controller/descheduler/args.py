"""LowNodeLoadArgs as koordinator's users write them, and their compiled form (docs/contracts, section 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from controller.descheduler.usage import CPU, MEMORY, RESOURCES
from kubekit.durations import seconds
from kubekit.errors import ConfigError
from kubekit.selectors import Selector
from kubekit.settings import Range, Section, SelectorSpec, join
from netperf.contract import BANDWIDTH

T = TypeVar("T")

ARGS_KIND = "LowNodeLoadArgs"
DEFAULT_LOW: Mapping[str, float] = {CPU: 45, MEMORY: 45}
DEFAULT_HIGH: Mapping[str, float] = {CPU: 70, MEMORY: 70}
"""The water levels of the seed's figure; the seed's field table has no defaults for them."""


class Namespaces(Section, frozen=True):
    """Namespaces whose pods may go: only the included ones, or all but the excluded ones."""

    include: list[str] | None = None
    exclude: list[str] | None = None


class PodSelector(Section, frozen=True):
    """A named selector of pods; a pod must match any of those given."""

    selector: SelectorSpec
    name: str = ""


class AnomalyCondition(Section, frozen=True):
    """When a node counts as hot for long enough.

    Attributes:
        timeout: a node's finding of being hot expires after this time; seconds, or ``1m``.
        consecutive_abnormalities: rounds in a row above the threshold that make it hot.
        consecutive_normalities: rounds in a row below that make it normal again.
    """

    timeout: str | float = "1m"
    consecutive_abnormalities: Annotated[int, Range(1, 1000)] = 5
    consecutive_normalities: Annotated[int, Range(1, 1000)] = 3


class NodePool(Section, frozen=True):
    """Nodes with rules of their own; a field that is not set is inherited from the arguments above."""

    name: str = ""
    node_selector: SelectorSpec | None = None
    use_deviation_thresholds: bool | None = None
    low_thresholds: dict[str, float] | None = None
    high_thresholds: dict[str, float] | None = None
    resource_weights: dict[str, int] | None = None
    anomaly_condition: AnomalyCondition | None = None


class LowNodeLoadArgs(Section, frozen=True):
    """The seed's arguments, field by field."""

    paused: bool = False
    dry_run: bool = False
    number_of_nodes: Annotated[int, Range(0, 1_000_000)] = 0
    node_metric_expiration_seconds: Annotated[float, Range(1, 86_400)] = 180
    evictable_namespaces: Namespaces | None = None
    node_selector: SelectorSpec | None = None
    pod_selectors: list[PodSelector] = []
    node_fit: bool = True
    use_deviation_thresholds: bool = False
    low_thresholds: dict[str, float] | None = None
    high_thresholds: dict[str, float] | None = None
    resource_weights: dict[str, int] | None = None
    anomaly_condition: AnomalyCondition = AnomalyCondition()
    detector_cache_timeout: str | float = "5m"
    node_pools: list[NodePool] = []

    def compiled(self, field: str = "") -> LowNodeLoad:
        """Check every field and make the rules' own form.

        Args:
            field: where these arguments stand in the user's document.

        Raises:
            ConfigError: naming the first field that makes no sense.
        """
        self.validate(field)
        namespaces = self.evictable_namespaces or Namespaces()
        if namespaces.include and namespaces.exclude:
            raise ConfigError(
                join(field, "evictableNamespaces"), "has both include and exclude", "give one of them, or neither"
            )
        selectors = tuple(
            item.selector.compiled(join(field, f"podSelectors[{i}].selector"))
            for i, item in enumerate(self.pod_selectors)
        )
        own = NodePool(name="default")
        pools = [(field, own)] if not self.node_pools else [
            (join(field, f"nodePools[{i}]"), pool) for i, pool in enumerate(self.node_pools)
        ]  # fmt: skip
        compiled = tuple(self._pool(where, field, pool) for where, pool in pools)
        names = [pool.name for pool in compiled]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(join(field, "nodePools"), f"two pools are named {twice!r}", "give each its own name")
        return LowNodeLoad(
            paused=self.paused,
            dry_run=self.dry_run,
            number_of_nodes=self.number_of_nodes,
            expiry_s=self.node_metric_expiration_seconds,
            include=frozenset(namespaces.include or ()),
            exclude=frozenset(namespaces.exclude or ()),
            pod_selectors=selectors,
            node_fit=self.node_fit,
            cache_timeout_s=seconds(self.detector_cache_timeout, join(field, "detectorCacheTimeout"), least=1),
            pools=compiled,
        )

    def _pool(self, where: str, above: str, pool: NodePool) -> Pool:
        """One pool with what it inherits; ``above`` is where inherited fields stand."""
        low_at, low = _own_or(where, pool.low_thresholds, above, self.low_thresholds)
        high_at, high = _own_or(where, pool.high_thresholds, above, self.high_thresholds)
        deviation = pool.use_deviation_thresholds
        deviation = self.use_deviation_thresholds if deviation is None else deviation
        if low is None and high is None:
            if deviation:
                raise ConfigError(
                    join(where, "highThresholds"), "is empty", "with useDeviationThresholds give both, such as cpu: 10"
                )
            low, high = dict(DEFAULT_LOW), dict(DEFAULT_HIGH)
        thresholds = _checked(join(low_at, "lowThresholds"), low or {}, join(high_at, "highThresholds"), high or {})
        weights_at, weights = _own_or(where, pool.resource_weights, above, self.resource_weights)
        anomaly_at, anomaly = _own_or(where, pool.anomaly_condition, above, self.anomaly_condition)
        timeout_s = seconds(anomaly.timeout, join(anomaly_at, "anomalyCondition.timeout"), least=1)
        selector_at, selector = _own_or(where, pool.node_selector, above, self.node_selector)
        return Pool(
            name=pool.name or where.rpartition(".")[2],
            selector=selector.compiled(join(selector_at, "nodeSelector")) if selector else Selector(),
            deviation=deviation,
            low=thresholds[0],
            high=thresholds[1],
            weights=_weights(join(weights_at, "resourceWeights"), weights, thresholds[1]),
            anomaly=msgspec.structs.replace(anomaly, timeout=timeout_s),
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of nodes with everything resolved.

    Attributes:
        selector: which nodes; of several pools the first that selects a node has it.
        deviation: thresholds are distances from the mean of the pool.
        low, high: percent by resource; both know the same resources.
        weights: for the order of nodes and pods.
        anomaly: its timeout in seconds.
    """

    name: str
    selector: Selector
    deviation: bool
    low: Mapping[str, float]
    high: Mapping[str, float]
    weights: Mapping[str, int]
    anomaly: AnomalyCondition


@dataclass(frozen=True, slots=True)
class LowNodeLoad:
    """`LowNodeLoadArgs`, checked; times in seconds."""

    paused: bool
    dry_run: bool
    number_of_nodes: int
    expiry_s: float
    include: frozenset[str]
    exclude: frozenset[str]
    pod_selectors: tuple[Selector, ...]
    node_fit: bool
    cache_timeout_s: float
    pools: tuple[Pool, ...]

    def admits_namespace(self, namespace: str) -> bool:
        """Whether pods of a namespace may go."""
        return namespace not in self.exclude and (not self.include or namespace in self.include)

    @property
    def resources(self) -> frozenset[str]:
        """Resources with a threshold in any pool."""
        return frozenset(resource for pool in self.pools for resource in pool.high)


def _own_or(where: str, own: T | None, above: str, inherited: T) -> tuple[str, T]:
    return (where, own) if own is not None else (above, inherited)


def _checked(
    low_field: str, low: Mapping[str, float], high_field: str, high: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    for field, thresholds in ((low_field, low), (high_field, high)):
        for resource, percent in thresholds.items():
            if resource not in RESOURCES:
                raise ConfigError(f"{field}.{resource}", "is an unknown resource", f"known are {', '.join(RESOURCES)}")
            if not 0 <= percent <= 100:
                raise ConfigError(f"{field}.{resource}", f"{percent:g} is no percentage", "0 to 100")
    for resource in [*high, *low]:
        field, other = (low_field, high_field) if resource in high else (high_field, low_field)
        if resource not in (low if resource in high else high):
            raise ConfigError(f"{field}.{resource}", f"is missing, while {other} has it", "give both")
    for resource, percent in low.items():
        if percent > high[resource]:
            raise ConfigError(
                f"{low_field}.{resource}",
                f"{percent:g} is above {high_field}'s {high[resource]:g}",
                "low must be <= high",
            )
    return {r: float(low[r]) for r in RESOURCES if r in low}, {r: float(high[r]) for r in RESOURCES if r in high}


def _weights(field: str, weights: Mapping[str, int] | None, high: Mapping[str, float]) -> dict[str, int]:
    if weights is None:
        return {CPU: 1, MEMORY: 1, **({BANDWIDTH: 1} if BANDWIDTH in high else {})}
    for resource, weight in weights.items():
        if resource not in RESOURCES:
            raise ConfigError(f"{field}.{resource}", "is an unknown resource", f"known are {', '.join(RESOURCES)}")
        Range(1, 1_000_000).check(weight, f"{field}.{resource}")
    if not weights:
        raise ConfigError(field, "is empty", "leave it out for cpu 1, memory 1")
    return dict(weights)
