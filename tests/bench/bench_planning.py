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
from tests.bench.figures import Figures, figure
from tests.unit.controller.leader import LeaderCluster

HOSTS, WORKLOADS, REPLICAS, CPU = 10_000, 100, 50, 16
GROUP, HUGE_GROUP = "shop/big", "evil/phantoms"


def measure() -> Figures:
    """All figures."""
    return asyncio.run(_measure())


class LoopMonitor:
    """Measures the longest turn of the event loop, in processor time of its thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s, before = max(self.longest_s, now - before), now


async def _measure() -> Figures:
    world = LeaderCluster(HOSTS, CPU)
    world.put_group(GROUP, _make_calls(), 5000)
    for number in range(WORKLOADS):
        for replica in range(REPLICAS):
            world.add_pod(GROUP, f"w{number}-{replica}", f"w{number}", 1)
    world.declared.elsewhere["evil"] = {"P1": 50_000_000}
    world.add_group(HUGE_GROUP, 50_000_000)
    world.add_pod(HUGE_GROUP, "a", "P1", 1)
    process = PlanningProcess(world.node_cache, deadline_s=60.0)
    await _warm_up(process, world)
    before_s = _processor_s(process)
    gc.collect()
    gc.freeze()  # as the manager does after its first sync

    async def solve(snapshot: GroupSnapshot, _: float) -> Plan:
        return await process.plan(snapshot)

    world.plans._solve = solve
    monitor = LoopMonitor()
    watching = asyncio.create_task(monitor.run())
    working = asyncio.create_task(world.plans.run())
    began = time.monotonic()
    for group in (HUGE_GROUP, GROUP):
        world.plans.get_or_request(group, world.pods_of(group))
    while len(world.woken) < 2:
        await asyncio.sleep(0.005)
    took_s = time.monotonic() - began
    pods = world.pods_of(GROUP)
    await asyncio.sleep(0)
    plan_state = world.plans.get_or_request(GROUP, pods)
    await asyncio.sleep(0)
    worker_s = _processor_s(process) - before_s
    for task in (working, watching):
        task.cancel()
    await process.stop()
    placed = len(plan_state.plan.targets) if plan_state.plan is not None else 0
    refused = world.plans.planned_condition(HUGE_GROUP)
    stall_ms, reason = monitor.longest_s * 1000, refused.reason if refused is not None else "nothing"
    return {
        "planning_5000_placed": figure(placed, "pods", WORKLOADS * REPLICAS, at_least=True),
        "planning_5000_worker": figure(worker_s, "s", 2, f"processor time; {took_s:.2f} s on the clock"),
        "planning_5000_stall": figure(stall_ms, "ms", 50, "of the leader's loop, 50 million phantoms beside"),
        "planning_phantoms_refused": figure(int(reason == "TooManyPods"), "", 1, reason, at_least=True),
    }


def _make_calls() -> dict[str, dict[str, int]]:
    rng = random.Random(1)
    pairs = {(rng.randrange(j), j) for j in range(1, WORKLOADS)}
    pairs |= {(i, j) for j in range(1, WORKLOADS) for i in range(j) if rng.random() < 0.02}
    return {f"w{i}": {f"w{j}": 10 for a, j in sorted(pairs) if a == i} for i in range(WORKLOADS)}


async def _warm_up(process: PlanningProcess, world: LeaderCluster) -> None:
    """Make a small plan, so that the process knows all hosts before the measurement."""
    world.add_group("warm/up", 1)
    world.add_pod("warm/up", "w", "P1", 1)
    snapshot = world.plans._build_snapshot("warm/up", world.pods_of("warm/up"))
    await process.plan(snapshot)
    world.pods.pop("warm/w")


def _processor_s(process: PlanningProcess) -> float:
    """Processor time of the planning process."""
    assert process._process is not None
    fields = Path(f"/proc/{process._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
