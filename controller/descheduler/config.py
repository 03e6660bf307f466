"""Settings of the descheduler: the section ``descheduler`` of the controller's configuration file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec

from controller.descheduler.args import Count, LowNodeLoadArgs, LowNodeLoadConfig
from controller.descheduler.policy import read_policy
from controller.prometheus import require_http_url
from kubekit.errors import ConfigError
from kubekit.settings import YEAR_S, Percent, Range, Section, to_camel_case
from netperf.contract import BANDWIDTH_RESOURCE

FIELD = "descheduler"
URL_FIELD = f"{FIELD}.usage.prometheus.url"
StrategyName = Literal["LowNodeLoad", "NetworkMisplacement", "ZoneSurvival"]
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)
Seconds = Annotated[float, Range(0, YEAR_S)]
_PERCENT = re.compile(r"([0-9]{1,3})%\Z")
EVALUATION_LAGS = 2.5
"""A move is evaluated this many times ``usageLagS`` after a round first found its replacement bound, so that averages of usage show it."""


class Queries(Section, frozen=True):
    """PromQL queries; empty ones are skipped. Those of nodes return the label ``node``, those of pods ``namespace`` and ``pod``.

    The label ``direction`` keeps both directions of traffic, because ``or`` drops series with equal labels.

    Attributes:
        node_cpu: cores in use, per node.
        node_memory: bytes in use, per node.
        node_bandwidth: bits per second in the busier direction, per node.
        pod_cpu: cores in use, per pod.
        pod_memory: bytes in use, per pod.
        pod_bandwidth: bits per second in the busier direction, per pod.
    """

    node_cpu: str = "sum by (node) (rate(node_cpu_usage_seconds_total[2m]))"
    node_memory: str = "max by (node) (last_over_time(node_memory_working_set_bytes[2m]))"
    node_bandwidth: str = (
        "8 * max by (node) ("
        'label_replace(rate(netaware_node_network_transmit_bytes_total[2m]), "direction", "transmit", "", "")'
        ' or label_replace(rate(netaware_node_network_receive_bytes_total[2m]), "direction", "receive", "", ""))'
    )
    pod_cpu: str = "sum by (namespace, pod) (rate(pod_cpu_usage_seconds_total[2m]))"
    pod_memory: str = "max by (namespace, pod) (last_over_time(pod_memory_working_set_bytes[2m]))"
    pod_bandwidth: str = (
        "8 * max by (namespace, pod) ("
        'label_replace(sum by (namespace, pod) (rate(container_network_transmit_bytes_total{pod!=""}[2m])),'
        ' "direction", "transmit", "", "")'
        ' or label_replace(sum by (namespace, pod) (rate(container_network_receive_bytes_total{pod!=""}[2m])),'
        ' "direction", "receive", "", ""))'
    )


class PrometheusConfig(Section, frozen=True):
    """Address and queries of Prometheus.

    Attributes:
        url: base address; empty for no Prometheus.
        token_file: file with a bearer token; empty for none.
        queries: PromQL queries of usage.
    """

    url: str = ""
    token_file: str = ""
    queries: Queries = Queries()


class UsageConfig(Section, frozen=True):
    """Sources of usage.

    Attributes:
        source: source of cpu and memory; bandwidth always comes from Prometheus.
        prometheus: address and queries of Prometheus.
    """

    source: Literal["metrics.k8s.io", "prometheus"] = "metrics.k8s.io"
    prometheus: PrometheusConfig = PrometheusConfig()


class LimitsConfig(Section, frozen=True):
    """Limits on evictions. 0 in one of the first five forbids evictions.

    Attributes:
        per_node: evictions from a node in a round; earlier ones count until their replacement is bound.
        per_namespace: the same for a namespace.
        per_round: the same for the cluster.
        per_workload: evictions of a workload's pods within workloadBackoffS: a number, or a percentage of its pods (at least one).
        unavailable_per_workload: pods of a workload that may be missing, not ready or moving: a number or a percentage (at least one).
        workload_backoff_s: period in which perWorkload counts; also the first back-off of a pod whose move the planner would undo.
        failure_backoff_s: first back-off of a workload after a failed move or a refused eviction; doubles up to a week.
        usage_lag_s: time until usage shows a move; in this time, later rounds of LowNodeLoad evict no other pod of the node.
        start_timeout_s: time until a replacement must be bound; if it waits for longer, its move did not help.
        min_success_percent: a strategy stops if less than this share of its moves of a day helped, of at least four; with 0 it never stops.
    """

    per_node: Count = 2
    per_namespace: Count = 10
    per_round: Count = 20
    per_workload: int | str = "10%"
    unavailable_per_workload: int | str = "10%"
    workload_backoff_s: Seconds = 300.0
    failure_backoff_s: Seconds = 7200.0
    usage_lag_s: Seconds = 120.0
    start_timeout_s: Seconds = 600.0
    min_success_percent: Percent = 50.0

    @property
    def evaluate_after_s(self) -> float:
        """Seconds from the first round that finds a replacement bound to the evaluation of its move."""
        return EVALUATION_LAGS * self.usage_lag_s


class ProtectionConfig(Section, frozen=True):
    """Pods that may be evicted. Mirror, static, DaemonSet and critical pods never are, nor those whose annotation forbids it.

    Attributes:
        evict_local_storage: evict pods with emptyDir or hostPath volumes, whose data is lost.
        evict_volume_claims: evict pods with PersistentVolumeClaims.
        owner_kinds: kinds of workloads whose pods may be evicted. A Job counts an eviction against its backoffLimit.
        min_replicas: pods of workloads with fewer replicas are not evicted.
        min_pod_age_s: younger pods are not evicted.
    """

    evict_local_storage: bool = False
    evict_volume_claims: bool = False
    owner_kinds: tuple[str, ...] = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
    min_replicas: Annotated[int, Range(1, 1_000_000)] = 2
    min_pod_age_s: Seconds = 60.0


class MisplacementConfig(Section, frozen=True):
    """Strategies that move pods of AppGroups: NetworkMisplacement and ZoneSurvival.

    Attributes:
        enabled: run NetworkMisplacement and ZoneSurvival.
        margin: least gain in network cost of a move, which must also be 20 %; moves after which fewer dependencies are violated need neither.
        hold_s: time for which a better node must have existed before a move.
    """

    enabled: bool = False
    margin: Count = 10
    hold_s: Seconds = 300.0


class DeschedulerConfig(Section, frozen=True):
    """The descheduler (docs/descheduling.md). The default queries are in `controller/descheduler/config.py`.

    Attributes:
        enabled: run the descheduler.
        interval_s: seconds between rounds; a policy's deschedulingInterval overrides it.
        dry_run: decide and report, but evict nothing.
        policy: LowNodeLoadArgs or a DeschedulerConfiguration (descheduler/v1alpha2); null for LowNodeLoad's defaults.
        usage, limits, protection, misplacement: sections of their own.
    """

    enabled: bool = False
    interval_s: Annotated[float, Range(0.05, 86_400)] = 60.0
    dry_run: bool = False
    policy: dict[str, Any] | None = None
    usage: UsageConfig = UsageConfig()
    limits: LimitsConfig = LimitsConfig()
    protection: ProtectionConfig = ProtectionConfig()
    misplacement: MisplacementConfig = MisplacementConfig()

    def check_rules(self, field: str) -> None:  # noqa: ARG002 - errors of the policy name its own fields
        """Raise ConfigError for an invalid policy, percentage or address."""
        self.resolve()

    def resolve(self) -> ResolvedConfig:
        """Check the configuration, and override settings by those of the policy.

        Raises:
            ConfigError: names the first invalid field.
        """
        policy = read_policy(self.policy or {}, f"{FIELD}.policy")
        self._check_usage_source(policy.low_node_load)
        limits = msgspec.structs.replace(self.limits, **policy.limits)
        for name in ("per_workload", "unavailable_per_workload"):
            resolve_limit(getattr(limits, name), 1, f"{FIELD}.limits.{to_camel_case(name)}")
        load = policy.low_node_load
        return ResolvedConfig(
            interval_s=self.interval_s if policy.interval_s is None else policy.interval_s,
            dry_run=self.dry_run or policy.dry_run or (load is not None and load.args.dry_run),
            low_node_load=load,
            limits=limits,
            protection=msgspec.structs.replace(self.protection, **policy.protection),
            misplacement=self.misplacement,
            warnings=policy.warnings,
        )

    def _check_usage_source(self, low_node_load: LowNodeLoadConfig | None) -> None:
        if self.usage.prometheus.url:
            require_http_url(self.usage.prometheus.url, URL_FIELD)
        elif self.enabled and low_node_load is not None:
            if self.usage.source == "prometheus":
                raise ConfigError(URL_FIELD, "is empty, and usage.source is prometheus", "write http://HOST:PORT")
            if any(BANDWIDTH_RESOURCE in pool.high_thresholds for pool in low_node_load.pools):
                problem = f"is empty, and {BANDWIDTH_RESOURCE} has a threshold"
                raise ConfigError(URL_FIELD, problem, "metrics.k8s.io has no bandwidth")


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The checked configuration, with the policy's settings; see `DeschedulerConfig` for its fields.

    ``low_node_load`` is None if the policy does not enable LowNodeLoad; ``warnings`` are settings of the policy without effect.
    """

    interval_s: float
    dry_run: bool
    low_node_load: LowNodeLoadConfig | None
    limits: LimitsConfig
    protection: ProtectionConfig
    misplacement: MisplacementConfig
    warnings: tuple[str, ...]

    @property
    def usage_expiry_s(self) -> float:
        """Age at which usage expires, seconds. Without LowNodeLoad its default, because the other strategies read usage too."""
        args = LowNodeLoadArgs() if self.low_node_load is None else self.low_node_load.args
        return args.node_metric_expiration_seconds


def resolve_limit(limit: int | str, pods: int, field: str = "") -> int:
    """Convert a limit such as ``3`` or ``10%`` to a number of pods; a percentage above 0 is rounded down, but at least 1.

    Raises:
        ConfigError: the limit is neither a number nor a percentage, or is out of range; names ``field``.
    """
    if isinstance(limit, int):
        Range(0, 1_000_000).check_value(limit, field)
        return limit
    match = _PERCENT.match(limit)
    if match is None or int(match[1]) > 100:
        raise ConfigError(field, f"{limit!r} is not a limit", "write a number, or a percentage such as 10%")
    percent = int(match[1])
    return max(1, pods * percent // 100) if percent else 0
