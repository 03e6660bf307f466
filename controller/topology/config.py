"""Settings of the NetworkTopology controller: the section ``topology`` of the controller's configuration file."""

from __future__ import annotations

from typing import Any

import msgspec

from kubekit.errors import ConfigError
from netperf.pairs import PlanOptions
from netperf.plans import Port, ProbeSettings
from netperf.policy import CostPolicy, parse_policy
from netperf.sample import Test


class ProbingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Who probes whom, and how often; see `netperf.pairs.PlanOptions` for the meaning of each field."""

    interval_s: float = 60.0
    slot_s: float = 6.0
    rotation_s: float = 3600.0
    both_directions: bool = False
    intra_zone: bool = False
    second_pair: bool = False
    max_concurrent: int = 0
    results_name: str = "netperf-metrics"
    test: Test = "TCP_RR"
    extra_tests: tuple[Test, ...] = ()
    extra_every: int = 10
    duration_s: float = 1.0
    port: Port = 12865
    data_port: Port = 12866
    echo_port: Port = 12867

    def options(self, results_name: str | None = None) -> PlanOptions:
        """The same as the domain wants it.

        Raises:
            ConfigError: a field is out of range.
        """
        settings = ProbeSettings(
            test=self.test,
            extra_tests=self.extra_tests,
            extra_every=self.extra_every,
            duration_s=self.duration_s,
            port=self.port,
            data_port=self.data_port,
            echo_port=self.echo_port,
        )
        return PlanOptions(
            interval_s=self.interval_s,
            slot_s=self.slot_s,
            rotation_s=self.rotation_s,
            both_directions=self.both_directions,
            intra_zone=self.intra_zone,
            second_pair=self.second_pair,
            max_concurrent=self.max_concurrent,
            results_name=results_name or self.results_name,
            settings=settings,
        )


class TopologyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How costs are kept.

    Attributes:
        namespaces: where NetworkTopologies are looked after; empty for everywhere.
        probing: the probe plan.
        cost_policy: defaults of `netperf.policy.CostPolicy` fields, in camelCase; a NetworkTopology's own win.
        settle_s: samples arrive one by one; a topology is priced once per this time at most.
        resync_s: and at least once per this time, since measurements age without any event.
        plan_settle_s: nodes change in bursts; the plan is made once per this time at most.
        capacity_hysteresis: a measured bandwidth capacity is written again when it moved by more than this share.
    """

    namespaces: tuple[str, ...] = ()
    probing: ProbingConfig = ProbingConfig()
    cost_policy: dict[str, Any] = {}
    settle_s: float = 1.0
    resync_s: float = 15.0
    plan_settle_s: float = 1.0
    capacity_hysteresis: float = 0.25

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        if not 0.01 <= self.probing.duration_s <= 60:
            raise ConfigError("topology.probing.durationS", f"{self.probing.duration_s} is out of range", "0.01 to 60")
        if not 2 <= self.probing.extra_every <= 100_000:
            raise ConfigError(
                "topology.probing.extraEvery", f"{self.probing.extra_every} is out of range", "2 to 100000 rounds"
            )
        try:
            self.probing.options()
        except ConfigError as error:
            raise ConfigError(
                _camel(error.field.replace("plan.", "topology.probing.")), error.problem, error.fix
            ) from error
        self.policy()
        for field, low, high in (("settle_s", 0, 60), ("resync_s", 1, 3600), ("plan_settle_s", 0, 60)):
            if not low <= getattr(self, field) <= high:
                raise ConfigError(
                    f"topology.{_camel(field)}", f"{getattr(self, field)} is out of range", f"{low} to {high}"
                )
        if not 0 <= self.capacity_hysteresis <= 1:
            raise ConfigError("topology.capacityHysteresis", f"{self.capacity_hysteresis} is out of range", "0 to 1")

    def policy(self) -> CostPolicy:
        """The default policy.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        try:
            return parse_policy(self.cost_policy)
        except ConfigError as error:
            raise ConfigError(f"topology.{error.field}", error.problem, error.fix) from error


def _camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)
