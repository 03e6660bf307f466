"""Price per GB between two places: your own table, or a cloud's list prices.

A preset is the list price of one day, in one currency, without discounts: an estimate, not a bill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kubekit.errors import ConfigError
from kubekit.settings import Range

BYTES_PER_GB = 10**9
HOURS_PER_MONTH = 730.0
PRICE = Range(0, 999)
"""What a GB may cost."""

Reach = Literal["zone", "zones", "regions"]
"""How far bytes go: within a zone, between zones of a region, between regions."""


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Prices per GB (10^9 bytes) that one byte costs on its way, sender's and receiver's side together.

    A missing price is that of the next nearer reach, because longer paths are never cheaper.

    Attributes:
        currency: as printed.
        same_zone: within a zone.
        between_zones: between zones of a region.
        between_regions: between regions.
        pairs: ``"a>b"`` -> price for zones or regions whose price differs, looked up by zone, then by region.
        source: where the figures come from, with their date; shown with every amount.
    """

    currency: str = "USD"
    same_zone: float = 0.0
    between_zones: float | None = None
    between_regions: float | None = None
    pairs: Mapping[str, float] = {}
    source: str = "configured"

    def per_gb(self, origin: tuple[str, str], destination: tuple[str, str]) -> float:
        """Price of a GB between two places, each (region, zone)."""
        (region_a, zone_a), (region_b, zone_b) = origin, destination
        for name in (f"{zone_a}>{zone_b}", f"{region_a}>{region_b}"):
            if name in self.pairs:
                return self.pairs[name]
        return self.of_reach(reach_of(origin, destination))

    def of_reach(self, reach: Reach) -> float:
        """Price of a GB by reach, without the prices of pairs."""
        price = self.same_zone
        for known, given in (
            ("zone", self.same_zone),
            ("zones", self.between_zones),
            ("regions", self.between_regions),
        ):
            price = price if given is None else given
            if known == reach:
                break
        return price


def reach_of(origin: tuple[str, str], destination: tuple[str, str]) -> Reach:
    """The distance between two places, each (region, zone)."""
    if origin[0] != destination[0]:
        return "regions"
    return "zone" if origin[1] == destination[1] else "zones"


PRESETS: Mapping[str, PriceTable] = {
    # Between zones AWS charges 0.01 on either side; between regions the lowest of its prices, which most pairs of North
    # America have.
    "aws": PriceTable(
        between_zones=0.02,
        between_regions=0.02,
        source="AWS EC2 on-demand data transfer, us-east-1, list prices of June 2026",
    ),
    "gcp": PriceTable(
        between_zones=0.01,
        between_regions=0.02,
        source="Google Cloud VPC network pricing, North America, premium tier, list prices of early 2026",
    ),
    # Microsoft does not charge for traffic between availability zones.
    "azure": PriceTable(
        between_zones=0.0,
        between_regions=0.02,
        source="Azure bandwidth pricing, North America, list prices of early 2026",
    ),
}


def price_table(preset: str, table: PriceTable | None = None) -> PriceTable | None:
    """The configured table, else the preset; None without either.

    Raises:
        ConfigError: there is no such preset, or a price is negative.
    """
    if table is None:
        if not preset:
            return None
        if preset not in PRESETS:
            raise ConfigError("--prices", f"{preset!r} is no preset", f"write one of {', '.join(PRESETS)}, or a file")
        return PRESETS[preset]
    amounts = {
        "sameZone": table.same_zone,
        "betweenZones": table.between_zones,
        "betweenRegions": table.between_regions,
        **{f"pairs[{name}]": price for name, price in table.pairs.items()},
    }
    for name, price in amounts.items():
        if price is not None and not PRICE.low <= price <= PRICE.high:
            raise ConfigError(f"--prices: {name}", f"{price} is no price per GB", f"write a number from {PRICE}")
    return table


def per_month(bytes_per_s: float, price_per_gb: float) -> float:
    """Money that a steady rate costs in a month of 730 hours."""
    return bytes_per_s * 3600 * HOURS_PER_MONTH / BYTES_PER_GB * price_per_gb
