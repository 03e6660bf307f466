"""Settings of measured traffic: the section ``traffic`` of the controller's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from controller.prometheus import require_http_url
from controller.traffic.prices import PriceTable
from kubekit.settings import Range, Section, join_path


class TrafficConfig(Section, frozen=True):
    """Traffic from Prometheus: the leader compares AppGroups with it and, with ``keepWeights``, lets plans weigh by it.

    Attributes:
        prometheus_url: Prometheus with traffic metrics; empty to read and compare nothing.
        source: name of a source; empty for the first source that Prometheus has.
        window_s: range over which rates are computed.
        interval_s: pause between readings of traffic.
        keep_weights: write measured traffic to AppGroups' annotation netaware.io/measured-weights; needs component measured-weights.
        prices: prices of bytes between zones.
    """

    prometheus_url: str = ""
    source: Literal["", "istio", "linkerd", "conntrack"] = ""
    window_s: Annotated[int, Range(300, 7_776_000)] = 3600
    interval_s: Annotated[float, Range(1, 86_400)] = 300.0
    keep_weights: bool = False
    prices: PriceTable = PriceTable()

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if Prometheus' address is given and invalid."""
        if self.prometheus_url:
            require_http_url(self.prometheus_url, join_path(field, "prometheusUrl"))
