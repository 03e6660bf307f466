"""Settings of measured traffic: the section ``traffic`` of the controller's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from controller.prometheus import check_url
from controller.traffic.prices import PRICE, PriceTable, price_table
from controller.traffic.sources import SOURCES
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join

Price = Annotated[float, PRICE]


class PricesConfig(Section, frozen=True):
    """Prices per GB (10^9 bytes), sender's and receiver's side together. One that is left out is that of the next nearer reach.

    Attributes:
        preset: list prices of a cloud, in place of the others; empty for your own.
        currency: of your own.
        same_zone: within a zone.
        between_zones: between zones of a region.
        between_regions: between regions.
    """

    preset: Literal["", "aws", "gcp", "azure"] = ""
    currency: str = "USD"
    same_zone: Price = 0.0
    between_zones: Price | None = None
    between_regions: Price | None = None

    def table(self) -> PriceTable | None:
        """None when no price is known."""
        if self.preset:
            return price_table(self.preset)
        if not any((self.same_zone, self.between_zones, self.between_regions)):
            return None
        return PriceTable(
            currency=self.currency,
            same_zone=self.same_zone,
            between_zones=self.between_zones,
            between_regions=self.between_regions,
        )


class TrafficConfig(Section, frozen=True):
    """What the leader does with traffic that Prometheus knows: it holds AppGroups against it, and with `keepWeights` keeps it for plans.

    Attributes:
        prometheus_url: of the Prometheus that knows traffic; empty for none, and then nothing is done.
        source: where traffic is known from, as for ``kubectl netaware propose``; empty for what Prometheus has.
        window_s: over how long.
        interval_s: how often it is read.
        keep_weights: write measured traffic to the AppGroups' annotation netaware.io/measured-weights; needs the right to patch
            AppGroups, which the component measured-weights gives.
        prices: turn bytes between zones into money.
    """

    prometheus_url: str = ""
    source: str = ""
    window_s: Annotated[int, Range(300, 7_776_000)] = 3600
    interval_s: Annotated[float, Range(1, 86_400)] = 300.0
    keep_weights: bool = False
    prices: PricesConfig = PricesConfig()

    def check(self, field: str) -> None:
        """Raise ConfigError when Prometheus' address is none, or the source is unknown."""
        if self.prometheus_url:
            check_url(self.prometheus_url, join(field, "prometheusUrl"))
        names = [source.name for source in SOURCES]
        if self.source and self.source not in names:
            raise ConfigError(join(field, "source"), f"{self.source!r} is unknown", f"write one of {', '.join(names)}")
