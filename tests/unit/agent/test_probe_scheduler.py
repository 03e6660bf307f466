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
from netperf.plans import Probe, ProbeSettings, ZonePlan
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import NetperfProber
from tests.support.tasks import running_tasks
from tests.unit.agent.probing import PEERS, make_measurement, make_plan

pytestmark = pytest.mark.looptime
START_S = 1_800_000_000.0
ROUND_S = 60.0
"""Interval of the plans of `make_plan`."""
MAX_STREAM_BPS = 10e6


class SimulatedProber(NetperfProber):
    """A prober without a network or netperf: each run has the same measurement, or fails if ``failure`` is set."""

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


class HangingProber(SimulatedProber):
    """Never finishes a run to one destination."""

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        if address == PEERS[0].address:
            await asyncio.sleep(10_000)
        return await super().probe(address, settings)


class SimulatedBackground(BackgroundProber):
    """A background prober that sends nothing, with a measurement and a number of answers."""

    def __init__(self, measurement: Measurement | None = None, answers: int = 0) -> None:
        self.measurement, self.answers = measurement, answers
        self.pauses: list[bool] = []

    def close_window(self, probe: Probe) -> WindowResult:
        return WindowResult(self.measurement, self.answers)

    def set_paused(self, *, is_paused: bool) -> None:
        self.pauses.append(is_paused)

    async def have_datagrams_returned(self, probe: Probe) -> bool:
        return self.answers > 0


@asynccontextmanager
async def running_scheduler(
    prober: SimulatedProber | None,
    plan: ZonePlan | None,
    background: BackgroundProber | None = None,
    clock_steps_s: Sequence[float] = (),
) -> AsyncIterator[tuple[PlanSource, list[ProbeOutcome]]]:
    """A scheduler that follows ``plan``, and its outcomes. Steps that are added to ``clock_steps_s`` set the wall clock."""
    outcomes: list[ProbeOutcome] = []
    plan_source, loop = PlanSource("n1"), asyncio.get_running_loop()

    def wall_clock() -> float:
        return START_S + loop.time() + sum(clock_steps_s)

    background = background or SimulatedBackground()
    scheduler = ProbeScheduler(plan_source, MAX_STREAM_BPS, outcomes.append, background, wall_clock=wall_clock)
    plan_source.on_change = scheduler.apply_plan
    scheduler.set_prober(prober)
    async with running_tasks(scheduler.run(), scheduler.run_datagram_checks()):
        plan_source.set_plan(plan)
        yield plan_source, outcomes


def make_datagrams_measurement(p50_us: float, transactions: int = 100) -> Measurement:
    return make_measurement(p50_us, prober="datagrams", test="UDP_RR", transactions=transactions)


async def test_each_pair_is_probed_once_a_round_and_one_at_a_time() -> None:
    prober = SimulatedProber()
    async with running_scheduler(prober, make_plan(*PEERS)) as (_, outcomes):
        await asyncio.sleep(10 * ROUND_S)

    assert [prober.addresses.count(peer.address) for peer in PEERS] == [10, 10, 10]
    assert prober.max_running == 1
    assert {outcome.result for outcome in outcomes} == {"ok"}
    sequences = [outcome.sample.sequence for outcome in outcomes if outcome.sample is not None]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize(
    ("test", "throughput_bps", "run_count"),
    [
        pytest.param("TCP_RR", None, 13, id="a run in each of 13 rounds"),
        pytest.param("TCP_STREAM", 610 * MAX_STREAM_BPS, 2, id="a stream uses up the budget of 610 of 780 s"),
    ],
)
async def test_probing_continues_after_the_clock_was_set_back(
    test: str, throughput_bps: float | None, run_count: int
) -> None:
    prober, clock_steps_s = SimulatedProber(), list[float]()
    prober.throughput_bps = throughput_bps
    plan = make_plan(PEERS[0], settings={"test": test})
    async with running_scheduler(prober, plan, clock_steps_s=clock_steps_s) as (_, outcomes):
        await asyncio.sleep(1.5 * ROUND_S)
        clock_steps_s.append(-7200.0)
        await asyncio.sleep(11.5 * ROUND_S)

    assert [outcome.result for outcome in outcomes].count("ok") == run_count


async def test_a_new_plan_is_followed_at_once_and_without_a_plan_no_probe_runs() -> None:
    prober = SimulatedProber()
    async with running_scheduler(prober, None) as (plan_source, _):
        for plan, addresses in (
            (make_plan(PEERS[0]), {PEERS[0].address}),
            (make_plan(PEERS[1], epoch=2), {PEERS[1].address}),
            (None, set()),
        ):
            plan_source.set_plan(plan)
            await asyncio.sleep(2)  # a run in progress ends
            prober.addresses.clear()
            await asyncio.sleep(5 * ROUND_S)
            assert set(prober.addresses) == addresses


@pytest.mark.parametrize(
    ("measurement", "cost_source"),
    [
        pytest.param(make_datagrams_measurement(510.0), "datagrams", id="near netperf's 500 us, and more precise"),
        pytest.param(make_datagrams_measurement(5000.0), "measurement", id="ten times netperf's latency"),
        pytest.param(make_datagrams_measurement(510.0, transactions=10), "measurement", id="too few"),
    ],
)
async def test_datagrams_give_the_cost_if_they_are_enough_and_agree_with_netperf(
    measurement: Measurement, cost_source: str
) -> None:
    background = SimulatedBackground(measurement, answers=100)
    async with running_scheduler(SimulatedProber(), make_plan(PEERS[0]), background) as (_, outcomes):
        await asyncio.sleep(2 * ROUND_S)

    sample = outcomes[-1].sample
    assert sample is not None
    assert sample.cost_source == cost_source
    assert sample.measurement.prober == "netperf"
    assert set(background.pauses) == {True, False}


async def test_failed_runs_give_the_datagrams_sample_and_are_counted_until_one_succeeds() -> None:
    background, prober = SimulatedBackground(make_datagrams_measurement(500.0), answers=100), SimulatedProber()
    reset = ProbeFailedError("reset")
    async with running_scheduler(prober, make_plan(PEERS[0]), background) as (_, outcomes):
        for failure in (reset, reset, reset, None, reset):
            prober.failure = failure
            await asyncio.sleep(ROUND_S)

    assert [outcome.result for outcome in outcomes] == ["reset", "reset", "reset", "ok", "reset"]
    assert {outcome.failure for outcome in outcomes} == {None}
    assert {outcome.has_round_trip for outcome in outcomes} == {True}
    samples = [outcome.sample for outcome in outcomes if outcome.sample is not None]
    assert [sample.failed_runs for sample in samples] == [1, 2, 3, 0, 1]
    assert [sample.has_persistent_failure for sample in samples] == [False, False, True, False, False]
    assert samples[0].run_failure == "reset"
    assert samples[0].measurement.prober == "datagrams"
    assert samples[0].measurement.test == "TCP_RR", "the test that the probe asks for"


async def test_without_netperf_datagrams_alone_measure_each_pair_once_a_round() -> None:
    background = SimulatedBackground(make_datagrams_measurement(500.0), answers=100)
    async with running_scheduler(None, make_plan(*PEERS[:2]), background) as (_, outcomes):
        await asyncio.sleep(10 * ROUND_S)

    assert [outcome.probe.destination.node for outcome in outcomes] == ["n2", "n3"] * 10
    assert {outcome.sample.measurement.prober for outcome in outcomes if outcome.sample is not None} == {"datagrams"}


async def test_failures_in_a_row_are_counted_and_say_whether_the_host_answers() -> None:
    background, prober = SimulatedBackground(), SimulatedProber()
    timeout, refusal = ProbeFailedError("timeout", "no connection"), ProbeFailedError("refused")
    async with running_scheduler(prober, make_plan(PEERS[0]), background) as (_, outcomes):
        for failure, answers in ((timeout, 0), (timeout, 0), (timeout, 2), (refusal, 0)):
            prober.failure, background.answers = failure, answers
            await asyncio.sleep(ROUND_S)

    assert [outcome.result for outcome in outcomes] == ["timeout", "timeout", "timeout", "refused"]
    assert [outcome.has_round_trip for outcome in outcomes] == [False, False, True, False]
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    assert [failure.failures_in_a_row for failure in failures] == [1, 2, 1]
    assert [failure.has_answered for failure in failures] == [False, False, True], "a refusal is an answer"
    assert {outcome.sample for outcome in outcomes} == {None}


async def test_a_peer_that_drops_packets_costs_only_its_own_slot() -> None:
    prober = HangingProber()
    async with running_scheduler(prober, make_plan(*PEERS, interval_s=24.0)) as (_, outcomes):
        await asyncio.sleep(10 * 24)

    results = [f"{outcome.probe.destination.node} {outcome.result}" for outcome in outcomes]
    for result in ("n2 timeout", "n3 ok", "n4 ok"):
        assert results.count(result) >= 9, "the tenth run may be in progress"
