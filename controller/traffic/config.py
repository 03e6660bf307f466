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
    """Prices per GB (10^9 bytes), of sender and receiver together. A missing one is that of the next nearer distance.

    Attributes:
        preset: list prices of a cloud; empty to use the following prices.
        currency: of these prices.
        same_zone: per GB within a zone.
        between_zones: per GB between zones of a region.
        between_regions: per GB between regions.
    """

    preset: Literal["", "aws", "gcp", "azure"] = ""
    currency: str = "USD"
    same_zone: Price = 0.0
    between_zones: Price | None = None
    between_regions: Price | None = None

    def table(self) -> PriceTable | None:
        """The price table; None without any price."""
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
    """Traffic from Prometheus: the leader compares AppGroups with it and, with ``keepWeights``, lets plans weigh by it.

    Attributes:
        prometheus_url: Prometheus with traffic metrics; empty to do nothing.
        source: as for the flag ``--source`` of ``kubectl netaware propose``; empty for the first that Prometheus has.
        window_s: range of rates.
        interval_s: between readings.
        keep_weights: write measured traffic to AppGroups' annotation netaware.io/measured-weights; needs the component
            measured-weights.
        prices: turn bytes between zones into money.
    """

    prometheus_url: str = ""
    source: str = ""
    window_s: Annotated[int, Range(300, 7_776_000)] = 3600
    interval_s: Annotated[float, Range(1, 86_400)] = 300.0
    keep_weights: bool = False
    prices: PricesConfig = PricesConfig()

    def check(self, field: str) -> None:
        """Raise ConfigError if Prometheus' address is invalid or the source unknown."""
        if self.prometheus_url:
            check_url(self.prometheus_url, join(field, "prometheusUrl"))
        names = [source.name for source in SOURCES]
        if self.source and self.source not in names:
            raise ConfigError(join(field, "source"), f"{self.source!r} is unknown", f"write one of {', '.join(names)}")
