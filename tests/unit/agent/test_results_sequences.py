"""A sample's sequence is higher than those that the agent wrote before its start, also if its clock was set back."""

from __future__ import annotations

import asyncio

import pytest

from kubekit.settings import YEAR_S
from netperf.results import FAILED_SUFFIX, encode_failure
from tests.unit.agent.results_writing import (
    NOW_S,
    SimulatedConfigMap,
    encode_to_data,
    make_failure,
    make_key,
    make_sample,
    running_writer,
)

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
NEW_SEQUENCE = 12
SEQUENCE_OF_2026, HIGHEST_SEQUENCE = 1_795_257_936, 2**53 - 1
OWN_SAMPLE, OTHER_NODES_KEY = encode_to_data(make_sample("n1", 5000))[make_key("n1")], make_key("n1", origin="n3")


async def test_sequences_grow_over_a_restart_with_a_clock_that_was_set_back() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:
        agent.queue.add_sample(make_sample("n1", 5000))
        agent.queue.add_sample(make_sample("n2", 5001))
        await asyncio.sleep(5)

    async with running_writer(store) as restarted_agent:
        restarted_agent.queue.add_failure(make_failure("n1", 1), "TCP_RR")
        restarted_agent.queue.add_sample(make_sample("n2", NEW_SEQUENCE, p50_us=9000.0))
        await asyncio.sleep(5)
        assert [failure.destination.node for failure in store.list_failures()] == ["n1"]
        assert store.read_sequences()["n2"] > 5001

        restarted_agent.queue.add_sample(make_sample("n1", NEW_SEQUENCE + 1))
        await asyncio.sleep(5)
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
        agent.queue.add_sample(make_sample("n2", NEW_SEQUENCE))
        await asyncio.sleep(5)

    assert store.read_sequences()["n2"] == sequence
    assert written_data.items() <= store.data.items(), "nothing else is changed"
