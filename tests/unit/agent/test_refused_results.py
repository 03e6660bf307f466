"""Results that the API server refuses, or for which the object is too large, are reported and do not delay others."""

from __future__ import annotations

import asyncio

import pytest

from netperf.configmap_size import MAX_CONFIGMAP_BYTES, measure_size
from tests.unit.agent.results_writing import (
    DESTINATIONS,
    SimulatedConfigMap,
    encode_to_data,
    make_key,
    make_sample,
    make_zone_plan,
    running_writer,
)

pytestmark = pytest.mark.looptime


async def test_a_forbidden_write_is_reported_until_a_write_succeeds_or_no_plan_is_left() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:
        store.is_reachable = False
        await agent.add_samples(make_sample("n1"), wait_s=60)
        assert agent.writer.readiness_error == "", "an unreachable API server refuses nothing"

        store.is_reachable = True
        for sequence, is_forbidden in enumerate((True, False, True), 2):
            store.is_forbidden = is_forbidden
            await agent.add_samples(make_sample("n1", sequence, p50_us=1000.0 * sequence), wait_s=60)
            assert ("writes only results" in agent.writer.readiness_error) == is_forbidden

        agent.plan_source.set_plan(None)
        assert agent.writer.readiness_error, (
            "it lasts, so that the node does not leave and rejoin the plan again and again"
        )
        await asyncio.sleep(600)
        assert agent.writer.readiness_error == ""


async def test_a_refused_key_is_named_and_does_not_delay_others() -> None:
    store, refused_key = SimulatedConfigMap(), make_key("n2")
    store.refused_keys = {refused_key}
    async with running_writer(store) as agent:
        for sequence in range(1, 6):
            samples = [make_sample(node, sequence, p50_us=2000.0 + 1000 * sequence) for node in DESTINATIONS]
            await agent.add_samples(*samples, wait_s=60)
            assert store.read_sequences() == {"n1": sequence, "n3": sequence}
        assert refused_key in agent.writer.refusal_summary
        assert agent.writer.readiness_error == "", "other keys are written, so the node stays in the plan"
        # After each of 5 rounds and at its retry: one request for the other keys, one for the refused key.
        # 4 more: the first round also reads the object, and finds the refused key by halving.
        assert len(store.attempts_s) <= 5 * (2 + 2) + 4

        store.refused_keys = set()
        await asyncio.sleep(60)
        assert store.read_sequences() == {"n1": 5, "n2": 5, "n3": 5}
        assert agent.writer.refusal_summary == ""


async def test_a_full_object_gets_new_values_but_no_new_keys() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as agent:
        await agent.add_samples(make_sample("n1", 1))
        store.data["foreign"] = "x" * MAX_CONFIGMAP_BYTES
        for sequence, destinations in ((2, ["n1"]), (3, ["n1", "n2"])):
            samples = [make_sample(node, sequence, p50_us=1000.0 * sequence) for node in destinations]
            await agent.add_samples(*samples, wait_s=60)
            assert store.read_sequences() == {"n1": sequence}
        assert agent.count_writes("too-large") >= 1
        assert "over" in agent.writer.refusal_summary
        assert not agent.writer.readiness_error

        del store.data["foreign"]
        await asyncio.sleep(60)
        assert store.read_sequences() == {"n1": 3, "n2": 3}


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "updated"])
async def test_keys_of_upstream_are_left_out_if_only_ours_fit(*, is_new: bool) -> None:
    our_data = encode_to_data(make_sample("n1", 1))
    filler = "x" * (MAX_CONFIGMAP_BYTES - measure_size({**our_data, "foreign": ""}))
    store = SimulatedConfigMap({"foreign": filler, **({} if is_new else our_data)})
    async with running_writer(store, upstream_percentiles=("p90",)) as agent:
        await agent.add_samples(make_sample("n1", 2))

    assert store.read_sequences() == {"n1": 2}
    assert store.data.keys() == {"foreign", *our_data}


async def test_the_rate_of_retries_does_not_grow_while_results_are_refused() -> None:
    store = SimulatedConfigMap({"foreign": "x" * MAX_CONFIGMAP_BYTES})
    async with running_writer(store) as agent:
        for sequence in range(60):
            await agent.add_samples(make_sample("n1", sequence), wait_s=60)
    attempts_in_last_10_minutes = sum(attempt_s >= 50 * 60 for attempt_s in store.attempts_s)
    assert attempts_in_last_10_minutes <= 2 * 10, "one after each sample, and one retry"


async def test_pairs_that_left_the_plan_are_forgotten_with_their_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = SimulatedConfigMap()
    store.refused_keys = {make_key("n1")}
    async with running_writer(store) as agent:
        await agent.add_samples(make_sample("n1"))
        assert agent.writer.refusal_summary

        agent.queue.add_sample(make_sample("n1", 2))
        agent.queue.add_sample(make_sample("n2"))
        agent.plan_source.set_plan(make_zone_plan("n2"))
        store.refused_keys = set()
        await asyncio.sleep(60)
        assert not agent.writer.refusal_summary

    assert store.read_sequences() == {"n2": 1}
    assert "no result is refused any more" in caplog.messages
