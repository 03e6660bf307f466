"""Runs netperf for this node's probes, one at a time, combines runs and datagrams into outcomes, and flags the samples.

A round is the plan's interval, in which each of this node's probes has a slot (`netperf.pacing`). Slots follow from the plan and the
wall clock, so agents need not coordinate. A netperf run is cut off early in the slot of the node's next run, so a peer that drops packets
costs only its own run. A TCP_STREAM run is skipped and counted if the bandwidth budget is used up. Pairs without netperf runs are measured
by datagrams alone, once a round.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from agent.probing.background import BackgroundProber, WindowResult
from agent.probing.plan_source import PlanSource
from kubekit import logs
from kubekit.waiting import wait_until_set
from netperf.measurement import REQUIRED_TRANSACTIONS, Measurement, Test
from netperf.pacing import (
    CONNECT_ALLOWANCE_S,
    ScheduledRun,
    StreamRun,
    find_next_run,
    hash_to_int,
    may_stream,
    select_recent_streams,
    slot_width_s,
)
from netperf.plans import Probe, ZonePlan
from netperf.probers.failure import FailureReason, ProbeFailedError
from netperf.probers.netperf import NetperfProber
from netperf.quality import QualityFlag, choose_cost_source, find_quality_flags
from netperf.sample import Failure, Sample

log = logs.get("agent.probing")

AFTER_START_S = 1e-3
"""Added to the start of a run, so that `find_next_run` returns the following run."""
MAX_SLEEP_S = 30.0
"""Longest sleep before the next run is computed again, because the wall clock may be set."""

ProbeResult = Literal["ok", "over-budget"] | FailureReason


class ProbeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run, or of datagrams alone.

    Attributes:
        probe: the pair of nodes.
        test: the test that was run.
        result: ``ok``, ``over-budget``, or the failure of the run, also if datagrams came back.
        sample: after a run that succeeded, else if enough datagrams came back, else None.
        failure: if neither the run nor the datagrams succeeded, else None.
        detail: description of the failure or of the skipped run, for the log; may be empty.
        run_flags: quality flags of the run; the sample has the flags of the measurement that its cost uses.
        has_round_trip: the run succeeded or a datagram came back; a refused connection does not count.
    """

    probe: Probe
    test: Test
    result: ProbeResult
    sample: Sample | None = None
    failure: Failure | None = None
    detail: str = ""
    run_flags: tuple[QualityFlag, ...] = ()
    has_round_trip: bool = False


class ProbeScheduler:
    """The probing loops of one node.

    Args:
        max_stream_bps: mean bandwidth that streams may take, bits per second.
        on_outcome: called with each outcome; must be quick and must not raise.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        plan_source: PlanSource,
        max_stream_bps: float,
        on_outcome: Callable[[ProbeOutcome], None],
        background: BackgroundProber,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan_source, self._max_stream_bps, self._on_outcome = plan_source, max_stream_bps, on_outcome
        self._background, self._wall_clock = background, wall_clock
        self._failure_count_by_nodes: Counter[tuple[str, str]] = Counter()  # in a row, of run and datagrams
        self._failed_run_count_by_nodes: Counter[tuple[str, str]] = Counter()  # in a row, of netperf alone
        self._streams: tuple[StreamRun, ...] = ()
        # Sequences start from the clock so that they grow over restarts; readers compare them.
        # If the clock went back, `ResultsWriter` raises them.
        self._sequence = int(wall_clock())
        self._last_start_s = wall_clock()
        self._changed = asyncio.Event()
        self._prober: NetperfProber | None = None

    def set_prober(self, prober: NetperfProber | None) -> None:
        """Set the prober of runs; with None all pairs are measured by datagrams."""
        self._prober = prober
        self.apply_plan()

    def apply_plan(self) -> None:
        """Recompute the next run, because plan or prober changed."""
        planned_pairs = {probe.nodes for probe in self._plan_source.own_probes}
        for counts in (self._failure_count_by_nodes, self._failed_run_count_by_nodes):
            for pair in counts.keys() - planned_pairs:
                del counts[pair]
        self._changed.set()  # Wakes all waiters; later waiters get the new event.
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Run probes until cancelled; a change of the plan does not end a running probe."""
        while True:
            changed, plan, prober = self._changed, self._plan_source.plan, self._prober
            next_run = None
            if plan is not None and prober is not None:
                next_run = find_next_run(plan, self._plan_source.node, self._earliest_start_s(plan))
            if next_run is None or plan is None or prober is None:
                await changed.wait()
            elif await self._wait_for_start(next_run, changed):
                self._last_start_s = next_run.starts_at_s + AFTER_START_S
                self._on_outcome(await self._run_probe(next_run, plan, prober))

    async def run_datagram_checks(self) -> None:
        """Report the outcome of each pair without runs once a round, at a time specific to the node, until cancelled."""
        while True:
            changed, plan = self._changed, self._plan_source.plan
            pairs = [probe for probe in self._plan_source.own_probes if probe.pair_index or self._prober is None]
            if plan is None or not pairs:
                await changed.wait()
            elif not await wait_until_set(changed, self._seconds_to_phase(plan)):
                # Concurrent, because each dead host costs a timeout.
                await asyncio.gather(*(self._report_datagrams(plan, probe) for probe in pairs))

    async def _report_datagrams(self, plan: ZonePlan, probe: Probe) -> None:
        """Report the outcome of a pair by datagrams, unless too few were sent to tell or the plan has changed."""
        failure: ProbeFailedError | None = None
        try:
            if not await self._background.have_datagrams_returned(probe):
                return
        except ProbeFailedError as error:
            failure = error
        if self._plan_source.plan is plan:
            self._on_outcome(self._evaluate_pair(probe, plan.settings.test, failure))

    def _seconds_to_phase(self, plan: ZonePlan) -> float:
        """Return the time until this node's phase of the round, which is a hash of the node's name."""
        phase = hash_to_int(self._plan_source.node, digest_size=4) / 2**32
        return (1 - (self._wall_clock() / plan.interval_s - phase) % 1) * plan.interval_s

    def _earliest_start_s(self, plan: ZonePlan) -> float:
        """The earliest start of a run. A run that was missed may still start in the first half of its slot.

        The result is after the previous run, so that no run is repeated, unless the clock was set back.
        """
        now_s = self._wall_clock()
        earliest_s = now_s - slot_width_s(plan) / 2
        was_clock_set_back = self._last_start_s - now_s > AFTER_START_S
        return earliest_s if was_clock_set_back else max(self._last_start_s, earliest_s)

    async def _wait_for_start(self, run: ScheduledRun, changed: asyncio.Event) -> bool:
        """Wait for the start of a run, at most `MAX_SLEEP_S`; whether the run starts now, unless plan or prober have changed."""
        remaining_s = run.starts_at_s - self._wall_clock()
        has_changed = remaining_s > 0 and await wait_until_set(changed, min(remaining_s, MAX_SLEEP_S))
        return not has_changed and self._wall_clock() >= run.starts_at_s

    async def _run_probe(self, run: ScheduledRun, plan: ZonePlan, prober: NetperfProber) -> ProbeOutcome:
        """Run netperf without datagrams beside it, and evaluate the pair; a stream is skipped if the bandwidth budget is used up."""
        probe, settings, test, clock = run.probe, plan.settings, run.test, asyncio.get_running_loop().time
        if test == "TCP_STREAM" and not may_stream(self._streams, clock(), self._max_stream_bps):
            detail = "see --max-stream-bandwidth"
            outcome = ProbeOutcome(probe=probe, test=test, result="over-budget", detail=detail)
            _log_change(outcome)
            return outcome
        run_result: Measurement | ProbeFailedError
        self._background.set_paused(is_paused=True)
        try:
            async with asyncio.timeout(self._timeout_s(run, plan)):
                run_result = await prober.probe(probe.destination.address, msgspec.structs.replace(settings, test=test))
            if run_result.throughput_bps:
                sent_bytes = run_result.throughput_bps * (run_result.duration_s or 0.0) / 8
                stream_run = StreamRun(clock(), sent_bytes)
                self._streams = (*select_recent_streams(self._streams, clock()), stream_run)
        except ProbeFailedError as failure:
            run_result = failure
        except TimeoutError:
            run_result = ProbeFailedError("timeout", "the run did not end before the next run", has_answered=True)
        finally:
            self._background.set_paused(is_paused=False)
        return self._evaluate_pair(probe, test, run_result)

    def _timeout_s(self, run: ScheduledRun, plan: ZonePlan) -> float:
        """Return the time limit of a run: to the first quarter of the slot of this node's next run, but at least the planned length."""
        following_run = find_next_run(plan, self._plan_source.node, run.starts_at_s + AFTER_START_S)
        minimum_s = plan.settings.duration_s + CONNECT_ALLOWANCE_S
        if following_run is None:
            return plan.interval_s + minimum_s
        return max(minimum_s, following_run.starts_at_s + slot_width_s(plan) / 4 - self._wall_clock())

    def _evaluate_pair(
        self, probe: Probe, test: Test, run_result: Measurement | ProbeFailedError | None
    ) -> ProbeOutcome:
        """Combine a run's result (None if none is planned) with the pair's datagrams, and log the outcome if it changed."""
        window = self._background.close_window(probe)
        if isinstance(run_result, Measurement):
            outcome = self._make_run_outcome(probe, test, run_result, window)
        else:
            outcome = self._make_datagram_outcome(probe, test, run_result, window)
        if outcome.has_round_trip:
            self._failure_count_by_nodes.pop(probe.nodes, None)
        _log_change(outcome)
        return outcome

    def _make_run_outcome(self, probe: Probe, test: Test, run: Measurement, window: WindowResult) -> ProbeOutcome:
        datagrams = None if test == "TCP_STREAM" else window.measurement
        self._failed_run_count_by_nodes.pop(probe.nodes, None)
        run_flags = find_quality_flags(run, datagrams)
        cost_source = choose_cost_source(run, datagrams, run_flags)
        flags = run_flags if cost_source == "measurement" or datagrams is None else find_quality_flags(datagrams)
        fields = self._make_common_fields(probe)
        sample = Sample(measurement=run, quality_flags=flags, datagrams=datagrams, cost_source=cost_source, **fields)
        return ProbeOutcome(
            probe=probe, test=test, result="ok", sample=sample, run_flags=run_flags, has_round_trip=True
        )

    def _make_datagram_outcome(
        self, probe: Probe, test: Test, run_error: ProbeFailedError | None, window: WindowResult
    ) -> ProbeOutcome:
        """Make the outcome by datagrams: after a failed run, or without ``run_error`` if no run is planned and some datagrams came back.

        A failed run is not a failure of the pair if datagrams come back. If neither succeeded, a failure is reported, because a missing
        result could also mean "not probed yet".
        """
        if run_error is not None and probe.pair_index == 0 and self._prober is not None:
            self._failed_run_count_by_nodes[probe.nodes] += 1
        reason, detail = (run_error.reason, run_error.detail) if run_error is not None else (None, "")
        outcome = ProbeOutcome(probe=probe, test=test, result=reason or "ok", detail=detail)
        sample, datagrams = None, window.measurement
        if datagrams is not None and (datagrams.transactions or 0) >= REQUIRED_TRANSACTIONS["p90"]:
            substitute = msgspec.structs.replace(datagrams, test=test)
            sample = Sample(
                measurement=substitute,
                quality_flags=find_quality_flags(substitute),
                run_failure=reason,
                failed_runs=self._failed_run_count_by_nodes[probe.nodes],
                **self._make_common_fields(probe),
            )
        if sample is not None or window.answer_count or run_error is None:
            return msgspec.structs.replace(outcome, sample=sample, has_round_trip=True)
        self._failure_count_by_nodes[probe.nodes] += 1
        count, fields = self._failure_count_by_nodes[probe.nodes], self._make_common_fields(probe)
        failure = Failure(
            reason=run_error.reason, failures_in_a_row=count, has_answered=run_error.has_answered, **fields
        )
        return msgspec.structs.replace(outcome, failure=failure)

    def _make_common_fields(self, probe: Probe) -> dict[str, Any]:
        """Return the fields that samples and failures share: the pair, a new sequence number, and the time."""
        self._sequence += 1
        return {
            "origin": probe.origin.location,
            "destination": probe.destination.location,
            "sequence": self._sequence,
            "taken_at": self._wall_clock(),
        }


def _log_change(outcome: ProbeOutcome) -> None:
    """Log an outcome if its result differs from the last one of its destination and test."""
    destination, test, result = outcome.probe.destination.node, outcome.test, outcome.result
    topic = f"{destination}/{test}"
    if result == "ok":
        log.log_change(topic, "", "probes succeed again", destination=destination, test=test)
    else:
        message = "probe skipped" if result == "over-budget" else "probe failed"
        log.log_change(topic, result, message, destination=destination, test=test, why=result, detail=outcome.detail)
