"""Settings of the descheduler: the section ``descheduler`` of the controller's configuration file, and what rules get of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from controller.descheduler.amounts import BANDWIDTH
from controller.descheduler.args import LowNodeLoad, LowNodeLoadArgs
from controller.descheduler.policy import Policy, parse_policy, read_policy
from controller.descheduler.queries import Queries
from controller.descheduler.strict import Section, check_range, join
from controller.prometheus import check_url
from kubekit.errors import ConfigError

FIELD = "descheduler"
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
        half_life_s: usage is smoothed; a change shows by half after this time. 0 for no smoothing.
        timeout_s: for one read of all usage.
    """

    source: Literal["metrics.k8s.io", "prometheus"] = "metrics.k8s.io"
    prometheus: PrometheusConfig = PrometheusConfig()
    half_life_s: float = 30.0
    timeout_s: float = 20.0


class LimitsConfig(Section, frozen=True):
    """How many evictions, where, and how often. 0 means none at all.

    Attributes:
        per_node, per_namespace, per_round: evictions in one round.
        per_workload: moves of one workload within workloadBackoffS: a number, or a share such as ``10%`` of its pods,
            at least one.
        unavailable_per_workload: pods of one workload that may be missing or not ready, the moving ones included.
        per_hour: evictions in any 60 minutes; one without nodeFit counts twice, since nothing is known to take the pod.
        per_app_group: pods of one AppGroup on the move at a time.
        workload_backoff_s: how long a workload rests after a move that helped.
        failure_backoff_s: how long it rests after a move that did not; doubles with each further one.
        longest_backoff_s: no rest is longer.
        settle_s: after a move its node is left alone, and the pod's usage counts where it went, until usage shows it.
        judge_s: how long after a replacement runs it is asked whether the move helped.
        lost_s: a replacement that is not running after this time counts as a move that did not help.
    """

    per_node: int = 2
    per_namespace: int = 10
    per_round: int = 20
    per_workload: int | str = "10%"
    unavailable_per_workload: int | str = "10%"
    per_hour: int = 100
    per_app_group: int = 1
    workload_backoff_s: float = 300.0
    failure_backoff_s: float = 7200.0
    longest_backoff_s: float = 7 * 86_400.0
    settle_s: float = 120.0
    judge_s: float = 300.0
    lost_s: float = 600.0


class ProtectionConfig(Section, frozen=True):
    """Who is never evicted, beside mirror, DaemonSet, critical and annotated pods.

    Attributes:
        bare_pods: whether pods without a controller may go; nobody makes them anew.
        local_storage: whether pods with emptyDir or hostPath volumes may go; they lose that data.
        priority_below: only pods with a priority below this go.
    """

    bare_pods: bool = False
    local_storage: bool = False
    priority_below: int = 2_000_000_000


class MisplacementConfig(Section, frozen=True):
    """Moving pods of AppGroups for the network's sake.

    Attributes:
        enabled: off by default.
        margin: least gain in network cost that justifies a move of a pod whose dependencies are within bounds.
        margin_percent: and least gain as a share of the cost that it has now.
        hold_s: how long the gain must have been there without a break; costs move.
        dry_run: decide and tell, but evict nobody.
    """

    enabled: bool = False
    margin: int = 10
    margin_percent: float = 20.0
    hold_s: float = 300.0
    dry_run: bool = False


class DeschedulerConfig(Section, frozen=True):
    """The section.

    Attributes:
        enabled: off by default, since it evicts pods.
        interval_s: between rounds; a policy's deschedulingInterval wins.
        dry_run: decide and tell, but evict nobody.
        policy: LowNodeLoadArgs or a DeschedulerConfiguration (descheduler/v1alpha2), as koord-descheduler reads them; without
            one, LowNodeLoad's defaults hold.
        policy_file: the same in a file of its own.
        node_conditions: keep the condition Overutilized on nodes that have been hot.
    """

    enabled: bool = False
    interval_s: float = 60.0
    dry_run: bool = False
    policy: dict[str, Any] | None = None
    policy_file: str = ""
    usage: UsageConfig = UsageConfig()
    limits: LimitsConfig = LimitsConfig()
    protection: ProtectionConfig = ProtectionConfig()
    misplacement: MisplacementConfig = MisplacementConfig()
    node_conditions: bool = True

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        self.compiled()

    def compiled(self) -> Settings:
        """Check everything and make the rules' own form.

        Raises:
            ConfigError: naming the first field that makes no sense.
        """
        check_range(f"{FIELD}.intervalS", self.interval_s, 0.05, 86_400)
        policy = self._policy()
        load = None if policy.args is None else policy.args.compiled(policy.args_field)
        self._check_usage(load)
        _check_numbers(self)
        limits = _with_policy(self.limits, policy)
        for name in ("per_workload", "unavailable_per_workload"):
            share_of(getattr(limits, name), 1, f"{FIELD}.limits.{_camel(name)}")
        protection = self.protection
        bare = protection.bare_pods if policy.bare_pods is None else policy.bare_pods
        local = protection.local_storage if policy.local_storage is None else policy.local_storage
        return Settings(
            interval_s=self.interval_s if policy.interval_s is None else policy.interval_s,
            dry_run=self.dry_run or policy.dry_run,
            load=load,
            limits=limits,
            protection=msgspec.structs.replace(protection, bare_pods=bare, local_storage=local),
            misplacement=self.misplacement,
        )

    def _policy(self) -> Policy:
        if self.policy is not None and self.policy_file:
            raise ConfigError(f"{FIELD}.policy", "stands beside policyFile", "give one of them")
        if self.policy is not None:
            return read_policy(self.policy, f"{FIELD}.policy")
        if not self.policy_file:
            return Policy(args=LowNodeLoadArgs(), args_field=FIELD)
        try:
            text = Path(self.policy_file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{FIELD}.policyFile", f"{self.policy_file} cannot be read: {error}") from error
        return parse_policy(text, self.policy_file)

    def _check_usage(self, load: LowNodeLoad | None) -> None:
        usage = self.usage
        url_field = f"{FIELD}.usage.prometheus.url"
        check_range(f"{FIELD}.usage.halfLifeS", usage.half_life_s, 0, 3600)
        check_range(f"{FIELD}.usage.timeoutS", usage.timeout_s, 0.1, 600)
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


def share_of(limit: int | str, pods: int, field: str = "") -> int:
    """Resolve ``3`` or ``10%`` for a workload with so many pods; a share is rounded down, but at least one pod.

    Raises:
        ConfigError: the limit is neither; names ``field``.
    """
    if isinstance(limit, int):
        check_range(field, limit, 0, 1_000_000)
        return limit
    match = _SHARE.match(limit)
    if match is None or int(match[1]) > 100:
        raise ConfigError(field, f"{limit!r} is no limit", "write a number, or a share such as 10%")
    return max(1, pods * int(match[1]) // 100)


def _with_policy(limits: LimitsConfig, policy: Policy) -> LimitsConfig:
    wanted = {
        "per_node": policy.per_node,
        "per_namespace": policy.per_namespace,
        "per_round": policy.per_round,
        "per_workload": policy.per_workload,
        "unavailable_per_workload": policy.unavailable_per_workload,
        "workload_backoff_s": policy.workload_backoff_s,
    }
    return msgspec.structs.replace(limits, **{k: v for k, v in wanted.items() if v is not None})


def _check_numbers(config: DeschedulerConfig) -> None:
    for section, fields in (
        ("limits", ("per_node", "per_namespace", "per_round", "per_hour", "per_app_group")),
        ("limits", ("workload_backoff_s", "failure_backoff_s", "longest_backoff_s", "settle_s", "judge_s", "lost_s")),
        ("misplacement", ("margin", "hold_s")),
    ):
        for field in fields:
            check_range(join(FIELD, section, _camel(field)), getattr(getattr(config, section), field), 0, 31_536_000)
    check_range(f"{FIELD}.misplacement.marginPercent", config.misplacement.margin_percent, 0, 100)
    check_range(f"{FIELD}.protection.priorityBelow", config.protection.priority_below, -(2**31), 2_000_000_000)
    if config.limits.failure_backoff_s > config.limits.longest_backoff_s:
        raise ConfigError(f"{FIELD}.limits.failureBackoffS", "is above longestBackoffS", "it doubles up to that")


def _camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)
