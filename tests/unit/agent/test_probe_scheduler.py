"""Turns and trust of the probing loop, in virtual time with a prober that needs no network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent.probing.background import BackgroundProber
from agent.probing.plan_source import PlanSource
from agent.probing.scheduler import Outcome, ProbeScheduler
from netperf.plans import Probe, ProbeSettings
from netperf.probers.netperf import NetperfProber
from netperf.probers.prober import ProbeFailedError
from netperf.sample import Measurement
from tests.unit.agent.probing import THERE, measured, plan

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
EPOCH = 1_800_000_000.0


class Steady(NetperfProber):
    """Gives the same measurement each time, or fails when told to."""

    def __init__(self) -> None:
        self.failure: ProbeFailedError | None = None
        self.asked: list[str] = []
        self.running = self.most_running = 0

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        self.asked.append(address)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(settings.duration_s)
        finally:
            self.running -= 1
        if self.failure is not None:
            raise self.failure
        return measured(500.0, test=settings.test, duration_s=settings.duration_s)


@asynccontextmanager
async def probing(
    prober: Steady | None, background: Answers | None = None
) -> AsyncIterator[tuple[PlanSource, list[Outcome]]]:
    outcomes: list[Outcome] = []
    loop = asyncio.get_running_loop()

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)

    plans = PlanSource("n1")
    scheduler = ProbeScheduler(plans, 10e6, note, background or Answers(), wall_clock=lambda: EPOCH + loop.time())
    plans.on_change = scheduler.follow_plan
    scheduler.set_prober(prober)
    tasks = [asyncio.create_task(scheduler.run()), asyncio.create_task(scheduler.run_datagrams())]
    try:
        yield plans, outcomes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_pair_is_probed_once_a_round_and_one_at_a_time() -> None:
    prober = Steady()
    async with probing(prober) as (plans, outcomes):
        plans.use(plan(*THERE))
        await asyncio.sleep(600)
    assert [prober.asked.count(peer.address) for peer in THERE] == [10, 10, 10]
    assert prober.most_running == 1
    assert {outcome.result for outcome in outcomes} == {"ok"}
    sequences = [outcome.sample.sequence for outcome in outcomes if outcome.sample is not None]
    assert sequences == sorted(set(sequences))


async def test_without_a_plan_nobody_is_probed_and_a_plan_that_goes_ends_it() -> None:
    prober = Steady()
    async with probing(prober) as (plans, _):
        await asyncio.sleep(600)
        assert prober.asked == []
        plans.use(plan(*THERE))
        await asyncio.sleep(130)
        assert prober.asked
        plans.use(None)
        await asyncio.sleep(2)
        before = len(prober.asked)
        await asyncio.sleep(600)
        assert len(prober.asked) == before


async def test_a_new_plan_takes_over_at_once() -> None:
    prober = Steady()
    async with probing(prober) as (plans, _):
        plans.use(plan(THERE[0]))
        await asyncio.sleep(120)
        prober.asked.clear()
        plans.use(plan(THERE[1], epoch=2))
        await asyncio.sleep(300)
    assert set(prober.asked) == {THERE[1].address}


async def test_a_failed_run_is_an_outcome_by_name_and_the_next_turn_comes_all_the_same() -> None:
    prober = Steady()
    async with probing(prober) as (plans, outcomes):
        prober.failure = ProbeFailedError("unauthenticated", "hung up on our passphrase")
        plans.use(plan(THERE[0]))
        await asyncio.sleep(180)
        assert {(outcome.result, outcome.sample) for outcome in outcomes} == {("unauthenticated", None)}
        prober.failure = None
        await asyncio.sleep(120)
        assert outcomes[-1].result == "ok"


class Answers(BackgroundProber):
    """What datagrams read, as the test says."""

    def __init__(self) -> None:
        self.measurement: Measurement | None = None
        self.returned = 0
        self.paused: list[bool] = []

    def close_window(self, probe: Probe) -> tuple[Measurement | None, int]:
        del probe
        return self.measurement, self.returned

    def pause(self, *, paused: bool) -> None:
        self.paused.append(paused)

    async def have_returned(self, probe: Probe) -> bool:
        del probe
        return self.returned > 0


def datagrams(p50_us: float, transactions: int = 100) -> Measurement:
    return measured(p50_us, prober="datagrams", test="UDP_RR", transactions=transactions)


async def outcome_of(between: Answers, prober: Steady) -> Outcome:
    async with probing(prober, background=between) as (plans, outcomes):
        plans.use(plan(THERE[0]))
        await asyncio.sleep(120)
    return outcomes[-1]


async def test_datagrams_that_agree_with_netperf_price_since_they_are_finer() -> None:
    between, prober = Answers(), Steady()
    between.measurement, between.returned = datagrams(510.0), 100
    outcome = await outcome_of(between, prober)
    assert outcome.sample is not None
    assert (outcome.sample.price_source, outcome.sample.priced_measurement.p50_us) == ("datagrams", 510.0)
    assert outcome.sample.measurement.prober == "netperf"
    assert set(between.paused) == {True, False}


async def test_datagrams_that_contradict_netperf_or_are_too_few_do_not_price() -> None:
    between, prober = Answers(), Steady()
    for wrong in (datagrams(5000.0), datagrams(510.0, transactions=10)):
        between.measurement, between.returned = wrong, 100
        outcome = await outcome_of(between, prober)
        assert outcome.sample is not None
        assert outcome.sample.price_source == "measurement"


async def test_a_run_that_fails_while_datagrams_come_back_gives_their_sample_and_no_failure() -> None:
    between, prober = Answers(), Steady()
    between.measurement, between.returned = datagrams(300_000.0), 100
    prober.failure = ProbeFailedError("too-few-samples")
    outcome = await outcome_of(between, prober)
    assert (outcome.result, outcome.failure, outcome.peer_answered) == ("too-few-samples", None, True)
    assert outcome.sample is not None
    assert (outcome.sample.measurement.prober, outcome.sample.measurement.test) == ("datagrams", "TCP_RR")
    assert outcome.sample.run_failure == "too-few-samples"


async def test_runs_that_fail_again_and_again_while_datagrams_pass_are_counted_until_one_succeeds() -> None:
    between, prober = Answers(), Steady()
    between.measurement, between.returned = datagrams(500.0), 100
    prober.failure = ProbeFailedError("reset")
    async with probing(prober, background=between) as (plans, outcomes):
        plans.use(plan(THERE[0]))
        await asyncio.sleep(181)
        prober.failure = None
        await asyncio.sleep(60)
    found = [(o.sample.failed_runs, o.sample.runs_fail) for o in outcomes if o.sample is not None]
    assert found == [(1, False), (2, False), (3, True), (0, False)]


async def test_without_netperf_datagrams_alone_measure_each_pair_once_a_round() -> None:
    between = Answers()
    between.measurement, between.returned = datagrams(500.0), 100
    async with probing(None, background=between) as (plans, outcomes):
        plans.use(plan(*THERE[:2]))
        await asyncio.sleep(600)
    assert [o.destination.node for o in outcomes] == ["n2", "n3"] * 10
    assert {o.sample.measurement.prober for o in outcomes if o.sample is not None} == {"datagrams"}


async def test_failures_in_a_row_are_counted_and_told_with_whether_the_host_lives() -> None:
    between, prober = Answers(), Steady()
    prober.failure = ProbeFailedError("timeout", "no connection")
    async with probing(prober, background=between) as (plans, outcomes):
        plans.use(plan(THERE[0]))
        await asyncio.sleep(181)
        counts = [(o.failure.in_a_row, o.failure.alive) for o in outcomes if o.failure is not None]
        assert counts == [(1, False), (2, False), (3, False)]
        between.returned = 2
        await asyncio.sleep(60)
        assert (outcomes[-1].failure, outcomes[-1].peer_answered) == (None, True)
        between.returned, prober.failure = 0, ProbeFailedError("refused")
        await asyncio.sleep(60)
        assert outcomes[-1].failure is not None
        assert (outcomes[-1].failure.in_a_row, outcomes[-1].failure.alive) == (1, True)


class Swallowing(Steady):
    """Hangs for ever with one destination."""

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        if address == THERE[0].address:
            await asyncio.sleep(10_000)
        return await super().probe(address, settings)


async def test_a_peer_that_swallows_packets_costs_its_own_turn_and_no_other_pairs() -> None:
    prober = Swallowing()
    async with probing(prober) as (plans, outcomes):
        plans.use(plan(*THERE, interval_s=24.0))
        await asyncio.sleep(240)
    results = [(o.destination.node, o.result) for o in outcomes]
    assert results.count(("n2", "timeout")) >= 9
    for healthy in ("n3", "n4"):
        assert results.count((healthy, "ok")) >= 9
