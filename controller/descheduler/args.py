"""koordinator's LowNodeLoadArgs, and their checked form, `LowNodeLoadConfig` (docs/descheduling.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from controller.descheduler.usage import CPU, MEMORY, RESOURCES
from kubekit.durations import parse_duration
from kubekit.errors import ConfigError
from kubekit.selectors import Selector
from kubekit.settings import Percent, Range, Section, SelectorSpec, join_path
from netperf.contract import BANDWIDTH_RESOURCE

Count = Annotated[int, Range(0, 1_000_000)]
Weight = Annotated[int, Range(1, 1_000_000)]

ARGS_KIND = "LowNodeLoadArgs"


class NamespaceFilter(Section, frozen=True):
    """Namespaces whose pods may be evicted: only the included ones, or all but the excluded ones."""

    include: list[str] | None = None
    exclude: list[str] | None = None

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if both are given."""
        if self.include and self.exclude:
            raise ConfigError(field, "has both include and exclude", "give one of them, or neither")

    def allows(self, namespace: str) -> bool:
        """Whether pods of the namespace may be evicted."""
        return namespace not in (self.exclude or ()) and (not self.include or namespace in self.include)


class PodSelector(Section, frozen=True):
    """A selector of pods that may be evicted. Its name has no effect."""

    selector: SelectorSpec
    name: str = ""


class AnomalyCondition(Section, frozen=True):
    """When a node becomes anomalous, so that its pods are moved, and when it is normal again.

    Attributes:
        timeout: an anomaly ends after this time unless it is detected again; seconds, or a duration such as ``1m``.
        consecutive_abnormalities: consecutive rounds above a threshold that make a node anomalous.
        consecutive_normalities: consecutive rounds within the thresholds that make it normal again.
    """

    timeout: str | float = "1m"
    consecutive_abnormalities: Annotated[int, Range(1, 1000)] = 5
    consecutive_normalities: Annotated[int, Range(1, 1000)] = 3


class PercentArgs(Section, frozen=True):
    """Percent of allocatable, by resource."""

    cpu: Percent | None = None
    memory: Percent | None = None
    bandwidth: Percent | None = msgspec.field(name=BANDWIDTH_RESOURCE, default=None)


class WeightArgs(Section, frozen=True):
    """Weights by resource."""

    cpu: Weight | None = None
    memory: Weight | None = None
    bandwidth: Weight | None = msgspec.field(name=BANDWIDTH_RESOURCE, default=None)


# koord-descheduler has no default thresholds.
DEFAULT_LOW_THRESHOLDS = PercentArgs(cpu=45, memory=45)
DEFAULT_HIGH_THRESHOLDS = PercentArgs(cpu=70, memory=70)


class PoolArgs(Section, frozen=True):
    """Settings of a pool of nodes; None if not set."""

    node_selector: SelectorSpec | None = None
    use_deviation_thresholds: bool | None = None
    low_thresholds: PercentArgs | None = None
    high_thresholds: PercentArgs | None = None
    resource_weights: WeightArgs | None = None
    anomaly_condition: AnomalyCondition | None = None

    def check_rules(self, field: str) -> None:
        """Raise ConfigError for an invalid selector or timeout; checked here and not per pool, where they may be inherited."""
        if self.node_selector:
            self.node_selector.compile(join_path(field, "nodeSelector"))
        if self.anomaly_condition:
            parse_duration(self.anomaly_condition.timeout, join_path(field, "anomalyCondition.timeout"), minimum_s=1)

    def resolve_pool(self, name: str, field: str) -> Pool:
        """Check the settings of the pool ``name``, and add defaults; ``field`` is their path in the user's document.

        Raises:
            ConfigError: names the first invalid field.
        """
        low, high = self.low_thresholds, self.high_thresholds
        if low is None and high is None:
            if self.use_deviation_thresholds:
                remedy = "with useDeviationThresholds give lowThresholds and highThresholds, such as {cpu: 10}"
                raise ConfigError(join_path(field, "highThresholds"), "is missing", remedy)
            low, high = DEFAULT_LOW_THRESHOLDS, DEFAULT_HIGH_THRESHOLDS
        low_thresholds, high_thresholds = _values_by_resource(low), _values_by_resource(high)
        _check_thresholds(low_thresholds, high_thresholds, field)
        selector, anomaly = self.node_selector, self.anomaly_condition or AnomalyCondition()
        timeout_s = parse_duration(anomaly.timeout, join_path(field, "anomalyCondition.timeout"), minimum_s=1)
        return Pool(
            name=name,
            selector=selector.compile(join_path(field, "nodeSelector")) if selector else Selector(),
            use_deviation=bool(self.use_deviation_thresholds),
            low_thresholds=low_thresholds,
            high_thresholds=high_thresholds,
            weights=_values_by_resource(self.resource_weights) or dict.fromkeys({CPU, MEMORY, *high_thresholds}, 1),
            anomaly_timeout_s=timeout_s,
            consecutive_abnormalities=anomaly.consecutive_abnormalities,
            consecutive_normalities=anomaly.consecutive_normalities,
        )


class NodePool(PoolArgs, frozen=True):
    """Settings of a named pool; those that are None are inherited from `LowNodeLoadArgs`."""

    name: str = ""


class LowNodeLoadArgs(PoolArgs, frozen=True):
    """LowNodeLoadArgs of koord-descheduler."""

    paused: bool = False
    dry_run: bool = False
    number_of_nodes: Count = 0
    node_metric_expiration_seconds: Annotated[float, Range(1, 86_400)] = 180
    evictable_namespaces: NamespaceFilter = NamespaceFilter()
    pod_selectors: list[PodSelector] = []
    node_fit: bool = True
    detector_cache_timeout: str | float = "5m"
    node_pools: list[NodePool] = []

    def resolve(self, field: str = "") -> LowNodeLoadConfig:
        """Check and convert the arguments; ``field`` is their path in the user's document. Without ``nodePools`` there is one pool.

        Raises:
            ConfigError: names the first invalid field.
        """
        self.validate(field)
        pools = [
            self._with_inherited(pool).resolve_pool(pool.name or f"nodePools[{i}]", join_path(field, f"nodePools[{i}]"))
            for i, pool in enumerate(self.node_pools)
        ] or [self.resolve_pool("default", field)]
        for name, count in Counter(pool.name for pool in pools).items():
            if count > 1:
                problem = f"{count} pools are named {name!r}"
                raise ConfigError(join_path(field, "nodePools"), problem, "give each its own name")
        pod_selectors = tuple(
            item.selector.compile(join_path(field, f"podSelectors[{i}].selector"))
            for i, item in enumerate(self.pod_selectors)
        )
        timeout_s = parse_duration(self.detector_cache_timeout, join_path(field, "detectorCacheTimeout"), minimum_s=1)
        return LowNodeLoadConfig(self, pod_selectors, timeout_s, tuple(pools))

    def _with_inherited(self, pool: NodePool) -> PoolArgs:
        """These arguments with the settings of a pool."""
        settings = {name: getattr(pool, name) for name in PoolArgs.__struct_fields__}
        return msgspec.structs.replace(self, **{name: value for name, value in settings.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Pool:
    """A checked pool of nodes, with defaults and inherited settings.

    Attributes:
        selector: a node belongs to the first pool that selects it.
        use_deviation: whether thresholds are distances from the mean of the pool.
        low_thresholds, high_thresholds: percent by resource, for the same resources.
        weights: by resource, for the order of nodes and pods.
        anomaly_timeout_s, consecutive_abnormalities, consecutive_normalities: see `AnomalyCondition`.
    """

    name: str
    selector: Selector
    use_deviation: bool
    low_thresholds: Mapping[str, float]
    high_thresholds: Mapping[str, float]
    weights: Mapping[str, float]
    anomaly_timeout_s: float
    consecutive_abnormalities: int
    consecutive_normalities: int


@dataclass(frozen=True, slots=True)
class LowNodeLoadConfig:
    """Checked `LowNodeLoadArgs`.

    Attributes:
        args: settings that need no conversion are read from here.
        pod_selectors: only pods that match one of them are evicted; any pod if there are none.
        detector_cache_timeout_s: ``detectorCacheTimeout``.
        pools: in the order in which they select nodes.
    """

    args: LowNodeLoadArgs
    pod_selectors: tuple[Selector, ...]
    detector_cache_timeout_s: float
    pools: tuple[Pool, ...]


def _values_by_resource(args: PercentArgs | WeightArgs | None) -> dict[str, float]:
    """The values that are set, by resource."""
    values = (None, None, None) if args is None else (args.cpu, args.memory, args.bandwidth)
    return {resource: value for resource, value in zip(RESOURCES, values, strict=True) if value is not None}


def _check_thresholds(low: Mapping[str, float], high: Mapping[str, float], field: str) -> None:
    """Raise ConfigError unless both name the same resources, and each low threshold is at most the high one."""
    for resource in RESOURCES:
        name, other = ("highThresholds", "lowThresholds") if resource in low else ("lowThresholds", "highThresholds")
        if (resource in low) != (resource in high):
            raise ConfigError(join_path(field, f"{name}.{resource}"), f"is missing, while {other} has it", "give both")
        if resource in low and low[resource] > high[resource]:
            problem = f"{low[resource]:g} is above highThresholds' {high[resource]:g}"
            raise ConfigError(join_path(field, f"lowThresholds.{resource}"), problem, "low must be <= high")
