"""Figures of programs from what they say of themselves: counters and histograms in Prometheus' text format, before and after."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

Labels = Mapping[str, str]
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


class Readings:
    """Samples of chosen families at one moment, and what was added since an earlier one.

    Args:
        text: of /metrics.
        names: of the samples to keep, such as ``x_total`` or ``y_seconds_bucket``; an API server has a hundred thousand of others.

    Attributes:
        samples: by name and by the text of their labels.
    """

    def __init__(self, text: str, names: Iterable[str]) -> None:
        wanted = frozenset(names)
        self.samples: dict[str, dict[str, float]] = defaultdict(dict)
        for line in text.splitlines():
            name, brace, rest = line.partition("{")
            if not brace:
                name, _, rest = line.partition(" ")
            if name not in wanted:
                continue
            labels, _, value = rest.rpartition("} ") if brace else ("", "", rest)
            self.samples[name][labels] = float(value.split(" ")[0])

    def of(self, name: str, since: Readings | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of a name; with ``since``, by how much it grew."""
        before = since.samples.get(name, {}) if since is not None else {}
        found = self.samples.get(name, {}).items()
        return [(dict(_LABEL.findall(labels)), value - before.get(labels, 0.0)) for labels, value in found]

    def total(self, name: str, since: Readings | None = None) -> float:
        """The sum over the samples of a name."""
        return sum(value for _, value in self.of(name, since))

    def quantiles(
        self, family: str, by: Callable[[Labels], str | None], since: Readings | None = None
    ) -> dict[str, Quantiles]:
        """Of a histogram, by whatever ``by`` makes of the labels; None leaves a sample out."""
        buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
        for labels, value in self.of(f"{family}_bucket", since):
            name = by(labels)
            if name is not None:
                buckets[name][float(labels["le"])] += value
        return {name: Quantiles(found) for name, found in sorted(buckets.items())}


class Quantiles:
    """Of the cumulative buckets of one histogram."""

    def __init__(self, buckets: Mapping[float, float]) -> None:
        self._buckets = sorted(buckets.items())
        self.count = round(self._buckets[-1][1]) if self._buckets else 0

    def at(self, share: float) -> float | None:
        """Interpolated within its bucket, as Prometheus does; of what lies beyond the last bound, that bound. None of nothing."""
        if not self.count:
            return None
        rank, lower, below = share * self.count, 0.0, 0.0
        for upper, count in self._buckets:
            if count >= rank:
                if math.isinf(upper):
                    return lower
                within = (rank - below) / (count - below) if count > below else 1.0
                return lower + (upper - lower) * within
            lower, below = upper, count
        return lower
