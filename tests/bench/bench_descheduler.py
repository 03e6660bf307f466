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
from tests.bench.figures import Figures, make_figure
from tests.support.descheduler_builders import (
    DescheduleDecision,
    DeschedulerConfig,
    DeschedulerSnapshot,
    History,
    Pod,
    PodReader,
    ReasonDurations,
    UsageBatch,
    UsageReading,
    UsageStore,
    World,
    decide,
    make_node,
    make_pod_document,
)

NOW_S = 1_800_000_000.0
OVERUTILIZED_SHARE, IDLE_SHARE = 0.05, 0.3
NODE_MILLICORES, NODE_BYTES, POD_BYTES = 32_000, 40 * 2**30, 2**30
UNLIMITED = dict.fromkeys(("perNode", "perNamespace", "perRound", "perWorkload", "unavailablePerWorkload"), 10**6)


def measure() -> Figures:
    cluster = _Cluster(5_000, 100_000)
    rounds = cluster.run_rounds(5)
    blocked_ms = 1000 * cluster.measure_blocking_s()
    planned = f"{rounds.moves} moves planned off {rounds.overutilized_nodes} overutilized nodes"
    note = f"a tenth of the default interval of 60 s; {planned}"
    return {
        "descheduler: one round, 5,000 nodes, 100,000 pods": make_figure(rounds.min_duration_s, "s", 6, note),
        "descheduler: longest block of the leader's loop by a round": make_figure(
            blocked_ms, "ms", 50, "CPU time of this process"
        ),
    }


class _RoundFigures(NamedTuple):
    min_duration_s: float
    moves: int
    overutilized_nodes: int


class _Cluster:
    def __init__(self, nodes: int, pods: int) -> None:
        self._world = World()
        self._node_names = [f"node-{i:05}" for i in range(nodes)]
        for name in self._node_names:
            node = make_node(name, cpu="32", memory="128Gi", labels={"disk": "ssd"})
            self._world.on_node_change(name, node)
        decoder, reader = msgspec.json.Decoder(Pod), PodReader()
        self._node_index_by_pod: dict[str, int] = {}
        for i in range(pods):
            pod = decoder.decode(_encode_pod(i, self._node_names[i % nodes]))
            self._world.on_pod_change(pod.metadata.key, reader.read(pod))
            self._node_index_by_pod[pod.metadata.key] = i % nodes
        self._usage = UsageStore(180)
        policy = {"lowThresholds": {"cpu": 45, "memory": 45}, "highThresholds": {"cpu": 70, "memory": 70}}
        self._settings = msgspec.convert({"policy": policy, "limits": UNLIMITED}, DeschedulerConfig).resolve()

    def run_rounds(self, count: int) -> _RoundFigures:
        """Run rounds from the same state. The shortest duration counts, because other work only slows them."""
        compact_memory()  # as the manager does once its stores are synced
        durations_s = []
        moves = overutilized_nodes = 0
        for i in range(count):
            now_s = NOW_S + 60 * i
            batch = self._build_batch(now_s)
            started_s = time.perf_counter()
            decision = self._decide(self._world.snapshot(), batch, now_s)
            durations_s.append(time.perf_counter() - started_s)
            moves = len(decision.plan.moves)
            overutilized_nodes = sum(state.kind == "overutilized" for state in decision.plan.nodes)
        return _RoundFigures(min(durations_s), moves, overutilized_nodes)

    def _decide(self, snapshot: DeschedulerSnapshot, batch: UsageBatch, now_s: float) -> DescheduleDecision:
        self._usage.update(batch, snapshot.nodes, snapshot.pods.by_key, now_s)
        with_usage = replace(snapshot, usage=self._usage.view(now_s))
        return decide(with_usage, History(), ReasonDurations(), self._settings, now_s, ignore_durations=True).decision

    def measure_blocking_s(self) -> float:
        """How long a round blocks the event loop: the snapshot runs on the loop, the decision in a thread."""

        async def decide_in_thread(batch: UsageBatch, now_s: float) -> None:
            await asyncio.to_thread(self._decide, self._world.snapshot(), batch, now_s)

        times = [NOW_S + 60 * i for i in range(10, 13)]
        rounds = (decide_in_thread(self._build_batch(now_s), now_s) for now_s in times)
        return min(asyncio.run(_measure_longest_block_s(decision_round)) for decision_round in rounds)

    def _cpu_percent(self, index: int) -> float:
        """CPU usage of a node in percent: some nodes are overutilized, some idle, the others between."""
        # 7919 is prime, so neighbours get distant ranks.
        rank = (index * 7919 % len(self._node_names)) / len(self._node_names)
        if rank < OVERUTILIZED_SHARE:
            return 85.0
        return 20.0 if rank < OVERUTILIZED_SHARE + IDLE_SHARE else 50.0

    def _build_batch(self, now_s: float) -> UsageBatch:
        pods_per_node = max(1, len(self._node_index_by_pod) // len(self._node_names))
        readings: list[UsageReading] = []
        for index, name in enumerate(self._node_names):
            millicores = NODE_MILLICORES * self._cpu_percent(index) / 100
            readings += [UsageReading(name, "cpu", millicores, now_s), UsageReading(name, "memory", NODE_BYTES, now_s)]
        for key, index in self._node_index_by_pod.items():
            millicores = NODE_MILLICORES * self._cpu_percent(index) / 100 / pods_per_node
            readings += [UsageReading(key, "cpu", millicores, now_s), UsageReading(key, "memory", POD_BYTES, now_s)]
        return UsageBatch(tuple(readings))


async def _measure_longest_block_s(work: Awaitable[None]) -> float:
    """The longest time in which the event loop runs nothing else, in CPU seconds of this process."""
    longest_s, last_sleep_s, task = 0.0, time.process_time(), asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0.001)
        now_s = time.process_time()
        longest_s, last_sleep_s = max(longest_s, now_s - last_sleep_s), now_s
    await task
    return longest_s


def _encode_pod(index: int, node: str) -> bytes:
    app = f"app-{index % 1000}"
    pod = make_pod_document(
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
