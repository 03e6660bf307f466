"""The writing loop in virtual time: few writes while nothing changes, never stale, jittered retries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from agent.config import AgentConfig
from agent.probing.plan_source import PlanSource
from agent.probing.results_queue import ResultsQueue
from agent.probing.results_writer import ResultsWriter
from kubekit.client import Client
from kubekit.errors import ApiError, UnreachableError
from kubekit.settings import YEAR_S
from kubekit.wire import ConfigMap, ObjectMeta, Resource
from netperf.configmap_size import MAX_CONFIGMAP_BYTES, measure_size
from netperf.measurement import Percentile
from netperf.plans import ZonePlan
from netperf.results import FAILED_SUFFIX, MIN_REFRESH_S, decode_results, encode_failure, encode_samples, sample_key
from netperf.sample import Failure, Sample
from tests.unit.agent.probing import make_measurement, make_peer, make_plan

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
NAME = "netperf-metrics"
LOCATIONS = {node: make_peer(node).location for node in ("here", "n1", "n2", "n3")}
STALE_AFTER_S = 300.0


class SimulatedConfigMap:
    """One ConfigMap with the API server's rules of merge patches, as far as the writer uses them."""

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.data, self.reachable, self.forbidden = data or {}, True, False
        self.refused_keys: set[str] = set()
        self.writes: list[float] = []
        self.attempts: list[float] = []
        self.written: dict[str, list[float]] = {}

    def _read_object(self) -> ConfigMap:
        self.attempts.append(asyncio.get_running_loop().time())
        if not self.reachable:
            raise UnreachableError("no API server")
        if self.forbidden:
            raise ApiError(403, "Forbidden", "an agent on here writes only results that its own node is the origin of")
        return ConfigMap(metadata=ObjectMeta(name=NAME), data=dict(self.data))

    async def get(self, *_: object, **__: object) -> ConfigMap:
        return self._read_object()

    async def patch(self, _resource: Resource, _name: str, body: dict[str, Any], *_: object, **__: object) -> ConfigMap:
        before = self._read_object()
        if self.refused_keys & body["data"].keys():
            raise ApiError(403, "Forbidden", "an agent on here writes only results that its own node is the origin of")
        merged = {**(before.data or {}), **body["data"]}
        self.data = {key: value for key, value in merged.items() if value is not None}
        now = asyncio.get_running_loop().time()
        self.writes.append(now)
        for key in body["data"]:
            self.written.setdefault(key, []).append(now)
        return self._read_object()

    def failures(self) -> list[Failure]:
        return list(decode_results(self.data, LOCATIONS).failures.values())

    def sequences(self) -> dict[str, int]:
        samples = decode_results(self.data, LOCATIONS).samples.values()
        return {sample.destination.node: sample.sequence for sample in samples}


def make_sample(node: str = "n1", sequence: int = 1, p50_us: float = 2000.0) -> Sample:
    return Sample(
        origin=LOCATIONS["here"], destination=LOCATIONS[node], measurement=make_measurement(p50_us), sequence=sequence
    )


def encode(*samples: Sample) -> dict[str, str]:
    return {key: value for key, value in encode_samples(samples).items() if value is not None}


def make_failure(node: str, failures_in_a_row: int) -> Failure:
    return Failure(
        origin=LOCATIONS["here"],
        destination=LOCATIONS[node],
        reason="timeout",
        failures_in_a_row=failures_in_a_row,
        sequence=10 + failures_in_a_row,
    )


def encode_one_failure(node: str, sequence: int) -> dict[str, str]:
    encoded = encode_failure(msgspec.structs.replace(make_failure(node, 1), sequence=sequence), "TCP_RR")
    return {key: value for key, value in encoded.items() if value is not None}


def make_zone_plan(*nodes: str) -> ZonePlan:
    tests = {"extra_tests": ("UDP_RR", "TCP_STREAM")}
    return make_plan(*map(make_peer, nodes), origin=make_peer("here"), settings=tests)


@asynccontextmanager
async def running_writer(
    store: SimulatedConfigMap,
    seed: int = 1,
    now_s: float = 1.8e9,
    plan_source: PlanSource | None = None,
    upstream_percentiles: tuple[Percentile, ...] = (),
) -> AsyncIterator[tuple[ResultsQueue, ResultsWriter, CollectorRegistry]]:
    config, registry = AgentConfig(node_name="here", upstream_percentiles=upstream_percentiles), CollectorRegistry()
    plan_source, queue = plan_source or PlanSource("here"), ResultsQueue()
    writer = ResultsWriter(
        cast("Client", store), config, plan_source, queue, registry, rng=random.Random(seed), wall_clock=lambda: now_s
    )
    plan_source.on_change = writer.apply_plan
    plan_source.set_plan(make_zone_plan("n1", "n2", "n3"))
    task = asyncio.create_task(writer.run())
    try:
        yield queue, writer, registry
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def write_count(registry: CollectorRegistry, outcome: str) -> float:
    return registry.get_sample_value("netaware_probe_results_writes_total", {"outcome": outcome}) or 0.0


@pytest.mark.parametrize("round_s", [8.0, 60.0, 90.0, 100.0, 234.0, 594.0])
async def test_equivalent_values_are_written_rarely_but_before_they_are_stale(round_s: float) -> None:
    store, rng = SimulatedConfigMap(), random.Random(3)
    async with running_writer(store) as (queue, _, _):
        for sequence in range(1, 1 + int(6000 / round_s)):
            for node in ("n1", "n2", "n3"):
                # Turns are jittered within their slots, by up to some seconds.
                await asyncio.sleep(round_s / 6)
                queue.add_sample(make_sample(node, sequence, p50_us=2000.0 + rng.uniform(-20, 20)))
            await asyncio.sleep(round_s / 2 + rng.uniform(-2, 2))
    assert len({key for key in store.written if not key.endswith(".failed")}) == 3
    times_by_key = [times for key, times in store.written.items() if key in store.data]
    gaps = [later - earlier for times in times_by_key for earlier, later in pairwise(times)]
    assert max(gaps) < max(STALE_AFTER_S, 3 * round_s) - 10
    # Waiting values are written along with those that are due, so that a write has all pairs.
    assert len(store.writes) <= 6 + (6000 / MIN_REFRESH_S if round_s < MIN_REFRESH_S else 3 * 6000 / round_s)


async def test_a_refused_writer_is_a_problem_until_it_may_write_or_has_nothing_to_write() -> None:
    store, plan_source = SimulatedConfigMap({}), PlanSource("here")
    async with running_writer(store, plan_source=plan_source) as (queue, writer, _):
        store.reachable = False
        queue.add_sample(make_sample())
        await asyncio.sleep(60)
        assert writer.problem == "", "an API server that is away refuses nothing"
        store.reachable, store.forbidden = True, True
        await asyncio.sleep(60)
        assert "writes only results" in writer.problem
        store.forbidden = False
        await asyncio.sleep(60)
        assert writer.problem == ""
        store.forbidden = True
        queue.add_sample(make_sample("n1", 2, p50_us=9000.0))
        queue.add_sample(make_sample("n2"))
        await asyncio.sleep(60)
        assert writer.problem
        plan_source.set_plan(None)
        assert writer.problem, "lest a node is in and out of the plan all the time"
        await asyncio.sleep(600)
        assert writer.problem == ""


async def test_a_refused_key_does_not_hinder_others_and_is_named() -> None:
    store = SimulatedConfigMap()
    bad = sample_key(LOCATIONS["here"], LOCATIONS["n2"], "TCP_RR")
    store.refused_keys = {bad}
    async with running_writer(store) as (queue, writer, _):
        for sequence in range(1, 6):
            for node in ("n1", "n2", "n3"):
                queue.add_sample(make_sample(node, sequence, p50_us=2000.0 + 1000 * sequence))
            await asyncio.sleep(60)
        assert store.sequences() == {"n1": 5, "n3": 5}
        assert bad in writer.warning
        assert writer.problem == "", "other keys are written, so the node stays in the plan"
        assert len(store.attempts) < 5 * 8 + 10
        store.refused_keys = set()
        await asyncio.sleep(60)
        assert store.sequences() == {"n1": 5, "n2": 5, "n3": 5}
        assert writer.warning == ""


async def test_a_failure_is_written_beside_the_last_sample_and_removed_by_a_success() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as (queue, _, _):
        queue.add_sample(make_sample("n1", 1))
        await asyncio.sleep(5)
        for failures_in_a_row in (1, 2):
            queue.add_failure(make_failure("n1", failures_in_a_row), "TCP_RR")
            await asyncio.sleep(5)
        assert [(f.reason, f.failures_in_a_row) for f in store.failures()] == [("timeout", 2)]
        assert store.sequences() == {"n1": 1}
    # The next run of the agent does not know of the failure.
    async with running_writer(store) as (queue, _, _):
        queue.add_sample(make_sample("n1", 13))
        await asyncio.sleep(5)
    assert list(store.data) == [sample_key(LOCATIONS["here"], LOCATIONS["n1"], "TCP_RR")]


async def test_repeated_failures_are_written_rarely_but_to_a_new_object_at_once() -> None:
    store, plan_source = SimulatedConfigMap(), PlanSource("here")
    async with running_writer(store, plan_source=plan_source) as (queue, _, _):
        for failures_in_a_row in range(1, 31):
            queue.add_failure(make_failure("n1", failures_in_a_row), "TCP_RR")
            await asyncio.sleep(60)
        assert len(store.writes) <= 4 + 30 * 60 / MIN_REFRESH_S
        store.data = {}
        plan_source.set_plan(msgspec.structs.replace(make_zone_plan("n1", "n2", "n3"), results_name="new"))
        queue.add_failure(make_failure("n1", 31), "TCP_RR")
        await asyncio.sleep(5)
        assert [failure.failures_in_a_row for failure in store.failures()] == [31]
        queue.clear_failure(LOCATIONS["here"], LOCATIONS["n1"], "TCP_RR")
        await asyncio.sleep(5)
    assert store.data == {}


async def test_a_result_is_written_again_if_the_object_changes_during_its_write() -> None:
    class ChangingConfigMap(SimulatedConfigMap):
        async def patch(self, *args: Any, **options: Any) -> ConfigMap:
            result = await super().patch(*args, **options)
            if len(self.writes) == 1:
                self.data = {}
                plan_source.set_plan(msgspec.structs.replace(make_zone_plan("n1", "n2", "n3"), results_name="new"))
            return result

    store, plan_source = ChangingConfigMap(), PlanSource("here")
    async with running_writer(store, plan_source=plan_source) as (queue, _, _):
        queue.add_sample(make_sample("n1", 1))
        await asyncio.sleep(10)
    assert store.sequences() == {"n1": 1}


async def test_sequences_grow_over_a_restart_with_a_clock_that_was_set_back() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as (queue, _, _):
        queue.add_sample(make_sample("n1", 5000))
        queue.add_sample(make_sample("n2", 5001))
        await asyncio.sleep(5)
    async with running_writer(store) as (queue, _, _):
        queue.add_failure(make_failure("n1", 1), "TCP_RR")
        queue.add_sample(make_sample("n2", 12, p50_us=9000.0))
        await asyncio.sleep(5)
        assert [failure.destination.node for failure in store.failures()] == ["n1"]
        assert store.sequences()["n2"] > 5001
        queue.add_sample(make_sample("n1", 13))
        await asyncio.sleep(5)
        assert store.failures() == []
        assert store.sequences()["n1"] > store.sequences()["n2"]


NOW_S = 1.8e9
SEQUENCE_OF_2026, FORGED_SAMPLE = 1_795_257_936, next(iter(encode(make_sample("n1", 5000)).values()))
ENTRIES_OF_OTHER_NODE = encode(msgspec.structs.replace(make_sample("n1", 2**53 - 1), origin=LOCATIONS["n3"]))
FORGED_KEY = sample_key(LOCATIONS["n3"], LOCATIONS["n1"], "TCP_RR")


@pytest.mark.parametrize("now_s", [NOW_S, 0.0], ids=["clock", "clock-at-1970"])
@pytest.mark.parametrize(
    ("data", "sequence"),
    [
        # Numbers that no clock gives do not count; one of 2026 does.
        (
            encode(make_sample("n1", 2**53 - 1), make_sample("n3", SEQUENCE_OF_2026))
            | encode_one_failure("n3", 2**53 - 1),
            SEQUENCE_OF_2026 + 1,
        ),
        (
            encode(make_sample("n1", int(NOW_S) + 12 * YEAR_S), make_sample("n3", SEQUENCE_OF_2026)),
            SEQUENCE_OF_2026 + 1,
        ),
        # Nor do other nodes' entries, or entries under another node's key.
        (ENTRIES_OF_OTHER_NODE, 12),
        ({FORGED_KEY: FORGED_SAMPLE}, 12),
        ({FORGED_KEY + FAILED_SUFFIX: FORGED_SAMPLE}, 12),
    ],
)
async def test_sequences_continue_after_own_entries_only(data: dict[str, str], sequence: int, now_s: float) -> None:
    store = SimulatedConfigMap(dict(data))
    async with running_writer(store, now_s=now_s) as (queue, _, _):
        queue.add_sample(make_sample("n2", 12))
        await asyncio.sleep(5)
    assert store.sequences()["n2"] == sequence
    assert data.items() <= store.data.items(), "nothing else is changed"


async def test_an_outage_loses_no_pair_and_retries_are_jittered() -> None:
    first, second = SimulatedConfigMap(), SimulatedConfigMap()
    for seed, store in ((1, first), (2, second)):
        store.reachable = False
        async with running_writer(store, seed) as (queue, _, registry):
            for sequence in (1, 2, 3):
                queue.add_sample(make_sample("n1", sequence))
                queue.add_sample(make_sample("n2", sequence))
                await asyncio.sleep(60)
            store.reachable = True
            await asyncio.sleep(60)
            assert write_count(registry, "failed") >= 5
            assert write_count(registry, "ok") == 1
        assert store.sequences() == {"n1": 3, "n2": 3}
    waits = [[b - a for a, b in pairwise(s.attempts)] for s in (first, second)]
    assert max(waits[0] + waits[1]) <= 30 + 3.1
    assert waits[0] != waits[1]


async def test_a_full_object_gets_new_values_but_no_new_keys() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store) as (queue, writer, registry):
        queue.add_sample(make_sample("n1", 1))
        await asyncio.sleep(5)
        store.data["theirs"] = "x" * MAX_CONFIGMAP_BYTES
        queue.add_sample(make_sample("n1", 2, p50_us=5000.0))
        await asyncio.sleep(5)
        assert store.sequences() == {"n1": 2}
        queue.add_sample(make_sample("n1", 3))
        queue.add_sample(make_sample("n2", 1))
        await asyncio.sleep(60)
        assert write_count(registry, "too-large") >= 1
        assert "over" in writer.warning
        assert not writer.problem
        assert store.sequences() == {"n1": 3}
        del store.data["theirs"]
        await asyncio.sleep(60)
        assert store.sequences() == {"n1": 3, "n2": 1}


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "updated"])
async def test_keys_of_upstream_are_left_out_if_only_ours_fit(*, is_new: bool) -> None:
    our_data = encode(make_sample("n1", 1))
    theirs = "x" * (MAX_CONFIGMAP_BYTES - measure_size({**our_data, "theirs": ""}))
    store = SimulatedConfigMap({"theirs": theirs} if is_new else {**our_data, "theirs": theirs})
    async with running_writer(store, upstream_percentiles=("p90",)) as (queue, _, _):
        queue.add_sample(make_sample("n1", 2))
        await asyncio.sleep(5)
    assert (store.sequences(), len(store.data)) == ({"n1": 2}, 2)


async def test_refused_results_are_not_retried_more_often_the_longer_they_are_refused() -> None:
    store = SimulatedConfigMap({"other": "x" * MAX_CONFIGMAP_BYTES})
    async with running_writer(store) as (queue, _, _):
        for sequence in range(60):
            queue.add_sample(make_sample("n1", sequence))
            await asyncio.sleep(60)
    # One pass after each sample, and one retry.
    assert sum(at_s >= 3000 for at_s in store.attempts) <= 2 * 10


async def test_pairs_that_left_the_plan_are_forgotten_with_their_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store, plan_source = SimulatedConfigMap(), PlanSource("here")
    store.refused_keys = {sample_key(LOCATIONS["here"], LOCATIONS["n1"], "TCP_RR")}
    async with running_writer(store, plan_source=plan_source) as (queue, writer, _):
        queue.add_sample(make_sample("n1"))
        await asyncio.sleep(5)
        assert writer.warning
        queue.add_sample(make_sample("n1", 2))
        queue.add_sample(make_sample("n2"))
        plan_source.set_plan(make_zone_plan("n2"))
        store.refused_keys = set()
        await asyncio.sleep(60)
        assert not writer.warning
    assert store.sequences() == {"n2": 1}
    assert ("INFO", "no result is refused any more") in [(each.levelname, each.message) for each in caplog.records]


async def test_upstreams_format_has_the_usual_test_only() -> None:
    store = SimulatedConfigMap()
    async with running_writer(store, upstream_percentiles=("p90",)) as (queue, _, _):
        usual = make_sample("n1", p50_us=2000.0)
        extra = msgspec.structs.replace(usual.measurement, test="UDP_RR", p90_us=9e6)
        queue.add_sample(usual)
        queue.add_sample(msgspec.structs.replace(usual, measurement=extra))
        await asyncio.sleep(5)
    assert len(store.data) == 3
    assert store.data["netperf.p90.latency.milliseconds.origin.here.destination.n1"] == "2"
