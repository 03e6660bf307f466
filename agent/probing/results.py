"""Hands samples on: a JSON merge patch of our own keys in the results ConfigMap, at most one a round.

While the API server is away the newest sample of each pair waits here. Values that say the same as those already written
are held back for some rounds, since every write costs every watcher; the newest of them go along with the next write. Waits are jittered, because agents whose probes share a
slot end at the same moment. A key that would bring the object near the API server's limit is not added, and that is said.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter

from kubekit import logs
from kubekit.backoff import Backoff
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.errors import TooLargeError
from netperf.results import check_growth, encode_samples, merge_patch, sample_key
from netperf.sample import Percentile, Sample, Test

log = logs.get("agent.probing")

GATHER_S = 2.0
"""Samples that come within this time, more or less by half at random, go in one write."""
REFRESH_S = 170.0
"""A value that does not change is written again in the first round after this. The controller calls it stale after the longer of
300 s and three rounds (cost policy), and this plus a round stays below that, whatever the round."""
SAME_RATIO = 0.05
SAME_US = 50.0


def says_the_same(new: Sample, old: Sample) -> bool:
    """Whether a reader would draw the same conclusions: same doubts, and no number moved by more than 5 % or 50 us."""
    if new.doubts != old.doubts or new.measurement.prober != old.measurement.prober:
        return False
    after, before = new.measurement, old.measurement
    numbers = [
        (after.p50_us, before.p50_us, SAME_US),
        (after.p90_us, before.p90_us, SAME_US),
        (after.p99_us, before.p99_us, 2 * SAME_US),
        (after.throughput_bps, before.throughput_bps, 0.0),
        (after.loss_ratio, before.loss_ratio, 0.0),
    ]
    return all(_near(a, b, floor) for a, b, floor in numbers)


def _near(after: float | None, before: float | None, floor: float) -> bool:
    if after is None or before is None:
        return after is before
    return abs(after - before) <= max(floor, SAME_RATIO * before)


class ResultsWriter:
    """Writes the samples of one node.

    Args:
        client: the cluster's.
        namespace: of the ConfigMap.
        upstream: percentiles to write in upstream's format too, of the plan's usual test only.
        rng: source of the jitter.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        upstream: Sequence[Percentile] = (),
        registry: CollectorRegistry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client, self._namespace, self._upstream = client, namespace, upstream
        self._rng = rng or random.Random()
        self._test: Test = "TCP_RR"
        self._there: Mapping[str, str] | None = None
        self._pending: dict[str, Sample] = {}
        self._held: dict[str, Sample] = {}
        self._written: dict[str, tuple[Sample, float]] = {}
        self._name: str | None = None
        self._due = asyncio.Event()
        self._writes = Counter(
            "netaware_probe_results_writes", "Writes of results, by outcome.", ["outcome"], registry=registry
        )

    def aim(self, name: str | None, test: Test = "TCP_RR") -> None:
        """Write into this ConfigMap from now on; None holds everything back. ``test`` is the plan's usual one."""
        if name != self._name:
            self._written.clear()
            self._there = None
        self._name, self._test = name, test
        if self._pending:
            self._due.set()

    def keep(self, keys: set[str]) -> None:
        """Forget everything about other pairs: they are not ours any more."""
        self._pending = {key: value for key, value in self._pending.items() if key in keys}
        self._held = {key: value for key, value in self._held.items() if key in keys}
        self._written = {key: value for key, value in self._written.items() if key in keys}

    def take(self, sample: Sample) -> None:
        """Write this sample soon, unless it says nothing new."""
        key = sample_key(sample.origin, sample.destination, sample.measurement.test)
        known = self._written.get(key)
        if key not in self._pending and known is not None:
            before, at = known
            if says_the_same(sample, before) and asyncio.get_running_loop().time() - at < REFRESH_S:
                self._held[key] = sample
                return
        self._held.pop(key, None)
        self._pending[key] = sample
        self._due.set()

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff(rng=self._rng)
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S * self._rng.uniform(0.5, 1.5))
            self._due.clear()
            batch, name = self._held | self._pending, self._name
            if not self._pending or name is None:
                continue
            try:
                self._there = await self._write(name, self._encode(batch.values()))
            except KubekitError as error:
                self._there = None
                reason = "too-large" if isinstance(error, TooLargeError) else "failed"
                self._writes.labels(reason).inc()
                state = f"{reason}/{getattr(error, 'status', '')}"
                log.change("results", state, "results not written", name=name, error=error)
                await asyncio.sleep(backoff.next())
                self._due.set()
                continue
            backoff.reset()
            self._writes.labels("ok").inc()
            log.change("results", "", "results are written again", name=name)
            self._settle(batch)

    def _settle(self, batch: dict[str, Sample]) -> None:
        now = asyncio.get_running_loop().time()
        for key, sample in batch.items():
            self._written[key] = (sample, now)
            for waiting in (self._pending, self._held):
                if waiting.get(key) is sample:
                    del waiting[key]

    def _encode(self, samples: Collection[Sample]) -> dict[str, str | None]:
        """Upstream's format has no room for a test, so only the usual one is written in it."""
        usual = [s for s in samples if s.measurement.test == self._test]
        others = [s for s in samples if s.measurement.test != self._test]
        return encode_samples(usual, upstream=self._upstream) | encode_samples(others)

    async def _write(self, name: str, data: dict[str, str | None]) -> Mapping[str, str]:
        """Patch, or create; what the object holds afterwards."""
        try:
            if self._there is None:
                found = await self._client.get(CONFIGMAPS, name, ConfigMap, namespace=self._namespace)
                self._there = found.data or {}
            check_growth(name, self._there, data)
            return await self._patch(name, data)
        except ApiError as error:
            if not error.not_found:
                raise
            return await self._create(name, data)

    async def _patch(self, name: str, data: dict[str, str | None]) -> Mapping[str, str]:
        after = await self._client.patch(
            CONFIGMAPS, name, merge_patch(data), ConfigMap, kind=MERGE_PATCH, namespace=self._namespace
        )
        return after.data or {}

    async def _create(self, name: str, data: dict[str, str | None]) -> Mapping[str, str]:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "netaware"}},
            "data": {key: value for key, value in data.items() if value is not None},
        }
        try:
            created = await self._client.create(CONFIGMAPS, body, ConfigMap, namespace=self._namespace)
        except ApiError as error:
            if not error.already_exists:
                raise
            return await self._patch(name, data)
        return created.data or {}
