"""Parses pods' bandwidth annotations into rates.

The source is the kubelet's pkg/util/bandwidth (``ExtractPodBandwidthResources``), which runtimes have copies of: bounds and rate
are the quantity's ``Value()``, which rounds a fraction up.
"""

from __future__ import annotations

import math
from typing import Literal

from kubekit import quantity
from kubekit.errors import QuantityError

MIN_BPS, MAX_BPS = 10**3, 10**15
"""1k and 1P, both allowed."""


class UnreasonableLimitError(QuantityError):
    """A limit is out of bounds; the text is the one that Kubernetes users know.

    Attributes:
        size: which bound it is beyond.
    """

    def __init__(self, size: Literal["small", "large"]) -> None:
        bound = "< 1kbit" if size == "small" else "> 1Pbit"
        super().__init__(f"resource is unreasonably {size} ({bound})")
        self.size = size


def read_limit(text: str) -> int:
    """Bits per second, a fraction rounded up.

    Raises:
        UnreasonableLimitError: it is beyond the bounds.
        QuantityError: the text is no quantity.
    """
    rate_bps = math.ceil(quantity.parse(text))
    if rate_bps < MIN_BPS:
        raise UnreasonableLimitError("small")
    if rate_bps > MAX_BPS:
        raise UnreasonableLimitError("large")
    return rate_bps
