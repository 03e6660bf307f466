"""Writes this node's results: JSON merge patches of its own keys in the results ConfigMap.

Samples that arrive within `GATHER_S` share one patch; that time is jittered, because the probes of a slot end together. While the API
server does not answer, the newest result of each pair waits in the queue. If the API server refuses a patch, its halves are tried, to
isolate the invalid key. Keys that would bring the object near the API server's size limit are not added, but reported.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Counter

from agent.config import AgentConfig
from agent.probing.plan_source import PlanSource
from agent.probing.results_queue import PairResult, ResultsQueue
from kubekit import logs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.waiting import Backoff
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.configmap_size import ConfigMapTooLargeError
from netperf.results import (
    FAILED_SUFFIX,
    check_growth,
    encode_failure,
    encode_samples,
    find_last_sequence,
    list_sample_keys,
)

log = logs.get("agent.probing")

GATHER_S = 2.0
"""Samples within this time (jittered by half of it) are written together."""
REFUSAL_SHOWN_S = 300.0
"""Time for which a refusal is reported. A node that is not ready gets no probes, so no write would clear the refusal."""
RETRY_REFUSED_S = 45.0
"""Delay after which refused keys are tried again."""
MAX_REFUSED_KEYS = 4
"""Maximum number of refused keys in `ResultsWriter._write_all`; if more are refused, the cause is not a single key, and it gives up."""
_REFUSAL_STATUSES = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY})


class _Refusal(NamedTuple):
    """The API server's reason for refusing a key, and when it last did."""

    reason: str
    at_s: float


class ResultsWriter:
    """Writes the pending results of a queue to the ConfigMap that the plan names.

    Args:
        rng: source of the jitter.
        wall_clock: seconds since the epoch. Sequences later than this clock are not continued.
    """

    def __init__(
        self,
        client: Client,
        config: AgentConfig,
        plan_source: PlanSource,
        queue: ResultsQueue,
        registry: CollectorRegistry,
        *,
        rng: random.Random | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._config, self._plan_source, self._queue = client, config, plan_source, queue
        self._rng, self._wall_clock = rng or random.Random(), wall_clock
        self._target = _Target("")
        self._refusal_by_key: dict[str, _Refusal] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._writes = Counter(
            "netaware_probe_results_writes",
            "Writes of results, by outcome: ok, too-large, refused, failed.",
            ["outcome"],
            registry=registry,
        )

    @property
    def refusal_summary(self) -> str:
        """The number of results that the API server refuses, and one with its reason; empty if there are none."""
        shown_since_s = asyncio.get_running_loop().time() - REFUSAL_SHOWN_S
        reasons = {key: refusal.reason for key, refusal in self._refusal_by_key.items() if refusal.at_s > shown_since_s}
        if not reasons:
            return ""
        key, reason = next(iter(reasons.items()))
        return f"{len(reasons)} results are refused, {key}: {reason}"

    @property
    def readiness_error(self) -> str:
        """The `refusal_summary` if every result is refused, for /readyz; else empty."""
        return self.refusal_summary if self._refusal_by_key.keys() >= self._queue.keys else ""

    def apply_plan(self) -> None:
        """Write to the plan's ConfigMap (nothing without a plan), and forget pairs that left the plan."""
        plan = self._plan_source.plan
        name = plan.results_name if plan is not None else ""
        if name != self._target.name:
            self._target = _Target(name)
            self._queue.forget_written()
        probes = self._plan_source.own_probes
        keys = {key for probe in probes for key in list_sample_keys(plan, probe)} if plan is not None else set()
        # Keep refusals while the plan has no pair of this node, because the planner leaves the node out for these refusals.
        if keys:
            self._refusal_by_key = {key: refusal for key, refusal in self._refusal_by_key.items() if key in keys}
        self._queue.set_pairs(keys, plan.interval_s if plan is not None else 0.0)

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff(rng=self._rng)
        while True:
            await self._queue.results_due.wait()
            await asyncio.sleep(GATHER_S * self._rng.uniform(0.5, 1.5))
            self._queue.results_due.clear()
            results, target = self._queue.select_pending(), self._target
            if not results or not target.name:
                continue
            try:
                await self._write_all(target, results)
            except KubekitError as error:
                target.data = None
                is_refused = isinstance(error, ApiError) and error.status in _REFUSAL_STATUSES
                outcome = "refused" if is_refused else "failed"
                self._writes.labels(outcome).inc()
                state = f"{outcome}/{getattr(error, 'status', '')}"
                log.log_change("results", state, "results not written", name=target.name, error=error)
                await asyncio.sleep(RETRY_REFUSED_S if is_refused else backoff.next_delay_s())
                self._queue.results_due.set()
                continue
            backoff.reset()
            log.log_change("results", "", "results are written again", name=target.name)

    async def _write_all(self, target: _Target, results: list[PairResult]) -> None:
        """Write all results; keys that were refused before are written one by one.

        Raises:
            KubekitError: the API server did not answer, refused more than `MAX_REFUSED_KEYS`, or failed otherwise.
        """
        batches = deque([[result for result in results if result.key not in self._refusal_by_key]])
        batches.extend([result] for result in results if result.key in self._refusal_by_key)
        refused_count, is_too_large = 0, False
        while batches:
            batch = batches.popleft()
            try:
                await self._write(target, batch)
            except ApiError as error:
                if error.status not in _REFUSAL_STATUSES:
                    raise
                if len(batch) > 1:
                    middle = len(batch) // 2
                    batches.extendleft([batch[middle:], batch[:middle]])
                    continue
                refused_count += 1
                self._record_refusal(batch[0], error)
                if refused_count > MAX_REFUSED_KEYS:
                    raise
            except ConfigMapTooLargeError as error:
                is_too_large = True
                without_new_keys = [result for result in batch if not self._adds_keys(target, result)]
                for result in batch:
                    if result not in without_new_keys:
                        self._record_refusal(result, error)
                batches.appendleft(without_new_keys)
        self._report_refusals(target, has_refused=refused_count > 0, is_too_large=is_too_large)

    def _record_refusal(self, result: PairResult, error: KubekitError) -> None:
        self._refusal_by_key[result.key] = _Refusal(str(error), asyncio.get_running_loop().time())

    def _report_refusals(self, target: _Target, *, has_refused: bool, is_too_large: bool) -> None:
        """Log and count the refusals of one `_write_all`, and retry later."""
        message = "some results are refused" if self._refusal_by_key else "no result is refused any more"
        log.log_change("results/refused", ",".join(sorted(self._refusal_by_key)), message, why=self.refusal_summary)
        if has_refused:
            self._writes.labels("refused").inc()
        if is_too_large:
            self._writes.labels("too-large").inc()
            target.data = None  # Other writers may free space, so the next write reads the object again.
        if has_refused or is_too_large:
            if self._retry_timer is not None:
                self._retry_timer.cancel()
            self._retry_timer = asyncio.get_running_loop().call_later(RETRY_REFUSED_S, self._queue.results_due.set)

    async def _write(self, target: _Target, results: Sequence[PairResult]) -> None:
        """Patch the object, which the controller creates before the plan that names it."""
        if not results:
            return
        if target.data is None:
            config_map = await self._client.get(CONFIGMAPS, target.name, ConfigMap, namespace=self._config.namespace)
            target.data = config_map.data or {}
            target.continue_sequences(results, self._wall_clock())
        data = self._encode(target, results)
        try:
            check_growth(target.name, target.data, data)
        except ConfigMapTooLargeError:
            # New keys of upstream's format are dropped first.
            own_keys = tuple(result.key for result in results)
            data = {key: value for key, value in data.items() if key in target.data or key.startswith(own_keys)}
            check_growth(target.name, target.data, data)
        patch = {"data": data}
        config_map = await self._client.patch(
            CONFIGMAPS, target.name, patch, ConfigMap, patch_type=MERGE_PATCH, namespace=self._config.namespace
        )
        target.data, target.has_our_sequences = config_map.data or {}, True
        if target is self._target:  # else the plan names another object by now
            self._queue.mark_written(results)
        for result in results:
            self._refusal_by_key.pop(result.key, None)
        self._writes.labels("ok").inc()

    def _adds_keys(self, target: _Target, result: PairResult) -> bool:
        """Whether a result adds keys of our format, which begin with the result's key; those of upstream's format do not."""
        encoded = self._encode(target, [result])
        keys = {key for key, value in encoded.items() if value is not None and key.startswith(result.key)}
        return not keys <= (target.data or {}).keys()

    def _encode(self, target: _Target, results: Sequence[PairResult]) -> dict[str, str | None]:
        """Encode results as the changes of the ConfigMap's data; None removes a key."""
        plan, offset = self._plan_source.plan, target.sequence_offset
        data: dict[str, str | None] = {}
        for result in results:
            if result.removes_failure:
                data[result.key + FAILED_SUFFIX] = None
            if result.sample is not None:
                sample = msgspec.structs.replace(result.sample, sequence=result.sample.sequence + offset)
                # Upstream's keys do not name a test, so only the usual one is written in that format.
                is_usual_test = plan is not None and result.test == plan.settings.test
                percentiles = self._config.upstream_percentiles if is_usual_test else ()
                data |= encode_samples([sample], upstream_percentiles=percentiles)
            if result.failure is not None:
                failure = msgspec.structs.replace(result.failure, sequence=result.failure.sequence + offset)
                data |= encode_failure(failure, result.test)
        return data


class _Target:
    """The ConfigMap to write to.

    Attributes:
        name: of the ConfigMap; empty without a plan.
        data: the latest known keys and values; None to read the object before the next write.
        sequence_offset: added to each sequence. Sequences start from the clock; if the clock went back, new results would seem older
            than those of an earlier run of this agent.
        has_our_sequences: a patch with this offset was written, so the offset stays.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.data: Mapping[str, str] | None = None
        self.sequence_offset = 0
        self.has_our_sequences = False

    def continue_sequences(self, results: Sequence[PairResult], wall_s: float) -> None:
        """Continue the sequences of an earlier run of this agent."""
        entries = [entry for result in results for entry in (result.sample, result.failure) if entry is not None]
        if entries and self.data and not self.has_our_sequences:
            last_sequence = find_last_sequence(self.data, entries[0].origin.node, wall_s)
            first_sequence = min(entry.sequence for entry in entries)
            self.sequence_offset = max(self.sequence_offset, last_sequence + 1 - first_sequence)
