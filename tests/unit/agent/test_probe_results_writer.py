"""Results are written rarely while nothing changes, in time, with growing sequences, and again after an outage."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from agent.probing.results_queue import is_equivalent
from kubekit.settings import YEAR_S
from netperf.results import FAILED_SUFFIX, MIN_REFRESH_S, encode_failure
from tests.unit.agent.results_writing import (
    DESTINATIONS,
    NOW_S,
    SimulatedConfigMap,
    encode_to_data,
    make_failure,
    make_key,
    make_sample,
    make_zone_plan,
    running_writer,
)

pytestmark = pytest.mark.looptime
STALE_AFTER_S = 300.0
"""Age from which the controller does not use a sample, in rounds of up to 100 s."""
MAX_BACKOFF_S, MAX_GATHER_S = 30.0, 3.1
"""The longest waits of the writer before a request, with their jitter."""
NEW_SEQUENCE = 12
SEQUENCE_OF_2026, HIGHEST_SEQUENCE = 1_795_257_936, 2**53 - 1
OWN_SAMPLE, OTHER_NODES_KEY = encode_to_data(make_sample("n1", 5000))[make_key("n1")], make_key("n1", origin="n3")


def list_gaps_s(times_s: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times_s)]


@pytest.mark.parametrize(
    ("before", "changes", "is_expected"),
    [
        ({}, {"p50_us": 2050.0}, True),
        ({}, {"p99_us": 3900.0}, True),
        ({}, {"mean_us": 1.0}, True),
        # Small latencies may change by the clock's noise.
        ({"p50_us": 30.0, "p90_us": 40.0, "p99_us": 60.0}, {"p50_us": 55.0, "p90_us": 65.0, "p99_us": 120.0}, True),
        ({}, {"p50_us": 2200.0}, False),
        ({}, {"p90_us": 2300.0}, False),
        ({}, {"p99_us": None}, False),
        ({}, {"loss_ratio": 0.05}, False),
        ({}, {"prober": "datagrams"}, False),
    ],
)
def test_a_sample_that_differs_by_noise_only_is_equivalent(
    before: dict[str, Any], changes: dict[str, Any], is_expected: bool
) -> None:
    fields = {"p50_us": 2000.0, "p90_us": 2500.0, "p99_us": 4000.0, **before}
    assert is_equivalent(make_sample("n1", **(fields | changes)), make_sample("n1", **fields)) == is_expected


def test_a_sample_with_another_flag_is_not_equivalent() -> None:
    sample = make_sample("n1")
    assert not is_equivalent(msgspec.structs.replace(sample, quality_flags=("throttled",)), sample)


@pytest.mark.parametrize("round_s", [8.0, 60.0, 90.0, 100.0, 234.0, 594.0])
async def test_equivalent_values_are_written_rarely_but_before_they_are_stale(round_s: float) -> None:
    store, rng, duration_s = SimulatedConfigMap(), random.Random(3), 6000
    async with running_writer(store) as agent:
        for sequence in range(1, 1 + int(duration_s / round_s)):
            for destination in DESTINATIONS:
                await asyncio.sleep(round_s / 6)
                agent.queue.add_sample(make_sample(destination, sequence, p50_us=2000.0 + rng.uniform(-20, 20)))
            await asyncio.sleep(round_s / 2 + rng.uniform(-2, 2))  # runs are jittered within their slots

    assert store.data.keys() == {make_key(destination) for destination in DESTINATIONS}
    end_s = asyncio.get_running_loop().time()
    gaps_s = [gap_s for key in store.data for gap_s in list_gaps_s([*store.writes_s_by_key[key], end_s])]
    assert max(gaps_s) < max(STALE_AFTER_S, 3 * round_s) - 10
    # Waiting values are written along with those that are due, so that a write has all pairs.
    refreshes = duration_s / MIN_REFRESH_S if round_s < MIN_REFRESH_S else 3 * duration_s / round_s
    assert agent.count_writes("ok") <= 6 + refreshes


async def test_a_failure_is_written_beside_the_last_sample_and_removed_by_a_success_after_a_restart() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:
        await agent.add_samples(make_sample("n1", 1))
        for failures_in_a_row in (1, 2):
            agent.queue.add_failure(make_failure("n1", failures_in_a_row), "TCP_RR")
            await asyncio.sleep(5)
        assert [(f.reason, f.failures_in_a_row) for f in store.list_failures()] == [("timeout", 2)]
        assert store.read_sequences() == {"n1": 1}

    async with running_writer(store) as restarted_agent:
        await restarted_agent.add_samples(make_sample("n1", 13))
    assert list(store.data) == [make_key("n1")]


async def test_repeated_failures_are_written_rarely_but_to_a_new_object_at_once() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:
        for failures_in_a_row in range(1, 31):
            agent.queue.add_failure(make_failure("n1", failures_in_a_row), "TCP_RR")
            await asyncio.sleep(60)
        assert agent.count_writes("ok") <= 4 + 30 * 60 / MIN_REFRESH_S

        store.data = {}
        agent.plan_source.set_plan(msgspec.structs.replace(make_zone_plan(), results_name="new"))
        agent.queue.add_failure(make_failure("n1", 31), "TCP_RR")
        await asyncio.sleep(5)
        (failure,) = store.list_failures()
        assert failure.failures_in_a_row == 31
        agent.queue.clear_failure(failure.origin, failure.destination, "TCP_RR")
        await asyncio.sleep(5)
    assert store.data == {}


async def test_a_result_is_written_again_if_the_plan_names_another_object_during_its_write() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:

        def replace_object() -> None:
            store.data, store.on_write = {}, lambda: None
            agent.plan_source.set_plan(msgspec.structs.replace(make_zone_plan(), results_name="new"))

        store.on_write = replace_object
        await agent.add_samples(make_sample("n1"), wait_s=10)
    assert store.read_sequences() == {"n1": 1}


async def test_an_outage_loses_no_pair_and_retries_are_jittered() -> None:
    waits_s_by_seed = {}
    for seed in (1, 2):
        store = SimulatedConfigMap()
        store.is_reachable = False
        async with running_writer(store, seed) as agent:
            for sequence in (1, 2, 3):
                await agent.add_samples(make_sample("n1", sequence), make_sample("n2", sequence), wait_s=60)
            store.is_reachable = True
            await asyncio.sleep(60)
            assert agent.count_writes("failed") >= 5
            assert agent.count_writes("ok") == 1
        assert store.read_sequences() == {"n1": 3, "n2": 3}
        waits_s_by_seed[seed] = list_gaps_s(store.attempts_s)

    assert max(max(waits_s) for waits_s in waits_s_by_seed.values()) <= MAX_BACKOFF_S + MAX_GATHER_S
    assert waits_s_by_seed[1] != waits_s_by_seed[2]


async def test_upstreams_format_has_the_usual_test_only() -> None:
    store, sample = SimulatedConfigMap(), make_sample("n1", p50_us=2000.0)
    slow_datagrams = msgspec.structs.replace(sample.measurement, test="UDP_RR", p90_us=9e6)
    async with running_writer(store, upstream_percentiles=("p90",)) as agent:
        await agent.add_samples(sample, msgspec.structs.replace(sample, measurement=slow_datagrams))

    assert len(store.data) == 3, "a key for each test, and upstream's"
    assert store.data["netperf.p90.latency.milliseconds.origin.n0.destination.n1"] == "2"


async def test_sequences_grow_over_a_restart_with_a_clock_that_was_set_back() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:
        await agent.add_samples(make_sample("n1", 5000), make_sample("n2", 5001))

    async with running_writer(store) as restarted_agent:
        restarted_agent.queue.add_failure(make_failure("n1", 1), "TCP_RR")
        await restarted_agent.add_samples(make_sample("n2", NEW_SEQUENCE, p50_us=9000.0))
        assert [failure.destination.node for failure in store.list_failures()] == ["n1"]
        assert store.read_sequences()["n2"] > 5001

        await restarted_agent.add_samples(make_sample("n1", NEW_SEQUENCE + 1))
    assert store.list_failures() == []
    assert store.read_sequences()["n1"] > store.read_sequences()["n2"]


@pytest.mark.parametrize("now_s", [NOW_S, 0.0], ids=["clock", "clock-at-1970"])
@pytest.mark.parametrize(
    ("data", "sequence"),
    [
        pytest.param(
            encode_to_data(make_sample("n1", HIGHEST_SEQUENCE), make_sample("n3", SEQUENCE_OF_2026))
            | encode_failure(make_failure("n3", 1, sequence=HIGHEST_SEQUENCE - 1), "TCP_RR"),
            SEQUENCE_OF_2026 + 1,
            id="a number that no clock gives does not count; one of 2026 does",
        ),
        pytest.param(
            encode_to_data(make_sample("n1", int(NOW_S) + 12 * YEAR_S), make_sample("n3", SEQUENCE_OF_2026)),
            SEQUENCE_OF_2026 + 1,
            id="nor does one of 12 years later",
        ),
        pytest.param(
            encode_to_data(make_sample("n1", HIGHEST_SEQUENCE, origin="n3")), NEW_SEQUENCE, id="another node's entry"
        ),
        pytest.param({OTHER_NODES_KEY: OWN_SAMPLE}, NEW_SEQUENCE, id="an own sample under another node's key"),
        pytest.param({OTHER_NODES_KEY + FAILED_SUFFIX: OWN_SAMPLE}, NEW_SEQUENCE, id="as a failure of another node"),
    ],
)
async def test_sequences_continue_after_own_plausible_entries_only(
    data: dict[str, str | None], sequence: int, now_s: float
) -> None:
    written_data = {key: value for key, value in data.items() if value is not None}
    store = SimulatedConfigMap(dict(written_data))
    async with running_writer(store, now_s=now_s) as agent:
        await agent.add_samples(make_sample("n2", NEW_SEQUENCE))

    assert store.read_sequences()["n2"] == sequence
    assert written_data.items() <= store.data.items(), "nothing else is changed"
