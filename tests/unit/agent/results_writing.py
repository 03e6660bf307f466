"""Runs a results writer on a simulated ConfigMap, and builds the samples and failures that it writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

from prometheus_client import CollectorRegistry

from agent.config import AgentConfig
from agent.probing.plan_source import PlanSource
from agent.probing.results_queue import ResultsQueue
from agent.probing.results_writer import ResultsWriter
from kubekit.client import Client
from kubekit.errors import ApiError, UnreachableError
from kubekit.wire import ConfigMap, ObjectMeta, Resource
from netperf.measurement import Percentile
from netperf.plans import ZonePlan
from netperf.results import decode_results, encode_samples, sample_key
from netperf.sample import Failure, Sample
from tests.support.tasks import running_tasks
from tests.unit.agent.probing import make_measurement, make_peer, make_plan

RESULTS_NAME = "netperf-metrics"
NODE = "n0"
"""The agent's node."""
DESTINATIONS = ("n1", "n2", "n3")
LOCATIONS = {node: make_peer(node).location for node in (NODE, *DESTINATIONS)}
NOW_S = 1.8e9


class SimulatedConfigMap:
    """One ConfigMap with the API server's rules of merge patches, as far as the writer uses them.

    Attributes:
        refused_keys: keys that the API server refuses in patches.
        attempts_s: times of all requests.
        writes_s_by_key: times of the patches that succeeded.
        on_write: called after each patch that succeeded.
    """

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.data, self.is_reachable, self.is_forbidden = data or {}, True, False
        self.refused_keys: set[str] = set()
        self.attempts_s: list[float] = []
        self.writes_s_by_key: dict[str, list[float]] = {}
        self.on_write: Callable[[], None] = lambda: None

    async def get(self, *_: object, **__: object) -> ConfigMap:
        self.attempts_s.append(asyncio.get_running_loop().time())
        if not self.is_reachable:
            raise UnreachableError("no API server")
        if self.is_forbidden:
            self._refuse()
        return ConfigMap(metadata=ObjectMeta(name=RESULTS_NAME), data=dict(self.data))

    async def patch(self, _resource: Resource, _name: str, body: dict[str, Any], *_: object, **__: object) -> ConfigMap:
        before = await self.get()
        if self.refused_keys & body["data"].keys():
            self._refuse()
        merged = {**(before.data or {}), **body["data"]}
        self.data = {key: value for key, value in merged.items() if value is not None}
        for key in body["data"]:
            self.writes_s_by_key.setdefault(key, []).append(asyncio.get_running_loop().time())
        self.on_write()
        return ConfigMap(metadata=before.metadata, data=dict(self.data))

    def _refuse(self) -> None:
        raise ApiError(403, "Forbidden", "an agent writes only results that its own node is the origin of")

    def list_failures(self) -> list[Failure]:
        return list(decode_results(self.data, LOCATIONS).failures.values())

    def read_sequences(self) -> dict[str, int]:
        """Sequences of the samples by destination."""
        samples = decode_results(self.data, LOCATIONS).samples.values()
        return {sample.destination.node: sample.sequence for sample in samples}


class WritingAgent(NamedTuple):
    """The part of an agent that writes results."""

    plan_source: PlanSource
    queue: ResultsQueue
    writer: ResultsWriter
    registry: CollectorRegistry

    async def add_samples(self, *samples: Sample, wait_s: float = 5.0) -> None:
        """Add samples to the queue, and wait until they are written."""
        for sample in samples:
            self.queue.add_sample(sample)
        await asyncio.sleep(wait_s)

    def count_writes(self, outcome: str) -> float:
        return self.registry.get_sample_value("netaware_probe_results_writes_total", {"outcome": outcome}) or 0.0


@asynccontextmanager
async def running_writer(
    store: SimulatedConfigMap, seed: int = 1, now_s: float = NOW_S, upstream_percentiles: tuple[Percentile, ...] = ()
) -> AsyncIterator[WritingAgent]:
    """A writer whose plan has all destinations."""
    config, registry = AgentConfig(node_name=NODE, upstream_percentiles=upstream_percentiles), CollectorRegistry()
    plan_source, queue = PlanSource(NODE), ResultsQueue()
    writer = ResultsWriter(
        cast("Client", store), config, plan_source, queue, registry, rng=random.Random(seed), wall_clock=lambda: now_s
    )
    plan_source.on_change = writer.apply_plan
    plan_source.set_plan(make_zone_plan())
    async with running_tasks(writer.run()) as (task,):
        yield WritingAgent(plan_source, queue, writer, registry)
        assert not task.done()


def make_zone_plan(*destinations: str, **changes: Any) -> ZonePlan:
    """A plan with probes to these nodes, by default to all."""
    tests = {"extra_tests": ("UDP_RR", "TCP_STREAM")}
    peers = map(make_peer, destinations or DESTINATIONS)
    return make_plan(*peers, origin=make_peer(NODE), settings=tests, results_name=RESULTS_NAME, **changes)


def make_key(destination: str, origin: str = NODE) -> str:
    return sample_key(LOCATIONS[origin], LOCATIONS[destination], "TCP_RR")


def make_sample(
    destination: str, sequence: int = 1, p50_us: float = 2000.0, *, origin: str = NODE, **fields: Any
) -> Sample:
    """A sample; ``fields`` are those of its measurement."""
    measurement, endpoint = make_measurement(p50_us, **fields), LOCATIONS[destination]
    return Sample(origin=LOCATIONS[origin], destination=endpoint, measurement=measurement, sequence=sequence)


def encode_to_data(*samples: Sample) -> dict[str, str]:
    """The ConfigMap's data with these samples."""
    return {key: value for key, value in encode_samples(samples).items() if value is not None}


def make_failure(destination: str, failures_in_a_row: int, sequence: int = 10) -> Failure:
    return Failure(
        origin=LOCATIONS[NODE],
        destination=LOCATIONS[destination],
        reason="timeout",
        failures_in_a_row=failures_in_a_row,
        sequence=sequence + failures_in_a_row,
    )
