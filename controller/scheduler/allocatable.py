"""NodeResourcesAllocatable (docs/contracts, section 5): prefers nodes by how much they could hold, not by what is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.scheduler.config import AllocatableArgs
from kubekit import quantity
from kubekit.errors import QuantityError

MAX_SCORE = 100


def raw_score(allocatable: Mapping[str, str] | None, args: AllocatableArgs) -> int:
    """Weighted mean of a node's allocatable, negative in mode ``Least``; cpu in millicores, the rest as integers.

    What is absent, or no quantity, counts as 0. Requests do not matter.
    """
    sign = -1 if args.mode == "Least" else 1
    total = weights = 0
    for resource in args.resources:
        total += sign * _amount(resource.name, allocatable) * resource.weight
        weights += resource.weight
    # Go's division truncates toward zero, Python's floors.
    return total // weights if total >= 0 else -(-total // weights)


def _amount(name: str, allocatable: Mapping[str, str] | None) -> int:
    text = (allocatable or {}).get(name)
    if text is None:
        return 0
    try:
        return quantity.parse_milli(text) if name == "cpu" else quantity.parse_int(text)
    except QuantityError:
        return 0


def bounds(raw: Iterable[int]) -> tuple[int, int]:
    """Lowest and highest, 0 and 0 without nodes."""
    values = list(raw)
    return (min(values), max(values)) if values else (0, 0)


def normalise(value: int, low: int, high: int) -> int:
    """One score from the lowest and highest raw score."""
    return (value - low) * MAX_SCORE // (high - low) if high > low else 0
