"""Capped exponential back-off with jitter, as a value that rules and loops share.

Jitter matters: when an API server comes back, ten thousand agents must not ask in the same second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays that double from ``base_s`` to ``cap_s``, each shortened by up to half at random.

    Attributes:
        base_s: the first delay before jitter, seconds.
        cap_s: no delay is longer, seconds.
        rng: source of the jitter; pass a seeded one where a test must repeat.
    """

    base_s: float = 0.5
    cap_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next(self) -> float:
        """Count one failure and return how long to wait, in seconds."""
        self.failures += 1
        # The exponent is bounded, because 2.0 ** 1100 overflows after a long outage.
        full = min(self.cap_s, self.base_s * 2.0 ** min(self.failures - 1, 32))
        return full * self.rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Forget the failures: the next delay is the first again."""
        self.failures = 0
