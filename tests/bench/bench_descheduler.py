"""Measures the time of a descheduler round in a large cluster, and how long it blocks the event loop.

A round updates usage, evaluates earlier moves, and decides with nodeFit and without limits that would end it early.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kubekit.runtime import compact_memory
from tests.bench.figures import Figures, figure
from tests.support.descheduler_builders import (
    DescheduleDecision,
    DeschedulerConfig,
    DeschedulerSnapshot,
    History,
    Pod,
    PodReader,
    ReasonDurations,
    ResolvedConfig,
    UsageBatch,
    UsageReading,
    UsageStore,
    World,
    decide,
    node_object,
    pod_document,
)

NOW_S = 1_800_000_000.0
OVERUTILIZED_SHARE, IDLE_SHARE = 0.05, 0.3
UNLIMITED = dict.fromkeys(("perNode", "perNamespace", "perRound", "perWorkload", "unavailablePerWorkload"), 10**6)


def measure() -> Figures:
    """Figures for ``make bench``."""
    cluster = _Cluster(5_000, 100_000)
    large = cluster.run_rounds(5)
    blocked = cluster.measure_blocking()
    moves = f"a tenth of the default interval of 60 s; {large.moves} moves planned off {large.overutilized} overutilized nodes"
    details = f"of this process' time; {1000 * blocked.on_loop:.0f} ms on the loop itself"
    return {
        "descheduler: one round, 5,000 nodes, 100,000 pods": figure(large.seconds, "s", 6, moves),
        "descheduler: longest hold of the leader's loop by a round": figure(
            1000 * blocked.in_thread, "ms", 50, details
        ),
    }


class _RoundFigures(msgspec.Struct):
    seconds: float
    moves: int
    overutilized: int


class _BlockedTimes(NamedTuple):
    on_loop: float
    in_thread: float


class _Cluster:
    def __init__(self, nodes: int, pods: int) -> None:
        self._world = World()
        self._names = [f"node-{i:05}" for i in range(nodes)]
        for name in self._names:
            node = node_object(name, cpu="32", memory="128Gi", labels={"disk": "ssd"})
            self._world.on_node_change(name, node)
        decoder, reader = msgspec.json.Decoder(Pod), PodReader()
        self._pods: list[tuple[str, int]] = []
        for i in range(pods):
            pod = decoder.decode(_pod(i, self._names[i % nodes]))
            self._world.on_pod_change(pod.metadata.key, reader.read(pod))
            self._pods.append((pod.metadata.key, i % nodes))
        self._usage = UsageStore(180)
        self._settings = _settings()

    def run_rounds(self, count: int) -> _RoundFigures:
        """The fastest of some rounds from the same state, because other work only slows them."""
        compact_memory()  # as the manager does once its stores are full
        seconds = []
        moves = overutilized = 0
        for i in range(count):
            now = NOW_S + 60 * i
            batch = self._batch(now)
            started = time.perf_counter()
            decision = self._decide(self._world.snapshot(), batch, now)
            seconds.append(time.perf_counter() - started)
            moves = len(decision.plan.moves)
            overutilized = sum(1 for state in decision.plan.nodes if state.kind == "overutilized")
        return _RoundFigures(min(seconds), moves, overutilized)

    def _decide(self, snapshot: DeschedulerSnapshot, batch: UsageBatch, now: float) -> DescheduleDecision:
        self._usage.update(batch, snapshot.nodes, snapshot.pods.by_key, now)
        seen = replace(snapshot, usage=self._usage.view(now))
        return decide(seen, History(), ReasonDurations(), self._settings, now, assume_lasting=True).decision

    def measure_blocking(self) -> _BlockedTimes:
        """How long a round blocks the event loop, if it runs on the loop and if it runs in a thread as in the program."""

        async def on_loop(batch: UsageBatch, now: float) -> None:
            self._decide(self._world.snapshot(), batch, now)

        async def in_thread(batch: UsageBatch, now: float) -> None:
            await asyncio.to_thread(self._decide, self._world.snapshot(), batch, now)

        found: list[float] = []
        for way in (on_loop, in_thread) * 3:
            now = NOW_S + 60 * (len(found) + 10)
            found.append(asyncio.run(_longest_block_s(way(self._batch(now), now))))
        return _BlockedTimes(min(found[::2]), min(found[1::2]))

    def _cpu_percent(self, index: int) -> float:
        """CPU usage of a node in percent: some nodes are overutilized, some idle, the others between."""
        place = (index * 7919 % len(self._names)) / len(self._names)
        return 85.0 if place < OVERUTILIZED_SHARE else 20.0 if place < OVERUTILIZED_SHARE + IDLE_SHARE else 50.0

    def _batch(self, now: float) -> UsageBatch:
        cores, per_node = 32_000, max(1, len(self._pods) // len(self._names))
        readings = [
            reading
            for i, name in enumerate(self._names)
            for reading in (
                UsageReading(name, "cpu", cores * self._cpu_percent(i) / 100, now),
                UsageReading(name, "memory", 40 * 2**30, now),
            )
        ]
        readings += [
            reading
            for key, i in self._pods
            for reading in (
                UsageReading(key, "cpu", cores * self._cpu_percent(i) / 100 / per_node, now),
                UsageReading(key, "memory", 2**30, now),
            )
        ]
        return UsageBatch(tuple(readings))


async def _longest_block_s(work: Awaitable[None]) -> float:
    """The longest time in which the event loop runs nothing else, in seconds of this process."""
    longest, last, busy = 0.0, time.process_time(), asyncio.ensure_future(work)
    while not busy.done():
        await asyncio.sleep(0.001)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    await busy
    return longest


def _settings() -> ResolvedConfig:
    policy = {"lowThresholds": {"cpu": 45, "memory": 45}, "highThresholds": {"cpu": 70, "memory": 70}}
    return msgspec.convert({"policy": policy, "limits": UNLIMITED}, DeschedulerConfig).resolve()


def _pod(index: int, node: str) -> bytes:
    app = f"app-{index % 1000}"
    pod = pod_document(
        f"{app}-6d5f-{index:06}",
        node,
        namespace=f"team-{index % 50}",
        owner=f"ReplicaSet/{app}-6d5f",
        labels={"app": app, "pod-template-hash": "6d5f"},
        cpu="500m",
        memory="1Gi",
        created_s=NOW_S - index % 100_000,
        spec={"nodeSelector": {"disk": "ssd"} if index % 3 else {}},
    )
    return msgspec.json.encode(pod)
