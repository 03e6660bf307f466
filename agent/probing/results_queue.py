"""Chooses which samples and failures of this node to write, and when.

Every write costs every watcher, so a sample equivalent to the written one waits until that would be stale or another entry is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, KeysView
from copy import copy

import msgspec

from netperf.measurement import Test
from netperf.results import refresh_interval_s, sample_key
from netperf.sample import Failure, NodeLocation, Sample

MAX_URGENT_FAILURES = 4
"""Number of failures in a row that are written at once; further ones only refresh the written one before it becomes stale."""
MIN_EQUIVALENT_WRITES = 2
"""Number of equivalent samples that are written at once, because readers accept a change only when a second run confirms it."""
MAX_DIFFERENCE_RATIO, MAX_DIFFERENCE_US = 0.03, 30.0
"""Equivalent samples differ by at most the larger of this share and this time, in p50 and p90."""
MAX_TAIL_DIFFERENCE_RATIO, MAX_TAIL_DIFFERENCE_US = 0.25, 150.0
"""The same for the p99, which varies more."""
MAX_LOSS_DIFFERENCE = 0.005  # of the shares of lost packets


def is_equivalent(new: Sample, old: Sample) -> bool:
    """Whether two samples mean the same to a reader: equal flags, cost source, run failure, prober, and close values."""
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


class PairResult(msgspec.Struct):
    """The result of one pair and test that waits to be written (a sample, a failure, or the end of a failure), and the written one.

    Attributes:
        key: of the pair's sample in the ConfigMap.
        test: the test that was run.
        sample, failure: waiting to be written; None if there is none.
        is_urgent: the sample must be written soon.
        is_failure_over: the peer answered again, so the failure's key must be removed.
        written_sample, written_at_s: the latest written sample, and when it was written.
        equivalent_writes: number of equivalent samples that were written in a row, the latest included.
        failure_written_at_s: when the failure in the ConfigMap was written; None if there is no failure.
    """

    key: str
    test: Test
    sample: Sample | None = None
    failure: Failure | None = None
    is_urgent: bool = False
    is_failure_over: bool = False
    written_sample: Sample | None = None
    written_at_s: float = 0.0
    equivalent_writes: int = 0
    failure_written_at_s: float | None = None

    @property
    def removes_failure(self) -> bool:
        """Whether the key of the pair's failure must be removed."""
        # Until a sample is written, the ConfigMap may have a failure from before the agent's start.
        may_have_failure = self.failure_written_at_s is not None or self.written_sample is None
        return self.failure is None and (self.is_failure_over or (self.sample is not None and may_have_failure))


class ResultsQueue:
    """The newest result of each pair and test that waits to be written.

    Attributes:
        results_due: set when `select_pending` may return results; the writer clears it.
    """

    def __init__(self) -> None:
        self.results_due = asyncio.Event()
        self._result_by_key: dict[str, PairResult] = {}
        self._interval_s = 0.0

    def set_pairs(self, keys: Collection[str], interval_s: float) -> None:
        """Forget all pairs but those with these sample keys, and set the length of a round."""
        self._result_by_key = {key: result for key, result in self._result_by_key.items() if key in keys}
        self._interval_s = interval_s
        self._signal_if_due()

    @property
    def keys(self) -> KeysView[str]:
        """Sample keys of the pairs in the plan that have had a result."""
        return self._result_by_key.keys()

    def forget_written(self) -> None:
        """Forget the written samples and failures, because the next object may be empty."""
        for result in self._result_by_key.values():
            result.written_sample = result.failure_written_at_s = None

    def add_sample(self, sample: Sample) -> None:
        """Queue a sample, to be written soon unless it is equivalent to the written one."""
        result = self._result_of(sample.origin, sample.destination, sample.measurement.test)
        written_sample = result.written_sample
        result.is_urgent = (
            result.is_urgent
            or result.failure_written_at_s is not None
            or written_sample is None
            or self._now_s() - result.written_at_s >= refresh_interval_s(self._interval_s)
            or result.equivalent_writes < MIN_EQUIVALENT_WRITES
            or not is_equivalent(sample, written_sample)
        )
        result.sample, result.failure = sample, None
        self._signal_if_due()

    def add_failure(self, failure: Failure, test: Test) -> None:
        """Queue a failure in place of a waiting sample; ignore it after `MAX_URGENT_FAILURES` in a row while the written one is fresh."""
        result = self._result_of(failure.origin, failure.destination, test)
        age_s = self._now_s() - result.failure_written_at_s if result.failure_written_at_s is not None else float("inf")
        if failure.failures_in_a_row <= MAX_URGENT_FAILURES or age_s >= refresh_interval_s(self._interval_s):
            result.sample, result.is_urgent, result.failure, result.is_failure_over = None, False, failure, False
            self._signal_if_due()

    def clear_failure(self, origin: NodeLocation, destination: NodeLocation, test: Test) -> None:
        """Queue the removal of the failure, because the peer answered again."""
        result = self._result_of(origin, destination, test)
        if result.failure is not None or result.failure_written_at_s is not None:
            result.failure, result.is_failure_over = None, True
            self._signal_if_due()

    def select_pending(self) -> list[PairResult]:
        """Copy all pending results if one of them must be written now, else none."""
        if not self._is_due():
            return []
        # Copies, because results are added while these are written.
        return [
            copy(result)
            for result in self._result_by_key.values()
            if result.sample or result.failure or result.removes_failure
        ]

    def mark_written(self, results: Collection[PairResult]) -> None:
        """Record results of `select_pending` as written."""
        now_s = self._now_s()
        for written in results:
            result = self._result_by_key.get(written.key)
            if result is None:
                continue
            if written.failure is not None:
                result.failure_written_at_s = now_s
                result.failure = None if result.failure is written.failure else result.failure
                continue
            result.failure_written_at_s, result.is_failure_over = None, False
            if written.sample is not None:
                is_repeated = result.written_sample is not None and is_equivalent(written.sample, result.written_sample)
                result.equivalent_writes = result.equivalent_writes + 1 if is_repeated else 1
                result.written_sample, result.written_at_s = written.sample, now_s
                if result.sample is written.sample:
                    result.sample, result.is_urgent = None, False

    def _result_of(self, origin: NodeLocation, destination: NodeLocation, test: Test) -> PairResult:
        key = sample_key(origin, destination, test)
        return self._result_by_key.setdefault(key, PairResult(key, test))

    def _is_due(self) -> bool:
        return any(
            result.is_urgent or result.failure or result.is_failure_over for result in self._result_by_key.values()
        )

    def _signal_if_due(self) -> None:
        if self._is_due():
            self.results_due.set()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
