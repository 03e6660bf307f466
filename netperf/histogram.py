"""A mergeable sparse histogram of round trips, accurate to half a per cent.

Buckets are 1/128 of an octave wide. Only buckets with values are stored: an agent may have a hundred histograms, and a dense histogram,
such as HdrHistogram with three digits, takes 180 kB.
"""

from __future__ import annotations

import math

BUCKETS_PER_OCTAVE = 128


def nearest_rank(percent: float, count: int) -> int:
    """The nearest rank, from 1, of a percentile among ``count`` sorted values."""
    return max(1, math.ceil(percent / 100 * count))


class Histogram:
    """Counts of values in microseconds by their logarithm; ``min_us`` and ``max_us`` are exact. Only finite values above 0 are counted."""

    __slots__ = ("_counts", "count", "max_us", "min_us")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count, self.min_us, self.max_us = 0, math.inf, 0.0

    def record(self, value_us: float) -> None:
        """Count one value, if it is finite and above 0."""
        if not 0 < value_us < math.inf:
            return
        index = math.floor(math.log2(value_us) * BUCKETS_PER_OCTAVE)
        self._counts[index] = self._counts.get(index, 0) + 1
        self.count += 1
        self.min_us, self.max_us = min(self.min_us, value_us), max(self.max_us, value_us)

    def merge(self, other: Histogram) -> None:
        """Add the values of ``other``."""
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self.count += other.count
        self.min_us, self.max_us = min(self.min_us, other.min_us), max(self.max_us, other.max_us)

    def percentile_us(self, percent: float) -> float | None:
        """The percentile by nearest rank, within minimum and maximum; None if the histogram is empty."""
        if not self.count:
            return None
        rank, cumulative_count = nearest_rank(percent, self.count), 0
        for index in sorted(self._counts):
            cumulative_count += self._counts[index]
            if cumulative_count >= rank:
                middle_us: float = 2.0 ** ((index + 0.5) / BUCKETS_PER_OCTAVE)
                return min(max(middle_us, self.min_us), self.max_us)
        return self.max_us
