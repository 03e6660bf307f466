"""The planning process plans as `plan_group` does, follows the cluster, and goes on after a plan that failed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from controller.cluster.costs import CostTable
from controller.cluster.crds import WeightInfo
from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodReader
from controller.scheduler.placement.call_costs import IN_ZONE_US
from controller.scheduler.placement.planner import Plan, PlanningError, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.worker import PlanningProcess
from netperf.contract import REGION_LABEL
from tests.support.bodies import make_weight_body
from tests.unit.controller import groups


class Store:
    """A store that calls its subscribers after each change."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.handlers: list[Any] = []

    def subscribe(self, handler: Any) -> None:
        self.handlers.append(handler)

    def put(self, key: str, new: Any) -> None:
        old = self.items.pop(key, None)
        if new is not None:
            self.items[key] = new
        for handler in self.handlers:
            handler(key, old, new)


class Cluster:
    def __init__(self, nodes: int) -> None:
        self.node_cache, self.nodes, self.pods = NodeCache(), Store(), Store()
        self.node_cache.subscribe_to(self.nodes, self.pods)  # type: ignore[arg-type]
        self.add_nodes(nodes)

    def add_nodes(self, count: int) -> None:
        for i in range(count):
            self.nodes.put(f"n{i}", groups.make_zone_node(f"n{i}", f"z{i % 3}", "4"))

    def bind(self, name: str, node: str, cpu: str) -> None:
        self.pods.put(name, PodReader().read(groups.make_bound_pod(name, "other", node, cpu)))

    def snapshot(self, pods: int) -> GroupSnapshot:
        """A group of pods that request a core each, without dependencies."""
        case = groups.GroupCase((pods,), (), ((0,),), (1,))
        return groups.make_snapshot(case, hosts=self.node_cache.hosts, used=self.node_cache.requested)


@asynccontextmanager
async def running_process(cluster: Cluster, time_limit_s: float = 60.0) -> AsyncIterator[PlanningProcess]:
    planner = PlanningProcess(cluster.node_cache, time_limit_s=time_limit_s)
    planner.subscribe_to(cluster.nodes, cluster.pods)  # type: ignore[arg-type]
    try:
        yield planner
    finally:
        await planner.stop()


def has_same_targets(found: Plan, wanted: Plan) -> bool:
    return dict(found.targets) == dict(wanted.targets) and set(found.unplaced) == set(wanted.unplaced)


async def test_the_process_plans_like_the_planner_and_follows_the_cluster() -> None:
    cluster = Cluster(600)
    async with running_process(cluster) as planner:
        many = cluster.snapshot(450)
        assert has_same_targets(await planner.plan(many), plan_group(many))
        for i in range(599):
            cluster.bind(f"b{i}", f"n{i}", "4")
        cluster.nodes.put("n1", None)
        left = cluster.snapshot(6)
        plan = await planner.plan(left)
        assert {target.node for target in plan.targets.values()} == {"n599"}
        assert len(plan.unplaced) == 2
        cluster.pods.put("b7", None)
        assert (await planner.plan(cluster.snapshot(6))).unplaced == ()
        few = cluster.snapshot(3)
        assert has_same_targets(await planner.plan(few), plan_group(few))


async def test_after_a_plan_beyond_its_deadline_the_next_plan_is_made() -> None:
    cluster = Cluster(3)
    async with running_process(cluster) as planner:
        await planner.plan(cluster.snapshot(1))
        assert planner._process is not None
        first = planner._process.pid
        os.kill(first, signal.SIGSTOP)
        planner._time_limit_s = 0.2
        stopped = asyncio.create_task(planner.plan(cluster.snapshot(2)))
        with pytest.raises(PlanningError, match=r"no plan was found within 0.2 s") as caught:
            await stopped
        assert caught.value.reason == "DeadlineExceeded"
        planner._time_limit_s = 60.0
        assert len((await planner.plan(cluster.snapshot(2))).targets) == 2
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


async def test_a_process_that_ends_fails_only_its_current_plan() -> None:
    cluster = Cluster(3)
    async with running_process(cluster) as planner:
        await planner.plan(cluster.snapshot(1))
        assert planner._process is not None
        os.kill(planner._process.pid, signal.SIGSTOP)
        plan = asyncio.create_task(planner.plan(cluster.snapshot(1)))
        await asyncio.sleep(0.05)
        os.kill(planner._process.pid, signal.SIGKILL)
        with pytest.raises(PlanningError, match="process ended"):
            await plan
        assert len((await planner.plan(cluster.snapshot(1))).targets) == 1


async def test_a_failure_of_the_planner_is_reported_and_the_process_goes_on() -> None:
    cluster = Cluster(3)
    async with running_process(cluster) as planner:
        broken = msgspec.structs.replace(cluster.snapshot(1), replicas={"w0": "many"})
        with pytest.raises(PlanningError, match="the planner failed: TypeError"):
            await planner.plan(broken)
        assert planner._process is not None
        pid = planner._process.pid
        assert len((await planner.plan(cluster.snapshot(1))).targets) == 1
        assert planner._process.pid == pid


def random_costs(rng: random.Random) -> CostTable:
    """40 zones in four regions, zone i in region i modulo 4; costs at random."""
    regions, zones = [f"r{r}" for r in range(4)], [f"z{z:02}" for z in range(40)]
    between_regions, between_zones = (
        {(a, b): rng.randint(2, 20) for a in names for b in names if a != b} for names in (regions, zones)
    )
    return CostTable(msgspec.convert(make_weight_body(between_zones, between_regions), WeightInfo))


def test_a_search_without_memory_ends_its_process_with_a_message() -> None:
    """The planning process then starts again, see `test_a_process_that_ends_fails_only_its_current_plan`."""
    script = """
import resource
from controller.scheduler.placement.native_search import NativeProblem
from tests.unit.controller.search_problems import make_problem
problem = NativeProblem(make_problem([0] * 20_000, [1] * 2_000))  # Needs 160 MB for replicas by workload and host.
used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (32 << 20),) * 2)
problem.search(None, seed=1, steps=0, time_limit_s=1.0)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGABRT, "netaware: no memory for the search of a plan\n")


def test_a_plan_over_forty_zones_rarely_splits_a_group_between_two() -> None:
    """Each group has ten pods, which fit into many zones."""
    rng = random.Random(1)
    costs = random_costs(rng)
    places = [(f"h{number:03}", number % 40) for number in range(400)]
    nodes = [groups.make_zone_node(name, f"z{z:02}", "32", labels={REGION_LABEL: f"r{z % 4}"}) for name, z in places]
    split_count = 0
    for _ in range(15):
        pairs = [(i, j, 20) for i in range(10) for j in range(i + 1, 10) if rng.random() < 0.3]
        case = groups.GroupCase((1,) * 10, tuple(pairs), ((0,),), (1,))
        plan = groups.plan_case(case, nodes, costs=costs, spread="soft", objective="time")
        split_count += plan.latency_us > IN_ZONE_US
    assert split_count <= 1
