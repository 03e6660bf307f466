"""Hands samples on: a JSON merge patch of our own keys in the results ConfigMap, at most one a round.

While the API server is away the newest sample of each pair waits here. Values that say the same as those already written
are held back for some rounds, since every write costs every watcher; the newest of them go along with the next write. Waits are jittered, because agents whose probes share a
slot end at the same moment. A key that would bring the object near the API server's limit is not added, and that is said.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Counter

from agent.probing.plan_source import PlanSource
from kubekit import logs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.waiting import Backoff
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.contract import PART_OF
from netperf.errors import TooLargeError
from netperf.results import (
    FAILED_SUFFIX,
    check_growth,
    encode_failure,
    encode_samples,
    keys_of,
    last_sequence,
    merge_patch,
    refresh_s,
    sample_key,
)
from netperf.sample import Failure, Percentile, Place, Sample, Test

log = logs.get("agent.probing")

GATHER_S = 2.0
"""Samples that come within this time, more or less by half at random, go in one write."""
REFUSED_S = 300.0
"""So long after the last refusal it is told, since a node that is not ready has nothing to write."""
FAILURES_TOLD = 4
"""Failures in a row that are told one by one."""
TOLD_TWICE = 2
"""A change counts when a second run says it, so a value is held back only once it was written twice."""
SAME_RATIO = 0.03
SAME_US = 30.0
TAIL_RATIO = 0.25
LOSS_FLOOR = 0.005


def says_the_same(new: Sample, old: Sample) -> bool:
    """Whether a reader would draw the same conclusions: same doubts and instrument, and nothing that prices moved by more than
    3 % or 30 us; the tail, which moves with every run, by no more than a quarter.
    """
    if (new.doubts, new.prices, new.priced.prober) != (old.doubts, old.prices, old.priced.prober):
        return False
    after, before = new.priced, old.priced
    return (
        _near(after.p50_us, before.p50_us, SAME_US, SAME_RATIO)
        and _near(after.p90_us, before.p90_us, SAME_US, SAME_RATIO)
        and _near(after.p99_us, before.p99_us, 5 * SAME_US, TAIL_RATIO)
        and _near(after.throughput_bps, before.throughput_bps, 0.0, SAME_RATIO)
        and _near(after.loss_ratio, before.loss_ratio, LOSS_FLOOR, SAME_RATIO)
    )


def _near(after: float | None, before: float | None, floor: float, ratio: float) -> bool:
    if after is None or before is None:
        return after is before
    return abs(after - before) <= max(floor, ratio * before)


class _Written(NamedTuple):
    """A sample in the object, when it was written (loop's clock), and how often something that says the same was."""

    sample: Sample
    at_s: float
    times: int


class ResultsWriter:
    """Writes the samples of one node.

    Args:
        client: the cluster's.
        namespace: of the ConfigMap.
        plans: the plan says which ConfigMap, and whose samples.
        upstream: percentiles to write in upstream's format too, of the plan's usual test only.
        rng: source of the jitter.
        wall_clock: seconds since 1970; it bounds the sequences that are counted on from.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        plans: PlanSource,
        *,
        upstream: Sequence[Percentile] = (),
        registry: CollectorRegistry | None = None,
        rng: random.Random | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._namespace, self._upstream = client, namespace, upstream
        self._wall_clock = wall_clock
        self._rng = rng or random.Random()
        self._test: Test = "TCP_RR"
        self._there: Mapping[str, str] | None = None
        self._pending: dict[str, Sample] = {}
        self._held: dict[str, Sample] = {}
        self._written: dict[str, _Written] = {}
        self._failures: dict[str, tuple[Failure, Test]] = {}
        self._failed_at_s: dict[str, float] = {}
        self._over: set[str] = set()
        self._lift, self._caught_up = 0, False
        self._beyond: set[str] = set()
        self._interval_s = 0.0
        self._name: str | None = None
        self._refused: tuple[str, float] | None = None
        self._due = asyncio.Event()
        self._plans = plans
        plans.subscribe(self._follow_plan)
        self._writes = Counter(
            "netaware_probe_results_writes", "Writes of results, by outcome.", ["outcome"], registry=registry
        )

    @property
    def problem(self) -> str:
        """Why the API server refuses this node's results, for /readyz; empty while it does not."""
        if self._refused is None or asyncio.get_running_loop().time() - self._refused[1] > REFUSED_S:
            return ""
        return f"results are refused: {self._refused[0]}"

    def _follow_plan(self) -> None:
        """Write where the plan says, nothing without one, and forget pairs that are not ours any more."""
        plan = self._plans.plan
        name = plan.results if plan is not None else None
        if name != self._name:
            self._written.clear()
            self._there, self._caught_up = None, False
            self._beyond.clear()
        self._name = name
        if plan is not None:
            self._test, self._interval_s = plan.settings.test, plan.interval_s
        own = self._plans.own_probes
        keys = {key for probe in own for key in keys_of(plan, probe)} if plan is not None else set()
        self._pending = {key: value for key, value in self._pending.items() if key in keys}
        self._held = {key: value for key, value in self._held.items() if key in keys}
        self._written = {key: value for key, value in self._written.items() if key in keys}
        self._failures = {key: value for key, value in self._failures.items() if key in keys}
        self._over &= keys
        self._failed_at_s = {key: value for key, value in self._failed_at_s.items() if key in keys}
        if self._pending:
            self._due.set()

    def add(self, sample: Sample) -> None:
        """Write this sample soon, unless it says nothing new."""
        key = sample_key(sample.origin, sample.destination, sample.measurement.test)
        known = self._written.get(key)
        self._failures.pop(key, None)
        if key not in self._pending and known is not None and key not in self._failed_at_s:
            fresh = asyncio.get_running_loop().time() - known.at_s < self._refresh_s
            if known.times >= TOLD_TWICE and fresh and says_the_same(sample, known.sample):
                self._held[key] = sample
                return
        self._held.pop(key, None)
        self._pending[key] = sample
        self._due.set()

    def add_failure(self, failure: Failure, test: Test) -> None:
        """Write soon that a pair could not be measured; when it stays so, as often as a value that does not change."""
        key = sample_key(failure.origin, failure.destination, test)
        now = asyncio.get_running_loop().time()
        if failure.in_a_row > FAILURES_TOLD and now - self._failed_at_s.get(key, -self._refresh_s) < self._refresh_s:
            return
        for waiting in (self._pending, self._held):
            waiting.pop(key, None)
        self._failures[key] = failure, test
        self._due.set()

    def clear_failure(self, origin: Place, destination: Place, test: Test) -> None:
        """The peer was heard again, though there is no sample yet: remove what was written of failures."""
        key = sample_key(origin, destination, test)
        if self._failures.pop(key, None) is not None or key in self._failed_at_s:
            self._over.add(key)
            self._due.set()

    @property
    def _refresh_s(self) -> float:
        return refresh_s(self._interval_s)

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff(rng=self._rng)
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S * self._rng.uniform(0.5, 1.5))
            self._due.clear()
            batch, failures, name = self._held | self._pending, dict(self._failures), self._name
            over = self._over - failures.keys()
            if not (self._pending or failures or over) or name is None:
                continue
            try:
                self._there = await self._write(name, batch, failures, over)
            except KubekitError as error:
                self._there = None
                if isinstance(error, ApiError) and error.forbidden:
                    self._refused = str(error), asyncio.get_running_loop().time()
                reason = "too-large" if isinstance(error, TooLargeError) else "failed"
                self._writes.labels(reason).inc()
                state = f"{reason}/{getattr(error, 'status', '')}"
                log.change("results", state, "results not written", name=name, error=error)
                await asyncio.sleep(backoff.next())
                self._due.set()
                continue
            backoff.reset()
            self._refused = None
            self._caught_up = self._caught_up or bool(batch or failures)
            self._beyond.clear()
            self._writes.labels("ok").inc()
            log.change("results", "", "results are written again", name=name)
            self._over -= over
            for key in over:
                self._failed_at_s.pop(key, None)
            self._settle(batch, failures)

    def _perhaps_failed(self, keys: Collection[str]) -> set[str]:
        """Pairs that succeed now and whose failure is in the object, or may be there since before we started."""
        return {key for key in keys if key in self._failed_at_s or key not in self._written}

    def _settle(self, batch: dict[str, Sample], failures: dict[str, tuple[Failure, Test]]) -> None:
        now = asyncio.get_running_loop().time()
        for key, told in failures.items():
            self._failed_at_s[key] = now
            if self._failures.get(key) is told:
                del self._failures[key]
        for key, sample in batch.items():
            before = self._written.get(key)
            again = before is not None and says_the_same(sample, before.sample)
            self._written[key] = _Written(sample, now, before.times + 1 if again and before is not None else 1)
            if key not in failures:
                self._failed_at_s.pop(key, None)
            for waiting in (self._pending, self._held):
                if waiting.get(key) is sample:
                    del waiting[key]

    def _data(
        self, batch: Mapping[str, Sample], failures: Mapping[str, tuple[Failure, Test]], over: set[str]
    ) -> dict[str, str | None]:
        lifted = [msgspec.structs.replace(s, sequence=s.sequence + self._lift) for s in batch.values()]
        data: dict[str, str | None] = dict.fromkeys(self._beyond)
        data |= self._encode(lifted) | {key + FAILED_SUFFIX: None for key in over | self._perhaps_failed(batch)}
        for failure, test in failures.values():
            data |= encode_failure(msgspec.structs.replace(failure, sequence=failure.sequence + self._lift), test)
        return data

    def _catch_up(self, batch: Mapping[str, Sample], failures: Mapping[str, tuple[Failure, Test]]) -> None:
        """Sequences begin with the clock: if that went back, what is told now would pass for older than what an earlier life told."""
        words: list[Sample | Failure] = [*batch.values(), *(failure for failure, _ in failures.values())]
        if words and self._there and not self._caught_up:
            first = min(word.sequence for word in words)
            last, self._beyond = last_sequence(self._there, words[0].origin.node, self._wall_clock())
            self._lift = max(self._lift, last + 1 - first)

    def _encode(self, samples: Collection[Sample]) -> dict[str, str | None]:
        """Upstream's format has no room for a test, so only the usual one is written in it."""
        usual = [s for s in samples if s.measurement.test == self._test]
        others = [s for s in samples if s.measurement.test != self._test]
        return encode_samples(usual, upstream=self._upstream) | encode_samples(others)

    async def _write(
        self, name: str, batch: Mapping[str, Sample], failures: Mapping[str, tuple[Failure, Test]], over: set[str]
    ) -> Mapping[str, str]:
        """Patch; what the object holds afterwards.

        The controller makes the object before it sends a plan that names it. One of the version before does not, and its
        rights let agents do it.
        """
        try:
            if self._there is None:
                found = await self._client.get(CONFIGMAPS, name, ConfigMap, namespace=self._namespace)
                self._there = found.data or {}
                self._catch_up(batch, failures)
            data = self._data(batch, failures, over)
            check_growth(name, self._there, data)
            return await self._patch(name, data)
        except ApiError as error:
            if not error.not_found:
                raise
            return await self._create(name, self._data(batch, failures, over))

    async def _patch(self, name: str, data: dict[str, str | None]) -> Mapping[str, str]:
        after = await self._client.patch(
            CONFIGMAPS, name, merge_patch(data), ConfigMap, kind=MERGE_PATCH, namespace=self._namespace
        )
        return after.data or {}

    async def _create(self, name: str, data: dict[str, str | None]) -> Mapping[str, str]:
        body = {
            **CONFIGMAPS.type_meta,
            "metadata": {"name": name, "labels": PART_OF},
            "data": {key: value for key, value in data.items() if value is not None},
        }
        try:
            created = await self._client.create(CONFIGMAPS, body, ConfigMap, namespace=self._namespace)
        except ApiError as error:
            if not error.already_exists:
                raise
            return await self._patch(name, data)
        return created.data or {}
