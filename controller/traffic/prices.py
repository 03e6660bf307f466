"""Prices of traffic per GB between two locations: configured prices, or a cloud's list prices.

List prices are without discounts and as of the date in `PriceTable.source`, so amounts are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from controller.cluster.costs import Location
from kubekit.settings import Range, Section

BYTES_PER_GB = 10**9
SECONDS_PER_HOUR = 3600
HOURS_PER_MONTH = 730.0

Distance = Literal["zone", "zones", "regions"]
"""Within a zone, between zones of a region, between regions; as in the JSON of `money`."""
PricePerGb = Annotated[float, Range(0, 999)]


class PriceTable(Section, frozen=True):
    """Prices per GB (10^9 bytes), of sender and receiver together. A missing price is that of the next shorter distance.

    A configured table must be resolved before use (`resolve`), because one with a preset has no prices of its own.

    Attributes:
        preset: cloud whose list prices are used; empty to use the prices below.
        currency: currency of the prices below; list prices are in USD.
        same_zone: price per GB within a zone.
        between_zones: per GB between zones of a region; null for the price within a zone.
        between_regions: per GB between regions; null for the price between zones.
    """

    preset: Literal["", "aws", "gcp", "azure"] = ""
    currency: str = "USD"
    same_zone: PricePerGb = 0.0
    between_zones: PricePerGb | None = None
    between_regions: PricePerGb | None = None

    @property
    def source(self) -> str:
        """Origin of the prices, with the date of list prices; shown with amounts."""
        return _SOURCES.get(self.preset, "traffic.prices")

    def resolve(self) -> PriceTable | None:
        """The prices of the preset if one is named, else this table; None if all its prices are 0 or absent."""
        if self.preset:
            return PRESETS[self.preset]
        return self if any((self.same_zone, self.between_zones, self.between_regions)) else None

    def monthly_price(self, bytes_per_s: float, origin: Location, destination: Location) -> float:
        """Price of a constant rate in a month of 730 hours."""
        return bytes_per_s * SECONDS_PER_HOUR * HOURS_PER_MONTH / BYTES_PER_GB * self.price_per_gb(origin, destination)

    def price_per_gb(self, origin: Location, destination: Location) -> float:
        """Price of a GB between two locations."""
        between_zones = self.same_zone if self.between_zones is None else self.between_zones
        between_regions = between_zones if self.between_regions is None else self.between_regions
        prices = {"zone": self.same_zone, "zones": between_zones, "regions": between_regions}
        return prices[distance_between(origin, destination)]


def distance_between(origin: Location, destination: Location) -> Distance:
    """The distance between two locations; locations without regions count as one region."""
    if origin.region != destination.region:
        return "regions"
    return "zone" if origin.zone == destination.zone else "zones"


# Here the prices are those of the table's own preset.
PRESETS: Mapping[str, PriceTable] = {
    # AWS charges each side 0.01 between zones. 0.02 is its lowest price between regions, that of most pairs in North America.
    "aws": PriceTable(preset="aws", between_zones=0.02, between_regions=0.02),
    "gcp": PriceTable(preset="gcp", between_zones=0.01, between_regions=0.02),
    # Microsoft does not charge for traffic between availability zones.
    "azure": PriceTable(preset="azure", between_zones=0.0, between_regions=0.02),
}
_SOURCES = {
    "aws": "AWS EC2 on-demand data transfer, us-east-1, list prices of June 2026",
    "gcp": "Google Cloud VPC network pricing, North America, premium tier, list prices of early 2026",
    "azure": "Azure bandwidth pricing, North America, list prices of early 2026",
}
