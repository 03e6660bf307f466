"""Turns, budget and trust of the probing loop, in virtual time with a prober that needs no network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from agent.probing.rounds import Outcome, Rounds
from netperf.pacing import ProbeBudget
from netperf.plans import Peer, Probe, ProbeSettings, ZonePlan
from netperf.probers.prober import ProbeFailedError
from netperf.sample import Measurement, ProberName, Test

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
EPOCH = 1_800_000_000.0
HERE = Peer("n1", "10.0.0.1", "z1")
THERE = [Peer(f"n{i}", f"10.0.0.{i}", f"z{i}") for i in (2, 3, 4)]


class Steady:
    """Gives the same measurement each time, or fails when told to."""

    name: ClassVar[ProberName] = "netperf"
    tests: ClassVar[tuple[Test, ...]] = ("TCP_RR", "TCP_STREAM")

    def __init__(self, cpu_us: float = 100_000.0) -> None:
        self.cpu_us, self.p50_us = cpu_us, 500.0
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
        return Measurement(
            prober="netperf",
            test=settings.test,
            p50_us=self.p50_us,
            p90_us=self.p50_us * 1.2,
            transactions=1000,
            duration_s=settings.duration_s,
            cpu_us=self.cpu_us,
        )


def plan(*destinations: Peer, epoch: int = 1, interval_s: float = 60.0) -> ZonePlan:
    probes = tuple(Probe(origin=HERE, destination=peer, slot=slot) for slot, peer in enumerate(destinations))
    elsewhere = Probe(origin=Peer("other", "10.0.0.9", "z1"), destination=THERE[0], slot=3)
    return ZonePlan(
        zone="z1",
        epoch=epoch,
        interval_s=interval_s,
        slots=4,
        results="netperf-metrics",
        settings=ProbeSettings(),
        probes=(*probes, elsewhere),
    )


@asynccontextmanager
async def probing(prober: Steady, budget: ProbeBudget | None = None) -> AsyncIterator[tuple[Rounds, list[Outcome]]]:
    outcomes: list[Outcome] = []
    loop = asyncio.get_running_loop()

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)

    rounds = Rounds("n1", budget or ProbeBudget(), (note,), wall_clock=lambda: EPOCH + loop.time())
    rounds.use(prober)
    task = asyncio.create_task(rounds.run())
    try:
        yield rounds, outcomes
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_each_pair_is_probed_once_a_round_and_one_at_a_time() -> None:
    prober = Steady()
    async with probing(prober) as (rounds, outcomes):
        rounds.follow(plan(*THERE))
        await asyncio.sleep(600)
    assert [prober.asked.count(peer.address) for peer in THERE] == [10, 10, 10]
    assert prober.most_running == 1
    assert {outcome.result for outcome in outcomes} == {"ok"}
    sequences = [outcome.sample.sequence for outcome in outcomes if outcome.sample is not None]
    assert sequences == sorted(set(sequences))


async def test_without_a_plan_nobody_is_probed_and_a_plan_that_goes_ends_it() -> None:
    prober = Steady()
    async with probing(prober) as (rounds, _):
        await asyncio.sleep(600)
        assert prober.asked == []
        rounds.follow(plan(*THERE))
        await asyncio.sleep(130)
        assert prober.asked
        rounds.follow(None)
        await asyncio.sleep(2)
        before = len(prober.asked)
        await asyncio.sleep(600)
        assert len(prober.asked) == before


async def test_a_new_plan_takes_over_at_once() -> None:
    prober = Steady()
    async with probing(prober) as (rounds, _):
        rounds.follow(plan(THERE[0]))
        await asyncio.sleep(120)
        prober.asked.clear()
        rounds.follow(plan(THERE[1], epoch=2))
        await asyncio.sleep(300)
    assert set(prober.asked) == {THERE[1].address}


async def test_a_failed_run_is_an_outcome_by_name_and_the_next_turn_comes_all_the_same() -> None:
    prober = Steady()
    async with probing(prober) as (rounds, outcomes):
        prober.failure = ProbeFailedError("unauthenticated", "hung up on our passphrase")
        rounds.follow(plan(THERE[0]))
        await asyncio.sleep(180)
        assert {(outcome.result, outcome.sample) for outcome in outcomes} == {("unauthenticated", None)}
        prober.failure = None
        await asyncio.sleep(120)
        assert outcomes[-1].result == "ok"


async def test_probes_that_cost_more_cpu_than_allowed_are_skipped_and_counted() -> None:
    prober = Steady(cpu_us=1e6)
    budget = ProbeBudget(max_cpu_ratio=0.01, window_s=600)
    async with probing(prober, budget) as (rounds, outcomes):
        rounds.follow(plan(*THERE))
        await asyncio.sleep(600)
    spent_s = sum(o.sample.measurement.cpu_us or 0.0 for o in outcomes if o.sample is not None) / 1e6
    assert spent_s == 6
    assert [o.result for o in outcomes].count("over-budget") == len(outcomes) - 6


async def test_an_outlier_is_doubted_and_a_level_that_stays_is_believed() -> None:
    prober = Steady()
    async with probing(prober) as (rounds, outcomes):
        rounds.follow(plan(THERE[0]))
        await asyncio.sleep(600)
        prober.p50_us = 5_000.0
        await asyncio.sleep(60)
        assert outcomes[-1].sample is not None
        assert outcomes[-1].sample.doubts == ("outlier",)
        await asyncio.sleep(60)
        assert outcomes[-1].sample is not None
        assert outcomes[-1].sample.trusted
