"""Hands samples on: a JSON merge patch of our own keys in the results ConfigMap, at most one a round.

While the API server is away the newest sample of each pair waits here. Values that say the same as those already written
are held back for some rounds, since every write costs every watcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from kubekit import logs
from kubekit.backoff import Backoff
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import CONFIGMAPS, Object
from netperf.results import encode_samples, merge_patch, sample_key
from netperf.sample import Percentile, Sample

log = logs.get("agent.probing")

GATHER_S = 2.0
"""Samples that come within this time go in one write."""
REFRESH_S = 240.0
"""A value that does not change is written again after this; the controller calls it stale after 300 s (cost policy)."""
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
        upstream: percentiles to write in upstream's format too.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        upstream: Sequence[Percentile] = (),
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._client, self._namespace, self._upstream = client, namespace, upstream
        self._pending: dict[str, Sample] = {}
        self._written: dict[str, tuple[Sample, float]] = {}
        self._name: str | None = None
        self._due = asyncio.Event()
        self._writes = Counter(
            "netaware_probe_results_writes", "Writes of results, by outcome.", ["outcome"], registry=registry
        )

    def aim(self, name: str | None) -> None:
        """Write into this ConfigMap from now on; None holds everything back."""
        if name != self._name:
            self._written.clear()
        self._name = name
        if self._pending:
            self._due.set()

    def keep(self, keys: set[str]) -> None:
        """Forget everything about other pairs: they are not ours any more."""
        self._pending = {key: value for key, value in self._pending.items() if key in keys}
        self._written = {key: value for key, value in self._written.items() if key in keys}

    def take(self, sample: Sample) -> None:
        """Write this sample soon, unless it says nothing new."""
        key = sample_key(sample.origin, sample.destination, sample.measurement.test)
        known = self._written.get(key)
        if key not in self._pending and known is not None:
            before, at = known
            if says_the_same(sample, before) and asyncio.get_running_loop().time() - at < REFRESH_S:
                return
        self._pending[key] = sample
        self._due.set()

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff()
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S)
            self._due.clear()
            batch, name = dict(self._pending), self._name
            if not batch or name is None:
                continue
            try:
                await self._write(name, encode_samples(list(batch.values()), upstream=self._upstream))
            except KubekitError as error:
                self._writes.labels("failed").inc()
                log.change("results", str(getattr(error, "status", "")), "results not written", name=name, error=error)
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
            if self._pending.get(key) is sample:
                del self._pending[key]

    async def _write(self, name: str, data: dict[str, str | None]) -> None:
        try:
            await self._client.patch(
                CONFIGMAPS, name, merge_patch(data), Object, kind=MERGE_PATCH, namespace=self._namespace
            )
        except ApiError as error:
            if not error.not_found:
                raise
            await self._create(name, data)

    async def _create(self, name: str, data: dict[str, str | None]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "netaware"}},
            "data": {key: value for key, value in data.items() if value is not None},
        }
        try:
            await self._client.create(CONFIGMAPS, body, Object, namespace=self._namespace)
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._client.patch(
                CONFIGMAPS, name, merge_patch(data), Object, kind=MERGE_PATCH, namespace=self._namespace
            )
