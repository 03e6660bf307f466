"""Measures a plan of 100 workloads of 50 replicas on 10,000 hosts, by the planning process, and stalls of the loop.

Stalls of the leader's loop are processor time of one turn, so that other work on the machine does not count.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time

import psutil

from controller.scheduler.placement.planner import Plan
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.worker import PlanningProcess
from lab.polling import poll_until
from tests.bench.figures import Figures, make_figure
from tests.unit.controller.planning_cluster import PlanningCluster

HOSTS, HOST_CPU, WORKLOADS, REPLICAS = 10_000, 16, 100, 50
CALL_PROBABILITY = 0.02
GROUP, OVERSIZED_GROUP, WARM_UP_GROUP = "shop/big", "other/oversized", "warm/up"
OVERSIZED_REPLICAS = 50_000_000


def measure() -> Figures:
    return asyncio.run(_measure())


class ProcessPlannedCluster(PlanningCluster):
    """A cluster whose plans the planning process makes."""

    def __init__(self) -> None:
        super().__init__(HOSTS, HOST_CPU)
        self.process = PlanningProcess(self.node_cache, time_limit_s=60.0)

    async def solve(self, snapshot: GroupSnapshot, search_s: float) -> Plan:
        return await self.process.plan(snapshot)


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
    await _warm_up(cluster)
    start_cpu_s = _read_process_cpu_s()
    gc.collect()
    gc.freeze()  # as the manager does after its first sync

    timer = LoopTurnTimer()
    tasks = [asyncio.create_task(timer.run()), asyncio.create_task(cluster.plans.run())]
    started_s = time.monotonic()
    for group in (OVERSIZED_GROUP, GROUP):
        cluster.request_plan(group)
    await poll_until(lambda: len(cluster.enqueued) == 2, every_s=0.005)
    duration_s = time.monotonic() - started_s
    pods = cluster.list_pods(GROUP)
    await asyncio.sleep(0)  # The timer's turn ends here, so that the next one measures only this call.
    plan_state = cluster.plans.get_or_request(GROUP, pods)
    await asyncio.sleep(0)
    cpu_s = _read_process_cpu_s() - start_cpu_s
    for task in tasks:
        task.cancel()
    await cluster.process.stop()

    placed = len(plan_state.plan.targets) if plan_state.plan is not None else 0
    condition = cluster.plans.planned_condition(OVERSIZED_GROUP)
    reason = condition.reason if condition is not None else "no condition"
    stall_note = "leader's loop, while 50 million replicas are refused"
    return {
        "planning_5000_placed": make_figure(placed, "pods", WORKLOADS * REPLICAS, at_least=True),
        "planning_5000_worker": make_figure(cpu_s, "s", 2, f"processor time; {duration_s:.2f} s on the clock"),
        "planning_5000_stall": make_figure(timer.longest_s * 1000, "ms", 50, stall_note),
        "planning_oversized_group_refused": make_figure(int(reason == "TooManyPods"), "", 1, reason, at_least=True),
    }


def _build_cluster() -> ProcessPlannedCluster:
    """A cluster with both groups, without plans."""
    cluster = ProcessPlannedCluster()
    cluster.put_group(GROUP, _make_calls(), WORKLOADS * REPLICAS)
    for number in range(WORKLOADS):
        for replica in range(REPLICAS):
            cluster.add_pod(GROUP, f"w{number}-{replica}", f"w{number}", 1)
    cluster.declared.by_workload = {"P1": OVERSIZED_REPLICAS}
    cluster.add_group(OVERSIZED_GROUP, OVERSIZED_REPLICAS)
    cluster.add_pod(OVERSIZED_GROUP, "a", "P1", 1)
    return cluster


def _make_calls() -> dict[str, dict[str, int]]:
    """Random calls without cycles; each workload but the first has a caller."""
    rng = random.Random(1)
    pairs = {(rng.randrange(callee), callee) for callee in range(1, WORKLOADS)}
    for callee in range(1, WORKLOADS):
        pairs |= {(caller, callee) for caller in range(callee) if rng.random() < CALL_PROBABILITY}
    calls: dict[str, dict[str, int]] = {f"w{number}": {} for number in range(WORKLOADS)}
    for caller, callee in sorted(pairs):
        calls[f"w{caller}"][f"w{callee}"] = 10
    return calls


async def _warm_up(cluster: ProcessPlannedCluster) -> None:
    """Make a small plan, so that the process knows all hosts before the measurement."""
    cluster.add_group(WARM_UP_GROUP, 1)
    pod = cluster.add_pod(WARM_UP_GROUP, "w", "P1", 1)
    await cluster.plans.make_plan(WARM_UP_GROUP)
    cluster.delete_pod(pod.metadata.key)
    cluster.enqueued.clear()


def _read_process_cpu_s() -> float:
    """Processor time of the planning process."""
    (worker,) = (child for child in psutil.Process().children() if PlanningProcess.__module__ in child.cmdline())
    cpu_times = worker.cpu_times()
    return float(cpu_times.user + cpu_times.system)
