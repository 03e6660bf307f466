"""Pods are scheduled if the extender ends or freezes, or if another extender refuses the planned node."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lab.controlplane import ControlPlane
from lab.scheduler_config import build_scheduler_config
from tests.integration.scheduler.harness import SchedulerHarness
from tests.support.bodies import make_symmetric_costs
from tests.support.controller_program import run_controller

pytestmark = pytest.mark.timeout(600)

POD_COUNT = 16
BOUND_BEFORE_SIGNAL = 4
"""Pods that are surely bound when the extender gets the signal, after half of all are created."""
COSTS = make_symmetric_costs({("z1", "z2"): 5})


@asynccontextmanager
async def run_refusing_extender(zone_by_node: dict[str, str]) -> AsyncIterator[tuple[str, list[list[str]]]]:
    """Run another extender that refuses the whole zone of the first node of its first request.

    Yields its URL, and the nodes of each request.
    """
    requests: list[list[str]] = []

    async def filter_nodes(request: web.Request) -> web.Response:
        nodes = sorted((await request.json())["NodeNames"])
        requests.append(nodes)
        refused_zone = zone_by_node[requests[0][0]]
        kept = [name for name in nodes if zone_by_node[name] != refused_zone]
        failed = {name: "no licence" for name in nodes if name not in kept}
        return web.json_response({"nodenames": kept, "failedNodes": failed, "error": ""})

    app = web.Application()
    app.router.add_post("/filter", filter_nodes)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), requests


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_pods_are_scheduled_after_the_extender_ends_or_freezes(
    harness: SchedulerHarness, control_plane: ControlPlane, signal_number: signal.Signals
) -> None:
    for i in range(1, 9):
        await harness.create_ready_node(f"n{i}", zone=f"z{(i + 1) // 2}", region="r")
    await harness.set_costs(COSTS)
    await harness.create_group({"P1": {"P2": 15}, "P2": {}}, members=POD_COUNT)
    async with run_controller(control_plane, "extender") as (program, url):
        # A short timeout, because the test only shows that kube-scheduler continues after it.
        await harness.start_scheduler(build_scheduler_config(extender_url=url, extender_timeout_s=0.5))
        names = [f"pod-{i}" for i in range(POD_COUNT)]
        for i, name in enumerate(names):
            await harness.create_pod(name, group="a1", workload="P1" if i % 2 else "P2")
            if i == POD_COUNT // 2:
                await harness.wait_until_bound(*names[:BOUND_BEFORE_SIGNAL])
                os.kill(program.pid, signal_number)
        assert len(await harness.wait_until_bound(*names)) == POD_COUNT


@pytest.mark.usefixtures("gate_policy")
async def test_a_pod_whose_planned_node_another_extender_refuses_is_bound_elsewhere(
    harness: SchedulerHarness, control_plane: ControlPlane
) -> None:
    zone_by_node = {f"n{i}": f"z{(i + 1) // 2}" for i in range(1, 5)}
    for name, zone in zone_by_node.items():
        await harness.create_ready_node(name, zone=zone, region="r")
    await harness.set_costs(COSTS)
    await harness.create_group({"P1": {"P2": 15}, "P2": {}}, members=1)
    async with (
        harness.run_extender() as url,
        harness.run_leader(),
        run_refusing_extender(zone_by_node) as (other_url, requests),
    ):
        config = build_scheduler_config(extender_url=url)
        # kube-scheduler asks extenders that are not ignorable first, so this one is ignorable, as ours is.
        extender = {"urlPrefix": other_url, "filterVerb": "filter", "nodeCacheCapable": True, "ignorable": True}
        config["extenders"].append(extender)
        await harness.start_scheduler(config)
        await harness.create_pod("p1", group="a1", workload="P1")
        node_by_pod = await harness.wait_until_bound("p1")
    (planned_node,) = requests[0]  # our extender passes only this one
    assert zone_by_node[node_by_pod["p1"]] != zone_by_node[planned_node]
