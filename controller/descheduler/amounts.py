"""The three resources that the descheduler weighs, their units, and arithmetic on amounts of them.

An amount maps a resource to a number: cpu in millicores, memory in bytes, bandwidth in bits per second. A resource that is
missing is not known, which is not the same as 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubekit import quantity
from kubekit.errors import QuantityError

CPU, MEMORY, BANDWIDTH = "cpu", "memory", "network.aware.com/bandwidth"
RESOURCES = (CPU, MEMORY, BANDWIDTH)

Amounts = Mapping[str, float]
"""Resource -> amount; see the module's units."""
Percents = Mapping[str, float]
"""Resource -> percent of allocatable."""


def parse_amount(resource: str, text: str | int) -> int:
    """Read a quantity in the resource's unit here: millicores for cpu, as it is for all others.

    Raises:
        QuantityError: the text is no quantity.
    """
    return quantity.parse_milli(text) if resource == CPU else quantity.parse_int(text)


def parse_amounts(texts: Mapping[str, str] | None) -> dict[str, int]:
    """Read quantities of any resources; one that cannot be read is left out, since the API server validated them."""
    found: dict[str, int] = {}
    for resource, text in (texts or {}).items():
        try:
            found[resource] = parse_amount(resource, text)
        except QuantityError:
            continue
    return found


def percents(used: Amounts, allocatable: Amounts) -> dict[str, float]:
    """Used share of allocatable in percent, for resources that both know and of which there is any."""
    return {
        resource: 100.0 * used[resource] / allocatable[resource]
        for resource in RESOURCES
        if resource in used and allocatable.get(resource, 0) > 0
    }


def weighted_percent(shares: Percents, weights: Mapping[str, int]) -> float:
    """Mean of the shares by weight; 0 when none of the weighted resources is known."""
    total = sum(weight for resource, weight in weights.items() if resource in shares)
    if not total:
        return 0.0
    return sum(shares[resource] * weight for resource, weight in weights.items() if resource in shares) / total
