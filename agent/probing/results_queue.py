"""Chooses which samples and failures of this node to write, and when.

Every write costs every watcher. So a sample that is equivalent to the written one waits until that would become stale, or until another
entry is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, KeysView
from typing import NamedTuple

from netperf.results import refresh_interval_s, sample_key
from netperf.sample import Failure, NodeLocation, Sample, Test

MAX_URGENT_FAILURES = 4
"""Failures in a row that are written at once; further ones wait."""
MIN_EQUIVALENT_WRITES = 2
"""Readers accept a change when a second run confirms it, so a sample waits only after this many writes."""
MAX_DIFFERENCE_RATIO = 0.03
MAX_DIFFERENCE_US = 30.0
MAX_TAIL_DIFFERENCE_RATIO = 0.25
MAX_TAIL_DIFFERENCE_US = 150.0
"""The p99 varies more than other values."""
MAX_LOSS_DIFFERENCE = 0.005


def is_equivalent(new: Sample, old: Sample) -> bool:
    """Whether a reader would conclude the same: equal flags and instrument, and values that differ by at most the limits above."""
    after, before = new.cost_measurement, old.cost_measurement
    equal_fields = ("quality_flags", "cost_source", "run_failure", "has_persistent_failure")
    return (
        all(getattr(new, name) == getattr(old, name) for name in equal_fields)
        and after.prober == before.prober
        and _is_close(after.p50_us, before.p50_us, MAX_DIFFERENCE_US)
        and _is_close(after.p90_us, before.p90_us, MAX_DIFFERENCE_US)
        and _is_close(after.p99_us, before.p99_us, MAX_TAIL_DIFFERENCE_US, MAX_TAIL_DIFFERENCE_RATIO)
        and _is_close(after.throughput_bps, before.throughput_bps, 0.0)
        and _is_close(after.loss_ratio, before.loss_ratio, MAX_LOSS_DIFFERENCE)
    )


def _is_close(
    after: float | None, before: float | None, max_difference: float, max_ratio: float = MAX_DIFFERENCE_RATIO
) -> bool:
    if after is None or before is None:
        return after is before
    return abs(after - before) <= max(max_difference, max_ratio * before)


class Entry(NamedTuple):
    """The results of one pair and test to write: a sample, a failure, or the end of a failure.

    Attributes:
        key: of the pair's sample in the ConfigMap.
        test: the test that was run.
        sample: to write; None if there is none.
        failure: to write; None if there is none.
        removes_failure: the key of the pair's failure is to be removed.
    """

    key: str
    test: Test
    sample: Sample | None = None
    failure: Failure | None = None
    removes_failure: bool = False


class _Pair:
    """One pair and test: the waiting sample or failure, and the written one.

    Attributes:
        test: the test that was run.
        sample, failure: the waiting ones; None if there is none.
        is_urgent: the sample should be written soon.
        failure_is_over: the peer answered again, and the failure's key should be removed.
        written, written_at_s: the latest written sample, and when it was written.
        equivalent_writes: writes in a row of equivalent samples, the latest included.
        failure_written_at_s: when the failure in the ConfigMap was written; None if there is no failure.
    """

    def __init__(self, test: Test) -> None:
        self.test = test
        self.sample: Sample | None = None
        self.failure: Failure | None = None
        self.is_urgent = self.failure_is_over = False
        self.written: Sample | None = None
        self.written_at_s = 0.0
        self.equivalent_writes = 0
        self.failure_written_at_s: float | None = None

    def entry(self, key: str) -> Entry:
        """What waits, for the key of the pair's sample."""
        # Until a sample is written, the ConfigMap may have a failure from before the agent's start.
        may_have_failure = self.failure_written_at_s is not None or self.written is None
        is_over = self.failure_is_over or (self.sample is not None and may_have_failure)
        return Entry(key, self.test, self.sample, self.failure, removes_failure=self.failure is None and is_over)


class ResultsQueue:
    """The newest entry of each pair and test that waits to be written.

    Attributes:
        due: set when `entries` returns some.
    """

    def __init__(self) -> None:
        self.due = asyncio.Event()
        self._pairs: dict[str, _Pair] = {}
        self._interval_s = 0.0

    def set_pairs(self, keys: Collection[str], interval_s: float) -> None:
        """Forget all pairs but these, given by the keys of their samples, and set the length of a round."""
        self._pairs = {key: pair for key, pair in self._pairs.items() if key in keys}
        self._interval_s = interval_s
        self._wake()

    @property
    def keys(self) -> KeysView[str]:
        """Keys of the pairs that have had an entry."""
        return self._pairs.keys()

    def forget_written(self) -> None:
        """Forget what was written, because the next object may be empty."""
        for pair in self._pairs.values():
            pair.written = None

    def add(self, sample: Sample) -> None:
        """Queue a sample; it is written soon unless it is equivalent to the written one."""
        pair = self._pair_of(sample.origin, sample.destination, sample.measurement.test)
        pair.failure, written = None, pair.written
        pair.is_urgent = (
            pair.is_urgent
            or pair.failure_written_at_s is not None
            or written is None
            or self._now_s() - pair.written_at_s >= refresh_interval_s(self._interval_s)
            or pair.equivalent_writes < MIN_EQUIVALENT_WRITES
            or not is_equivalent(sample, written)
        )
        pair.sample = sample
        self._wake()

    def add_failure(self, failure: Failure, test: Test) -> None:
        """Queue a failure; repeated ones are written as rarely as equivalent samples."""
        pair = self._pair_of(failure.origin, failure.destination, test)
        age_s = self._now_s() - pair.failure_written_at_s if pair.failure_written_at_s is not None else float("inf")
        if failure.failures_in_a_row <= MAX_URGENT_FAILURES or age_s >= refresh_interval_s(self._interval_s):
            pair.sample, pair.is_urgent, pair.failure, pair.failure_is_over = None, False, failure, False
            self._wake()

    def clear_failure(self, origin: NodeLocation, destination: NodeLocation, test: Test) -> None:
        """Queue the removal of the failure, because the peer answered again."""
        pair = self._pair_of(origin, destination, test)
        if pair.failure is not None or pair.failure_written_at_s is not None:
            pair.failure, pair.failure_is_over = None, True
            self._wake()

    def entries(self) -> list[Entry]:
        """All entries if one of them should be written now; empty otherwise."""
        if not self._is_due():
            return []
        entries = [pair.entry(key) for key, pair in self._pairs.items()]
        return [entry for entry in entries if entry.sample or entry.failure or entry.removes_failure]

    def mark_written(self, entries: Collection[Entry]) -> None:
        """Record entries as written."""
        now_s = self._now_s()
        for entry in entries:
            pair = self._pairs.get(entry.key)
            if pair is None:
                continue
            if entry.failure is not None:
                pair.failure_written_at_s = now_s
                pair.failure = None if pair.failure is entry.failure else pair.failure
                continue
            pair.failure_written_at_s, pair.failure_is_over = None, False
            if entry.sample is not None:
                is_repeated = pair.written is not None and is_equivalent(entry.sample, pair.written)
                pair.equivalent_writes = pair.equivalent_writes + 1 if is_repeated else 1
                pair.written, pair.written_at_s = entry.sample, now_s
                if pair.sample is entry.sample:
                    pair.sample, pair.is_urgent = None, False

    def _pair_of(self, origin: NodeLocation, destination: NodeLocation, test: Test) -> _Pair:
        return self._pairs.setdefault(sample_key(origin, destination, test), _Pair(test))

    def _is_due(self) -> bool:
        return any(pair.is_urgent or pair.failure or pair.failure_is_over for pair in self._pairs.values())

    def _wake(self) -> None:
        if self._is_due():
            self.due.set()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
