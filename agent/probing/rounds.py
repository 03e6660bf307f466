"""Runs this node's probes when their turn comes, one at a time, and judges what they read.

Turns come from the plan and the wall clock (`netperf.pacing`), so agents need not talk to each other. What a run cost in
CPU and bandwidth is booked, and a run that the budget does not allow is skipped and counted, not queued.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from kubekit import logs
from netperf.pacing import ProbeBudget, Spending, Turn, forget_old, next_turn, within_budget
from netperf.plans import Probe, ZonePlan
from netperf.probers.prober import ProbeFailedError, Prober, run_probe
from netperf.sample import Measurement, Place, Sample, Test, TrustLimits, judge, remember

log = logs.get("agent.probing")

TURN_OVER_S = 1e-3

PairKey = tuple[str, str, str]
"""Origin node, destination node, test."""


def pair_key(probe: Probe, test: Test) -> PairKey:
    """What one history belongs to."""
    return probe.origin.node, probe.destination.node, test


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one turn ended.

    Attributes:
        origin, destination: the pair.
        test: what was run.
        result: ``ok``, ``over-budget``, or one of `netperf.probers.prober.FailureName`.
        sample: only with ``ok``.
        detail: what failed, for the log.
    """

    origin: Place
    destination: Place
    test: Test
    result: str
    sample: Sample | None = None
    detail: str = ""


class OutcomeListener(Protocol):
    """Somebody who wants to know how turns end."""

    def __call__(self, outcome: Outcome) -> None:
        """Must be quick and must not raise."""
        ...


class Rounds:
    """The probing loop of one node.

    Args:
        node: own name.
        budget: what runs may take.
        listeners: told of each outcome, in order.
        limits: when to doubt a run.

    Attributes:
        prober: how to probe; None while servers and secret are not known yet.
        plan: the zone's plan in force; None before the first.
        busy: a run is under way.
    """

    def __init__(
        self,
        node: str,
        budget: ProbeBudget,
        listeners: tuple[OutcomeListener, ...],
        *,
        limits: TrustLimits | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node, self._budget, self._listeners = node, budget, listeners
        self._limits, self._wall_clock = limits or TrustLimits(), wall_clock
        self._histories: dict[PairKey, tuple[float, ...]] = {}
        self._spent: tuple[Spending, ...] = ()
        # Starting from the clock keeps sequence numbers growing over restarts; readers compare them with the last seen.
        self._sequence = int(wall_clock())
        self._taken_s = 0.0
        self._changed = asyncio.Event()
        self.prober: Prober | None = None
        self.plan: ZonePlan | None = None
        self.busy = False

    def follow(self, plan: ZonePlan | None) -> None:
        """Probe by another plan from now on; a run under way is finished."""
        self.plan = plan
        if plan is not None:
            current = {pair_key(probe, test) for probe in plan.probes for test in plan.settings.tests}
            self._histories = {key: value for key, value in self._histories.items() if key in current}
        self._wake()

    def use(self, prober: Prober | None) -> None:
        """Probe by another prober from now on."""
        self.prober = prober
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            changed = self._changed
            turn = None
            if self.plan is not None and self.prober is not None:
                turn = next_turn(self.plan, self._node, self._from_s())
            if turn is None:
                await changed.wait()
            elif await self._comes(turn, changed):
                self._taken_s = turn.starts_at_s + TURN_OVER_S
                outcome = await self._take(turn, self.plan, self.prober)
                for listener in self._listeners:
                    listener(outcome)

    def _from_s(self) -> float:
        """Now, but after the last turn: one that was skipped took no time, and must not come again."""
        now_s = self._wall_clock()
        return self._taken_s if 0 <= self._taken_s - now_s <= TURN_OVER_S else now_s

    async def _comes(self, turn: Turn, changed: asyncio.Event) -> bool:
        """Wait for the turn; False when plan or prober change before. The wall clock may be set meanwhile."""
        while (left_s := turn.starts_at_s - self._wall_clock()) > 0:
            try:
                async with asyncio.timeout(min(left_s, 30.0)):
                    await changed.wait()
            except TimeoutError:
                continue
            return False
        return True

    async def _take(self, turn: Turn, plan: ZonePlan | None, prober: Prober | None) -> Outcome:
        assert plan is not None
        assert prober is not None
        probe, settings, now_s = turn.probe, plan.settings, self._wall_clock()
        # An extra test that this prober does not know is no reason to lose the round: the usual one is run.
        test = turn.test if turn.test in prober.tests else settings.test
        self._spent = forget_old(self._spent, now_s, self._budget)
        if not within_budget(self._spent, now_s, self._budget, stream=test == "TCP_STREAM"):
            return _outcome(probe, test, "over-budget", detail="see --max-probe-cpu and --max-stream-bandwidth")
        self.busy = True
        started = time.monotonic()
        try:
            measurement = await run_probe(prober, probe, settings, test)
        except ProbeFailedError as failure:
            self._book(min(time.monotonic() - started, settings.duration_s), None)
            return _outcome(probe, test, failure.name, detail=failure.detail)
        finally:
            self.busy = False
        self._book(measurement.duration_s or 0.0, measurement)
        return _outcome(probe, test, "ok", sample=self._judged(probe, measurement))

    def _book(self, duration_s: float, measurement: Measurement | None) -> None:
        """Note what a run cost; where nobody tells, as after a failure, a whole core is assumed for its duration."""
        cpu_us = measurement.cpu_us if measurement is not None else None
        sent_bps = (measurement.throughput_bps or 0.0) if measurement is not None else 0.0
        cost = Spending(
            self._wall_clock(),
            cpu_s=duration_s if cpu_us is None else cpu_us / 1e6,
            sent_bytes=sent_bps * duration_s / 8,
        )
        self._spent = (*self._spent, cost)

    def _judged(self, probe: Probe, measurement: Measurement) -> Sample:
        key = pair_key(probe, measurement.test)
        history = self._histories.get(key, ())
        doubts = judge(measurement, history, self._limits)
        self._histories[key] = remember(history, measurement, self._limits)
        self._sequence += 1
        return Sample(
            origin=probe.origin.place,
            destination=probe.destination.place,
            measurement=measurement,
            sequence=self._sequence,
            taken_at=self._wall_clock(),
            doubts=doubts,
        )


def _outcome(probe: Probe, test: Test, result: str, *, sample: Sample | None = None, detail: str = "") -> Outcome:
    origin, destination = probe.origin.place, probe.destination.place
    topic = f"{destination.node}/{test}"
    if result == "ok":
        log.change(topic, "", "probes succeed again", destination=destination.node, test=test)
    else:
        log.change(topic, result, "probe failed", destination=destination.node, test=test, why=result, detail=detail)
    return Outcome(origin=origin, destination=destination, test=test, result=result, sample=sample, detail=detail)
