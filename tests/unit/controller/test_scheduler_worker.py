"""The planning process plans as `plan_group` does, follows the cluster, and goes on after a plan that failed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import pytest

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodReader
from controller.scheduler.placement.planner import Plan, PlanningError, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.worker import BATCH_SIZE, PlanningProcess
from kubekit.client import Client
from tests.unit.controller.components import fill_store
from tests.unit.controller.groups import make_bound_pod, make_lone_workload, make_snapshot, make_zone_node


class ObservedCluster:
    """Stores of nodes and pods, and a node cache that follows them."""

    def __init__(self, node_count: int) -> None:
        cache = ClusterCache(cast("Client", None), "netaware-system")
        self.nodes, self.pods = cache.nodes, cache.pods
        self.node_cache = NodeCache()
        self.node_cache.subscribe_to(self.nodes, self.pods)
        fill_store(self.nodes, [make_zone_node(f"n{i}", f"z{i % 3}", "4") for i in range(node_count)])

    def add_bound_pod(self, name: str, node_name: str, cpu: str) -> None:
        fill_store(self.pods, [PodReader().read(make_bound_pod(name, "other", node_name, cpu))])

    def make_snapshot(self, pod_count: int) -> GroupSnapshot:
        """A group of pods that request a core each, without dependencies."""
        case = make_lone_workload(pod_count, slots=(1,))
        return make_snapshot(case, hosts=self.node_cache.hosts, used=self.node_cache.requested)


@asynccontextmanager
async def run_process(cluster: ObservedCluster, time_limit_s: float = 60.0) -> AsyncIterator[PlanningProcess]:
    planner = PlanningProcess(cluster.node_cache, time_limit_s=time_limit_s)
    planner.subscribe_to(cluster.nodes, cluster.pods)
    try:
        yield planner
    finally:
        await planner.stop()


def read_pid(planner: PlanningProcess) -> int:
    assert planner._process is not None
    return planner._process.pid


def assert_same_targets(plan: Plan, other: Plan) -> None:
    assert dict(plan.targets) == dict(other.targets)
    assert set(plan.unplaced) == set(other.unplaced)


async def test_the_process_plans_like_the_planner_and_follows_the_cluster() -> None:
    node_count = 3 * BATCH_SIZE
    cluster = ObservedCluster(node_count)
    async with run_process(cluster) as planner:
        snapshot = cluster.make_snapshot(2 * BATCH_SIZE + 50)
        assert_same_targets(await planner.plan(snapshot), plan_group(snapshot))

        for i in range(node_count - 1):
            cluster.add_bound_pod(f"b{i}", f"n{i}", "4")
        cluster.nodes._set("n1", None)
        plan = await planner.plan(cluster.make_snapshot(6))  # 4 fit on the only free node.
        assert {target.node for target in plan.targets.values()} == {f"n{node_count - 1}"}
        assert len(plan.unplaced) == 2

        cluster.pods._set("default/b7", None)
        assert (await planner.plan(cluster.make_snapshot(6))).unplaced == ()
        snapshot = cluster.make_snapshot(3)
        assert_same_targets(await planner.plan(snapshot), plan_group(snapshot))


@pytest.mark.parametrize(
    ("time_limit_s", "signal_number", "error", "reason"),
    [
        pytest.param(0.2, signal.SIGSTOP, "no plan was found within 0.2 s", "DeadlineExceeded", id="late"),
        pytest.param(60.0, signal.SIGKILL, "process ended", "PlannerFailed", id="ended"),
    ],
)
async def test_a_process_that_is_late_or_ends_fails_only_its_current_plan(
    time_limit_s: float, signal_number: signal.Signals, error: str, reason: str
) -> None:
    cluster = ObservedCluster(3)
    async with run_process(cluster, time_limit_s) as planner:
        await planner.plan(cluster.make_snapshot(1))
        old_pid = read_pid(planner)
        os.kill(old_pid, signal.SIGSTOP)  # so that the plan is not ready before the signal
        plan = asyncio.create_task(planner.plan(cluster.make_snapshot(2)))
        await asyncio.sleep(0.05)
        os.kill(old_pid, signal_number)
        with pytest.raises(PlanningError, match=error) as caught:
            await plan
        assert caught.value.reason == reason

        assert len((await planner.plan(cluster.make_snapshot(2))).targets) == 2
        with pytest.raises(ProcessLookupError):
            os.kill(old_pid, 0)


async def test_a_failure_of_the_planner_is_reported_and_the_process_goes_on() -> None:
    cluster = ObservedCluster(3)
    async with run_process(cluster) as planner:
        broken = msgspec.structs.replace(cluster.make_snapshot(1), replicas={"w0": "many"})
        with pytest.raises(PlanningError, match="the planner failed: TypeError"):
            await planner.plan(broken)
        pid = read_pid(planner)
        assert len((await planner.plan(cluster.make_snapshot(1))).targets) == 1
        assert read_pid(planner) == pid
