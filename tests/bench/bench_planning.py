"""Measures a plan of 100 workloads of 50 replicas on 10,000 hosts by the planning process, and stalls of the leader's event loop.

Stalls are processor time between two turns of the loop, so that other work on the machine does not count.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from pathlib import Path

from controller.scheduler.placement.planner import Plan
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.worker import PlanningProcess
from lab.polling import poll_until
from tests.bench.figures import Figures, figure
from tests.unit.controller.planning_cluster import PlanningCluster

HOSTS, WORKLOADS, REPLICAS, CPU = 10_000, 100, 50, 16
GROUP, OVERSIZED_GROUP, OVERSIZED_REPLICAS = "shop/big", "other/oversized", 50_000_000


def measure() -> Figures:
    """Measure planning and return its figures."""
    return asyncio.run(_measure())


class LoopTurnTimer:
    """Measures the longest turn of the event loop, in processor time of its thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        """Measure every turn until cancelled."""
        turn_start_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_s, turn_start_s = max(self.longest_s, now_s - turn_start_s), now_s


async def _measure() -> Figures:
    cluster = _build_cluster()
    process = PlanningProcess(cluster.node_cache, time_limit_s=60.0)
    await _warm_up(process, cluster)
    before_s = _processor_s(process)
    gc.collect()
    gc.freeze()  # as the manager does after its first sync

    async def solve(snapshot: GroupSnapshot, _: float) -> Plan:
        return await process.plan(snapshot)

    cluster.plans._solve = solve
    timer = LoopTurnTimer()
    tasks = [asyncio.create_task(timer.run()), asyncio.create_task(cluster.plans.run())]
    start_s = time.monotonic()
    for group in (OVERSIZED_GROUP, GROUP):
        cluster.plans.get_or_request(group, cluster.list_pods(group))
    await poll_until(lambda: len(cluster.enqueued) == 2, every_s=0.005)
    duration_s = time.monotonic() - start_s
    pods = cluster.list_pods(GROUP)
    await asyncio.sleep(0)  # The timer's turn ends here, so that the next one measures only this call.
    plan_state = cluster.plans.get_or_request(GROUP, pods)
    await asyncio.sleep(0)
    worker_s = _processor_s(process) - before_s
    for task in tasks:
        task.cancel()
    await process.stop()

    placed = len(plan_state.plan.targets) if plan_state.plan is not None else 0
    refused = cluster.plans.planned_condition(OVERSIZED_GROUP)
    stall_ms, reason = timer.longest_s * 1000, refused.reason if refused is not None else "no condition"
    return {
        "planning_5000_placed": figure(placed, "pods", WORKLOADS * REPLICAS, at_least=True),
        "planning_5000_worker": figure(worker_s, "s", 2, f"processor time; {duration_s:.2f} s on the clock"),
        "planning_5000_stall": figure(stall_ms, "ms", 50, "leader's loop, while 50 million replicas are refused"),
        "planning_oversized_group_refused": figure(int(reason == "TooManyPods"), "", 1, reason, at_least=True),
    }


def _build_cluster() -> PlanningCluster:
    """A cluster with both groups, without plans."""
    cluster = PlanningCluster(HOSTS, CPU)
    cluster.put_group(GROUP, _make_calls(), WORKLOADS * REPLICAS)
    for number in range(WORKLOADS):
        for replica in range(REPLICAS):
            cluster.add_pod(GROUP, f"w{number}-{replica}", f"w{number}", 1)
    cluster.declared.by_workload = {"P1": OVERSIZED_REPLICAS}
    cluster.add_group(OVERSIZED_GROUP, OVERSIZED_REPLICAS)
    cluster.add_pod(OVERSIZED_GROUP, "a", "P1", 1)
    return cluster


def _make_calls() -> dict[str, dict[str, int]]:
    rng = random.Random(1)
    pairs = {(rng.randrange(j), j) for j in range(1, WORKLOADS)}
    pairs |= {(i, j) for j in range(1, WORKLOADS) for i in range(j) if rng.random() < 0.02}
    return {f"w{i}": {f"w{j}": 10 for a, j in sorted(pairs) if a == i} for i in range(WORKLOADS)}


async def _warm_up(process: PlanningProcess, cluster: PlanningCluster) -> None:
    """Make a small plan, so that the process knows all hosts before the measurement."""
    cluster.add_group("warm/up", 1)
    cluster.add_pod("warm/up", "w", "P1", 1)
    snapshot = cluster.plans._build_snapshot("warm/up", cluster.list_pods("warm/up"))
    await process.plan(snapshot)
    cluster.pods.pop("warm/w")


def _processor_s(process: PlanningProcess) -> float:
    """Processor time of the planning process."""
    assert process._process is not None
    fields = Path(f"/proc/{process._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
