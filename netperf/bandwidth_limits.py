"""Parses pods' bandwidth annotations into rates.

The rules are those of ``ExtractPodBandwidthResources`` in the kubelet: a rate is the quantity's ``Value()``, which rounds up.
"""

from __future__ import annotations

from decimal import ROUND_CEILING
from typing import Literal

from kubekit import quantity
from kubekit.errors import QuantityError

MIN_BPS, MAX_BPS = 10**3, 10**15
"""Lowest and highest rate, 1k and 1P, both allowed."""


class UnreasonableLimitError(QuantityError):
    """A limit is below `MIN_BPS` or above `MAX_BPS`; the text is that of Kubernetes.

    Attributes:
        size: ``small`` if the limit is below `MIN_BPS`, else ``large``.
    """

    def __init__(self, size: Literal["small", "large"]) -> None:
        bound = "< 1kbit" if size == "small" else "> 1Pbit"
        super().__init__(f"resource is unreasonably {size} ({bound})")
        self.size = size


def parse_limit(text: str) -> int:
    """Parse an annotation to bits per second.

    Raises:
        UnreasonableLimitError: the limit is below `MIN_BPS` or above `MAX_BPS`.
        QuantityError: the text is not a quantity.
    """
    rate_bps = quantity.parse(text).to_integral_value(rounding=ROUND_CEILING)
    if rate_bps < MIN_BPS:
        raise UnreasonableLimitError("small")
    if rate_bps > MAX_BPS:
        raise UnreasonableLimitError("large")
    return int(rate_bps)
