"""Settings of the NetworkTopology controller: the section ``topology`` of the controller's configuration file."""

from __future__ import annotations

from typing import Any

from kubekit.errors import ConfigError
from kubekit.settings import Section, join_path
from netperf.pairs import PlanOptions
from netperf.policy import CostPolicy, parse_policy


class TopologyConfig(Section, frozen=True):
    """Probing and costs.

    Attributes:
        namespaces: namespaces whose NetworkTopologies are managed; empty for all.
        probing: the probe plan.
        cost_policy: fields of the default cost policy; a NetworkTopology may override each of them.
    """

    namespaces: tuple[str, ...] = ()
    probing: PlanOptions = PlanOptions()
    cost_policy: dict[str, Any] = {}

    def check_rules(self, field: str) -> None:
        """Check the cost policy; raises as `resolve_cost_policy`."""
        self.resolve_cost_policy(field)

    def resolve_cost_policy(self, field: str = "topology") -> CostPolicy:
        """The controller's cost policy. ``field`` is the name of the section in errors.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        try:
            return parse_policy(self.cost_policy)
        except ConfigError as error:
            raise ConfigError(join_path(field, error.field), error.problem, error.fix) from error
