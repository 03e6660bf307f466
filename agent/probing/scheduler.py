"""Runs this node's probes in their slots, one at a time, and flags the samples.

Turns come from the plan and the wall clock (`netperf.pacing`), so agents need not talk to each other. A stream that the bandwidth
does not allow is skipped and counted, not queued. A run ends when the node's next turn comes, so a peer that drops packets costs
only its own turn. Pairs without runs are measured by datagrams alone, once a round.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from agent.probing.background import BackgroundProber
from agent.probing.plan_source import PlanSource
from kubekit import logs
from kubekit.waiting import wait_for
from netperf.pacing import (
    CONNECT_ALLOWANCE_S,
    StreamRun,
    Turn,
    may_stream,
    next_turn,
    recent_streams,
    slot_width_s,
)
from netperf.plans import Probe, ZonePlan
from netperf.probers.netperf import NetperfProber
from netperf.probers.prober import FailureName, ProbeFailedError
from netperf.sample import (
    MIN_DATAGRAMS,
    Failure,
    Measurement,
    Place,
    QualityFlag,
    Sample,
    Test,
    choose_instrument,
    find_quality_flags,
)

log = logs.get("agent.probing")

TURN_OVER_S = 1e-3
"""Added to a turn's start, so that `next_turn` returns the following one."""

Result = Literal["ok", "over-budget", "waiting"] | FailureName


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run.

    Attributes:
        origin, destination: the pair.
        test: the test that was run.
        result: ``ok``, ``over-budget``, ``waiting`` (no run is planned and no datagram came back yet), or the failure.
        sample: with ``ok``, and after a failed run if datagrams came back.
        failure: if neither the run nor the datagrams succeeded.
        detail: what failed, for the log.
        run_flags: quality flags of the run; those of the sample are about the instrument that prices it.
        pair_index: of the probe.
        heard: the peer answered, so an earlier failure is over.
    """

    origin: Place
    destination: Place
    test: Test
    result: Result
    sample: Sample | None = None
    failure: Failure | None = None
    detail: str = ""
    run_flags: tuple[QualityFlag, ...] = ()
    pair_index: int = 0
    heard: bool = False


class ProbeScheduler:
    """The probing loops of one node.

    Args:
        plans: the current plan.
        max_stream_bps: mean bandwidth that streams may take, bits per second.
        listener: called with each outcome; must be quick and must not raise.
        background: the datagrams' prober.
    """

    def __init__(
        self,
        plans: PlanSource,
        max_stream_bps: float,
        listener: Callable[[Outcome], None],
        background: BackgroundProber,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._plans, self._max_stream_bps, self._listener = plans, max_stream_bps, listener
        self._background, self._wall_clock = background, wall_clock
        self._in_a_row: dict[tuple[str, str], int] = {}
        self._failed_runs: dict[tuple[str, str], int] = {}
        self._streams: tuple[StreamRun, ...] = ()
        # Sequences start from the clock so that they grow over restarts; readers compare them.
        # If the clock went back, `ResultsWriter` raises them.
        self._sequence = int(wall_clock())
        self._last_turn_s = wall_clock()
        self._changed = asyncio.Event()
        self._prober: NetperfProber | None = None

    def use(self, prober: NetperfProber | None) -> None:
        """Run probes by this prober; with None all pairs are measured by datagrams."""
        self._prober = prober
        self.follow_plan()

    def follow_plan(self) -> None:
        """Recompute the next turn, because plan or prober changed."""
        current = {probe.nodes for probe in self._plans.own_probes}
        for counts in (self._in_a_row, self._failed_runs):
            for pair in counts.keys() - current:
                del counts[pair]
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Run probes until cancelled; a run under way is finished when the plan changes."""
        while True:
            changed, plan, prober = self._changed, self._plans.plan, self._prober
            turn = None
            if plan is not None and prober is not None:
                turn = next_turn(plan, self._plans.node, self._earliest_start_s(plan))
            if turn is None or plan is None or prober is None:
                await changed.wait()
            elif await self._wait_for_turn(turn, changed):
                self._last_turn_s = turn.starts_at_s + TURN_OVER_S
                self._listener(await self._run_probe(turn, plan, prober))

    async def run_datagrams(self) -> None:
        """Once a round, at a node-specific time, report the outcome of each pair without runs, until cancelled."""
        while True:
            changed, plan = self._changed, self._plans.plan
            pairs = [probe for probe in self._plans.own_probes if probe.pair_index or self._prober is None]
            if plan is None or not pairs:
                await changed.wait()
            elif not await wait_for(changed, self._until_own_moment_s(plan)):
                # Concurrently, so that ten dead hosts take no longer than one.
                await asyncio.gather(*(self._check_datagrams(plan, probe) for probe in pairs))

    async def _check_datagrams(self, plan: ZonePlan, probe: Probe) -> None:
        failure: ProbeFailedError | None = None
        try:
            if not await self._background.have_returned(probe):
                return
        except ProbeFailedError as error:
            failure = error
        if self._plans.plan is plan:
            self._listener(self.conclude(probe, plan.settings.test, failure))

    def _until_own_moment_s(self, plan: ZonePlan) -> float:
        digest = hashlib.blake2b(self._plans.node.encode(), digest_size=4).digest()
        rounds = self._wall_clock() / plan.interval_s - int.from_bytes(digest, "big") / 2**32
        return (math.floor(rounds) + 1 - rounds) * plan.interval_s

    def _earliest_start_s(self, plan: ZonePlan) -> float:
        """The earliest start of a run. A turn that was missed may still start in the first half of its slot.

        It is after the previous turn, so no turn comes twice, unless the clock was set back.
        """
        now_s = self._wall_clock()
        earliest_s = now_s - slot_width_s(plan) / 2
        return max(self._last_turn_s, earliest_s) if self._last_turn_s - now_s <= TURN_OVER_S else earliest_s

    async def _wait_for_turn(self, turn: Turn, changed: asyncio.Event) -> bool:
        """Wait for the turn; False if plan or prober change first. The wall clock may be adjusted meanwhile."""
        while (left_s := turn.starts_at_s - self._wall_clock()) > 0:
            if await wait_for(changed, min(left_s, 30.0)):
                return False
        return True

    async def _run_probe(self, turn: Turn, plan: ZonePlan, prober: NetperfProber) -> Outcome:
        probe, settings, test, now_s = turn.probe, plan.settings, turn.test, self._wall_clock()
        if test == "TCP_STREAM" and not may_stream(self._streams, now_s, self._max_stream_bps):
            return _log_outcome(probe, test, "over-budget", detail="see --max-stream-bandwidth")
        run: Measurement | ProbeFailedError
        self._background.pause(paused=True)
        try:
            async with asyncio.timeout(self._limit_s(turn, plan)):
                run = await prober.probe(probe.destination.address, msgspec.structs.replace(settings, test=test))
            if run.throughput_bps:
                sent = StreamRun(self._wall_clock(), run.throughput_bps * (run.duration_s or 0.0) / 8)
                self._streams = (*recent_streams(self._streams, now_s), sent)
        except ProbeFailedError as failure:
            run = failure
        except TimeoutError:
            run = ProbeFailedError("timeout", "no end before the next turn", alive=True)
        finally:
            self._background.pause(paused=False)
        return self.conclude(probe, test, run)

    def _limit_s(self, turn: Turn, plan: ZonePlan) -> float:
        """Time limit of a run: until this node's next turn must begin, at least the planned length."""
        following = next_turn(plan, self._plans.node, turn.starts_at_s + TURN_OVER_S)
        least_s = plan.settings.duration_s + CONNECT_ALLOWANCE_S
        if following is None:
            return plan.interval_s + least_s
        return max(least_s, following.starts_at_s + slot_width_s(plan) / 4 - self._wall_clock())

    def conclude(self, probe: Probe, test: Test, run: Measurement | ProbeFailedError | None) -> Outcome:
        """Combine a run (None if none is planned) and datagrams into a pair's outcome.

        If datagrams come back, a failed run means little. If neither succeeded, a failure is reported, because silence is
        ambiguous.
        """
        datagrams, returned = self._background.close_window(probe)
        if isinstance(run, Measurement):
            self._failed_runs.pop(probe.nodes, None)
            if test == "TCP_STREAM":
                datagrams = None
            quality_flags = find_quality_flags(run, datagrams)
            price_source = choose_instrument(run, datagrams, quality_flags)
            own = quality_flags if price_source == "measurement" or datagrams is None else find_quality_flags(datagrams)
            sample = self._sample(probe, run, own, datagrams)
            sample = msgspec.structs.replace(sample, price_source=price_source)
            return self._succeeded(probe, _log_outcome(probe, test, "ok", sample=sample, run_flags=quality_flags))
        if run is not None and probe.pair_index == 0 and self._prober is not None:
            self._failed_runs[probe.nodes] = self._failed_runs.get(probe.nodes, 0) + 1
        result: Result = "ok" if run is None else run.name
        detail = "" if run is None else run.detail
        if datagrams is not None and (datagrams.transactions or 0) >= MIN_DATAGRAMS / 2:
            standing_in = msgspec.structs.replace(datagrams, test=test)
            sample = msgspec.structs.replace(
                self._sample(probe, standing_in, find_quality_flags(standing_in), None),
                run_failure=None if run is None else run.name,
                failed_runs=self._failed_runs.get(probe.nodes, 0),
            )
            return self._succeeded(probe, _log_outcome(probe, test, result, sample=sample, detail=detail))
        if returned:
            return self._succeeded(probe, _log_outcome(probe, test, result, detail=detail))
        if run is None:
            return _log_outcome(probe, test, "waiting")
        self._in_a_row[probe.nodes] = self._in_a_row.get(probe.nodes, 0) + 1
        self._sequence += 1
        failure = Failure(
            origin=probe.origin.place,
            destination=probe.destination.place,
            failure=run.name,
            in_a_row=self._in_a_row[probe.nodes],
            alive=run.alive,
            sequence=self._sequence,
            taken_at=self._wall_clock(),
        )
        return _log_outcome(probe, test, result, failure=failure, detail=detail)

    def _succeeded(self, probe: Probe, outcome: Outcome) -> Outcome:
        self._in_a_row.pop(probe.nodes, None)
        return msgspec.structs.replace(outcome, heard=True)

    def _sample(
        self,
        probe: Probe,
        measurement: Measurement,
        quality_flags: tuple[QualityFlag, ...],
        datagrams: Measurement | None,
    ) -> Sample:
        self._sequence += 1
        return Sample(
            origin=probe.origin.place,
            destination=probe.destination.place,
            measurement=measurement,
            sequence=self._sequence,
            taken_at=self._wall_clock(),
            quality_flags=quality_flags,
            datagrams=datagrams,
        )


def _log_outcome(
    probe: Probe,
    test: Test,
    result: Result,
    *,
    sample: Sample | None = None,
    failure: Failure | None = None,
    detail: str = "",
    run_flags: tuple[QualityFlag, ...] = (),
) -> Outcome:
    """Log the result if it changed, and return the outcome."""
    origin, destination = probe.origin.place, probe.destination.place
    topic = f"{destination.node}/{test}"
    if result == "ok":
        log.change(topic, "", "probes succeed again", destination=destination.node, test=test)
    elif result != "waiting":
        log.change(topic, result, "probe failed", destination=destination.node, test=test, why=result, detail=detail)
    return Outcome(
        origin=origin,
        destination=destination,
        test=test,
        result=result,
        sample=sample,
        failure=failure,
        detail=detail,
        run_flags=run_flags,
        pair_index=probe.pair_index,
    )
