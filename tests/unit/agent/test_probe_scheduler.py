"""Probes run in their slots, one at a time, and each gives one outcome; in virtual time, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from agent.probing.background import BackgroundProber, WindowResult
from agent.probing.plan_source import PlanSource
from agent.probing.scheduler import ProbeOutcome, ProbeScheduler
from netperf.measurement import Measurement
from netperf.plans import Probe, ProbeSettings
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import NetperfProber
from tests.unit.agent.probing import THERE, make_measurement, make_plan

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
START_S = 1_800_000_000.0


class SimulatedProber(NetperfProber):
    """A prober without a network: each run has the same measurement, or fails if ``failure`` is set."""

    def __init__(self) -> None:
        self.failure: ProbeFailedError | None = None
        self.throughput_bps: float | None = None
        self.addresses: list[str] = []
        self.running = self.max_running = 0

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        self.addresses.append(address)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await asyncio.sleep(settings.duration_s)
        finally:
            self.running -= 1
        if self.failure is not None:
            raise self.failure
        fields = {"test": settings.test, "duration_s": settings.duration_s, "throughput_bps": self.throughput_bps}
        return make_measurement(500.0, **fields)


@asynccontextmanager
async def running_scheduler(
    prober: SimulatedProber | None, background: SimulatedBackground | None = None, clock_steps_s: Sequence[float] = ()
) -> AsyncIterator[tuple[PlanSource, list[ProbeOutcome]]]:
    outcomes: list[ProbeOutcome] = []
    plan_source, loop = PlanSource("n1"), asyncio.get_running_loop()

    def wall_clock() -> float:
        return START_S + loop.time() + sum(clock_steps_s)

    background = background or SimulatedBackground()
    scheduler = ProbeScheduler(plan_source, 10e6, outcomes.append, background, wall_clock=wall_clock)
    plan_source.on_change = scheduler.apply_plan
    scheduler.set_prober(prober)
    tasks = [asyncio.create_task(scheduler.run()), asyncio.create_task(scheduler.run_datagram_checks())]
    try:
        yield plan_source, outcomes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_pair_is_probed_once_a_round_and_one_at_a_time() -> None:
    prober = SimulatedProber()
    async with running_scheduler(prober) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(*THERE))
        await asyncio.sleep(600)
    assert [prober.addresses.count(peer.address) for peer in THERE] == [10, 10, 10]
    assert prober.max_running == 1
    assert {outcome.result for outcome in outcomes} == {"ok"}
    sequences = [outcome.sample.sequence for outcome in outcomes if outcome.sample is not None]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize(("test", "runs"), [("TCP_RR", 13), ("TCP_STREAM", 2)])
async def test_probing_continues_after_the_clock_was_set_back(test: str, runs: int) -> None:
    prober, clock_steps_s = SimulatedProber(), list[float]()
    prober.throughput_bps = 6.1e9 if test == "TCP_STREAM" else None  # spends the budget of ten minutes
    async with running_scheduler(prober, clock_steps_s=clock_steps_s) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(THERE[0], settings={"test": test}))
        await asyncio.sleep(90)
        clock_steps_s.append(-7200.0)
        await asyncio.sleep(690)
    assert [outcome.result for outcome in outcomes].count("ok") == runs


async def test_a_new_plan_is_followed_at_once_and_without_a_plan_no_probe_runs() -> None:
    prober = SimulatedProber()
    async with running_scheduler(prober) as (plan_source, _):
        await asyncio.sleep(600)
        assert prober.addresses == []
        plan_source.set_plan(make_plan(THERE[0]))
        await asyncio.sleep(130)
        assert set(prober.addresses) == {THERE[0].address}
        for next_plan, addresses in ((make_plan(THERE[1], epoch=2), {THERE[1].address}), (None, set())):
            plan_source.set_plan(next_plan)
            await asyncio.sleep(2)
            prober.addresses.clear()
            await asyncio.sleep(300)
            assert set(prober.addresses) == addresses


class SimulatedBackground(BackgroundProber):
    """A background prober that sends nothing; the test sets measurement and number of answers."""

    def __init__(self) -> None:
        self.measurement: Measurement | None = None
        self.answers = 0
        self.pauses: list[bool] = []

    def close_window(self, probe: Probe) -> WindowResult:
        return WindowResult(self.measurement, self.answers)

    def set_paused(self, *, is_paused: bool) -> None:
        self.pauses.append(is_paused)

    async def have_datagrams_returned(self, probe: Probe) -> bool:
        return self.answers > 0


def measure_by_datagrams(p50_us: float, transactions: int = 100) -> Measurement:
    return make_measurement(p50_us, prober="datagrams", test="UDP_RR", transactions=transactions)


@pytest.mark.parametrize(
    ("measurement", "cost_source"),
    [
        (measure_by_datagrams(510.0), "datagrams"),  # They agree with netperf, and are more precise.
        (measure_by_datagrams(5000.0), "measurement"),
        (measure_by_datagrams(510.0, transactions=10), "measurement"),
    ],
)
async def test_datagrams_give_the_cost_if_they_are_enough_and_agree_with_netperf(
    measurement: Measurement, cost_source: str
) -> None:
    background = SimulatedBackground()
    background.measurement, background.answers = measurement, 100
    async with running_scheduler(SimulatedProber(), background) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(THERE[0]))
        await asyncio.sleep(120)
    outcome = outcomes[-1]
    assert outcome.sample is not None
    assert (outcome.sample.cost_source, outcome.sample.measurement.prober) == (cost_source, "netperf")
    assert set(background.pauses) == {True, False}


async def test_failed_runs_give_the_datagrams_sample_and_are_counted_until_one_succeeds() -> None:
    background, prober = SimulatedBackground(), SimulatedProber()
    background.measurement, background.answers = measure_by_datagrams(500.0), 100
    prober.failure = ProbeFailedError("reset")
    async with running_scheduler(prober, background) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(THERE[0]))
        await asyncio.sleep(181)
        outcome = outcomes[-1]
        assert (outcome.result, outcome.failure, outcome.has_round_trip) == ("reset", None, True)
        assert outcome.sample is not None
        assert (outcome.sample.measurement.prober, outcome.sample.measurement.test) == ("datagrams", "TCP_RR")
        assert outcome.sample.run_failure == "reset"
        for failure in (None, ProbeFailedError("reset")):
            prober.failure = failure
            await asyncio.sleep(60)
    samples = [outcome.sample for outcome in outcomes if outcome.sample is not None]
    assert [sample.failed_runs for sample in samples] == [1, 2, 3, 0, 1]
    assert [sample.has_persistent_failure for sample in samples] == [False, False, True, False, False]


async def test_without_netperf_datagrams_alone_measure_each_pair_once_a_round() -> None:
    background = SimulatedBackground()
    background.measurement, background.answers = measure_by_datagrams(500.0), 100
    async with running_scheduler(None, background) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(*THERE[:2]))
        await asyncio.sleep(600)
    assert [outcome.probe.destination.node for outcome in outcomes] == ["n2", "n3"] * 10
    assert {outcome.sample.measurement.prober for outcome in outcomes if outcome.sample is not None} == {"datagrams"}


async def test_failures_in_a_row_are_counted_and_say_whether_the_host_answers() -> None:
    background, prober = SimulatedBackground(), SimulatedProber()
    prober.failure = ProbeFailedError("timeout", "no connection")
    async with running_scheduler(prober, background) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(THERE[0]))
        await asyncio.sleep(181)
        assert {(outcome.result, outcome.sample) for outcome in outcomes} == {("timeout", None)}
        failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        assert [(f.failures_in_a_row, f.has_answered) for f in failures] == [(1, False), (2, False), (3, False)]
        background.answers = 2
        await asyncio.sleep(60)
        assert (outcomes[-1].failure, outcomes[-1].has_round_trip) == (None, True)
        background.answers, prober.failure = 0, ProbeFailedError("refused")
        await asyncio.sleep(60)
        assert outcomes[-1].failure is not None
        assert (outcomes[-1].failure.failures_in_a_row, outcomes[-1].failure.has_answered) == (1, True)


class HangingProber(SimulatedProber):
    """Never finishes a run to one destination."""

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        if address == THERE[0].address:
            await asyncio.sleep(10_000)
        return await super().probe(address, settings)


async def test_a_peer_that_drops_packets_costs_only_its_own_slot() -> None:
    prober = HangingProber()
    async with running_scheduler(prober) as (plan_source, outcomes):
        plan_source.set_plan(make_plan(*THERE, interval_s=24.0))
        await asyncio.sleep(240)
    results = [(outcome.probe.destination.node, outcome.result) for outcome in outcomes]
    assert results.count(("n2", "timeout")) >= 9
    for healthy_node in ("n3", "n4"):
        assert results.count((healthy_node, "ok")) >= 9
