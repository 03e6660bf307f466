"""Settings of the descheduler: the section ``descheduler`` of the controller's configuration file, and what rules get of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from controller.descheduler.args import LowNodeLoad, LowNodeLoadArgs
from controller.descheduler.policy import Policy, read_policy
from controller.prometheus import check_url
from kubekit.errors import ConfigError
from kubekit.settings import YEAR_S, Percent, Range, Section, camel
from netperf.contract import BANDWIDTH


class Queries(Section, frozen=True):
    """Expressions by purpose; series carry the labels ``node``, or ``namespace`` and ``pod``. An empty expression is not asked.

    Attributes:
        node_cpu: cores in use, per node.
        node_memory: bytes in use, per node.
        node_bandwidth: bits per second, the busier of transmit and receive, per node.
        pod_cpu, pod_memory, pod_bandwidth: the same per pod.
    """

    node_cpu: str = "sum by (node) (rate(node_cpu_usage_seconds_total[2m]))"
    node_memory: str = "max by (node) (last_over_time(node_memory_working_set_bytes[2m]))"
    node_bandwidth: str = (
        "8 * max by (node) ("
        'label_replace(rate(netaware_node_network_transmit_bytes_total[2m]), "way", "transmit", "", "")'
        ' or label_replace(rate(netaware_node_network_receive_bytes_total[2m]), "way", "receive", "", ""))'
    )
    pod_cpu: str = "sum by (namespace, pod) (rate(pod_cpu_usage_seconds_total[2m]))"
    pod_memory: str = "max by (namespace, pod) (last_over_time(pod_memory_working_set_bytes[2m]))"
    pod_bandwidth: str = (
        "8 * max by (namespace, pod) ("
        'label_replace(sum by (namespace, pod) (rate(container_network_transmit_bytes_total{pod!=""}[2m])),'
        ' "way", "transmit", "", "")'
        ' or label_replace(sum by (namespace, pod) (rate(container_network_receive_bytes_total{pod!=""}[2m])),'
        ' "way", "receive", "", ""))'
    )


FIELD = "descheduler"
Strategy = Literal["LowNodeLoad", "NetworkMisplacement", "ZoneSurvival"]
Count = Annotated[int, Range(0, YEAR_S)]
Time = Annotated[float, Range(0, YEAR_S)]
"""Seconds, up to a year."""
_SHARE = re.compile(r"([0-9]{1,3})%\Z")


class PrometheusConfig(Section, frozen=True):
    """Where and what to ask Prometheus.

    Attributes:
        url: base address; empty for no Prometheus.
        token_file: file with a bearer token, read before each round; empty for none.
        queries: expressions by purpose.
    """

    url: str = ""
    token_file: str = ""
    queries: Queries = Queries()


class UsageConfig(Section, frozen=True):
    """Where usage comes from.

    Attributes:
        source: of cpu and memory; bandwidth is always Prometheus', since metrics.k8s.io does not have it.
    """

    source: Literal["metrics.k8s.io", "prometheus"] = "metrics.k8s.io"
    prometheus: PrometheusConfig = PrometheusConfig()


class LimitsConfig(Section, frozen=True):
    """How many evictions, where, and how often. 0 means none at all.

    Attributes:
        per_node, per_namespace, per_round: evictions in one round, together with those of before whose replacements are not
            there yet: where nothing starts, nothing more is stopped.
        per_hour: evictions in any 60 minutes.
        per_workload: moves of one workload within workloadBackoffS: a number, or a share such as ``10%`` of its pods,
            at least one.
        unavailable_per_workload: pods of one workload that may be missing or not ready, the moving ones included.
        workload_backoff_s: see per_workload; also before the planner is asked again about a pod that it would not move.
        failure_backoff_s: how long a workload backs off after a move that did not help; doubles with each further one, up
            to a week.
        usage_lag_s: how long until usage shows a move. Until then its node is left alone, and the pod's usage counts where it
            went; a move is evaluated 2.5 times as long after its replacement runs.
        start_timeout_s: a replacement that is not running after this time counts as a move that did not help.
        min_chance_percent: a pod goes only when kube-scheduler's scores put its replacement with this chance where it is a
            gain; 0 where its profile is not the default, so that they would say nothing.
        min_success_percent: a strategy stops where less of its moves of a day helped and landed as expected; 0 for never.
    """

    per_node: Count = 2
    per_namespace: Count = 10
    per_round: Count = 20
    per_hour: Count = 100
    per_workload: int | str = "10%"
    unavailable_per_workload: int | str = "10%"
    workload_backoff_s: Time = 300.0
    failure_backoff_s: Time = 7200.0
    usage_lag_s: Time = 120.0
    start_timeout_s: Time = 600.0
    min_chance_percent: Percent = 95.0
    min_success_percent: Percent = 50.0

    @property
    def evaluate_after_s(self) -> float:
        """How long after a replacement runs its move is evaluated, seconds."""
        return 2.5 * self.usage_lag_s


class ProtectionConfig(Section, frozen=True):
    """Who is never evicted, beside mirror, DaemonSet, critical and annotated pods.

    Attributes:
        bare_pods: whether pods without a controller may go; nobody makes them anew.
        local_storage: whether pods with emptyDir or hostPath volumes may go; they lose that data.
        priority_below: only pods with a priority below this go.
        volume_claims: whether pods with PersistentVolumeClaims may go; their volume may hold them where they are.
        owner_kinds: kinds of workloads whose pods may go. A Job counts an evicted pod against its backoffLimit, and who makes a
            pod of an unknown kind anew is not known.
        min_replicas: workloads with fewer pods stay: moving the only replica is an outage.
        min_pod_age_s: younger pods stay, since they may still be starting.
    """

    bare_pods: bool = False
    local_storage: bool = False
    priority_below: Annotated[int, Range(-(2**31), 2_000_000_000)] = 2_000_000_000
    volume_claims: bool = False
    owner_kinds: tuple[str, ...] = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
    min_replicas: Annotated[int, Range(1, 1_000_000)] = 2
    min_pod_age_s: Time = 60.0


class MisplacementConfig(Section, frozen=True):
    """Moving pods of AppGroups for the network's sake.

    Attributes:
        enabled: off by default.
        margin: least gain in network cost that justifies a move of a pod whose dependencies are within bounds; a fifth of the
            cost that it has now, where that is more.
        hold_s: how long the gain must have been there without a break; costs move.
        dry_run: decide and tell, but evict nobody.
    """

    enabled: bool = False
    margin: Count = 10
    hold_s: Time = 300.0
    dry_run: bool = False


class DeschedulerConfig(Section, frozen=True):
    """The section.

    Attributes:
        enabled: off by default, since it evicts pods.
        interval_s: between rounds; a policy's deschedulingInterval wins.
        dry_run: decide and tell, but evict nobody.
        policy: LowNodeLoadArgs or a DeschedulerConfiguration (descheduler/v1alpha2), as koord-descheduler reads them; without
            one, LowNodeLoad's defaults hold.
        taint_hot_nodes: keep the taint ``netaware.io/hot`` (PreferNoSchedule) on them, so that kube-scheduler puts replacements
            elsewhere; needs the right to patch nodes, which the component heat-taint gives.
    """

    enabled: bool = False
    interval_s: Annotated[float, Range(0.05, 86_400)] = 60.0
    dry_run: bool = False
    policy: dict[str, Any] | None = None
    usage: UsageConfig = UsageConfig()
    limits: LimitsConfig = LimitsConfig()
    protection: ProtectionConfig = ProtectionConfig()
    misplacement: MisplacementConfig = MisplacementConfig()
    taint_hot_nodes: bool = False

    def check(self, field: str) -> None:  # noqa: ARG002 - errors of the policy name its own fields
        """Raise ConfigError for a policy, a share or an address that makes no sense."""
        self.compiled()

    def compiled(self) -> Settings:
        """Check everything and make the rules' own form.

        Raises:
            ConfigError: naming the first field that makes no sense.
        """
        policy = self._policy()
        load = None if policy.args is None else policy.args.compiled(policy.args_field)
        self._check_usage(load)
        limits = msgspec.structs.replace(self.limits, **policy.limits)
        for name in ("per_workload", "unavailable_per_workload"):
            share_of(getattr(limits, name), 1, f"{FIELD}.limits.{camel(name)}")
        protection = self.protection
        local = protection.local_storage if policy.local_storage is None else policy.local_storage
        return Settings(
            interval_s=self.interval_s if policy.interval_s is None else policy.interval_s,
            dry_run=self.dry_run or policy.dry_run,
            load=load,
            limits=limits,
            protection=msgspec.structs.replace(protection, local_storage=local),
            misplacement=self.misplacement,
            taint_hot_nodes=self.taint_hot_nodes,
        )

    def _policy(self) -> Policy:
        if self.policy is None:
            return Policy(args=LowNodeLoadArgs(), args_field=FIELD)
        return read_policy(self.policy, f"{FIELD}.policy")

    def _check_usage(self, load: LowNodeLoad | None) -> None:
        usage = self.usage
        url_field = f"{FIELD}.usage.prometheus.url"
        if usage.prometheus.url:
            check_url(usage.prometheus.url, url_field)
        if not self.enabled or usage.prometheus.url or load is None:
            return
        if usage.source == "prometheus":
            raise ConfigError(url_field, "is empty, and usage.source is prometheus", "write http://HOST:PORT")
        if BANDWIDTH in load.resources:
            raise ConfigError(
                url_field, f"is empty, and {BANDWIDTH} has a threshold", "metrics.k8s.io has no bandwidth"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """What the rules get: everything checked and resolved.

    Attributes:
        load: None when LowNodeLoad is not enabled.
    """

    interval_s: float
    dry_run: bool
    load: LowNodeLoad | None
    limits: LimitsConfig
    protection: ProtectionConfig
    misplacement: MisplacementConfig
    taint_hot_nodes: bool = False

    @property
    def expiry_s(self) -> float:
        """After how long usage is not known any more, seconds; without LowNodeLoad its default."""
        return LowNodeLoadArgs().node_metric_expiration_seconds if self.load is None else self.load.expiry_s

    def is_dry(self, strategy: Strategy) -> bool:
        """Whether moves of a strategy are decided and told, and nobody is evicted."""
        rehearsed = strategy != "LowNodeLoad" and self.misplacement.dry_run
        return self.dry_run or rehearsed or (self.load is not None and self.load.dry_run)


def share_of(limit: int | str, pods: int, field: str = "") -> int:
    """Resolve ``3`` or ``10%`` for a workload with so many pods; a share is rounded down, but at least one pod.

    Raises:
        ConfigError: the limit is neither; names ``field``.
    """
    if isinstance(limit, int):
        Range(0, 1_000_000).check(limit, field)
        return limit
    match = _SHARE.match(limit)
    if match is None or int(match[1]) > 100:
        raise ConfigError(field, f"{limit!r} is no limit", "write a number, or a share such as 10%")
    return max(1, pods * int(match[1]) // 100)
