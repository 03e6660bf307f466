"""Pods are scheduled if the extender ends or freezes, or if another extender refuses the planned node."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kubekit.client import Client
from lab.controlplane import ControlPlane
from lab.scheduler_config import build_scheduler_config
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import Lead, Serve, create_group, create_pod, set_costs, wait_until_bound
from tests.support.controller_program import run_controller

pytestmark = [pytest.mark.usefixtures("kwok", "crds"), pytest.mark.timeout(600)]

POD_COUNT, BOUND_BEFORE_SIGNAL = 16, 4


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_pods_are_scheduled_after_the_extender_ends_or_freezes(
    client: Client,
    namespace: str,
    control_plane: ControlPlane,
    ready_node: MakeNode,
    scheduler: StartScheduler,
    signal_number: signal.Signals,
) -> None:
    for i in range(1, 9):
        await ready_node(f"n{i}", zone=f"z{(i + 1) // 2}", region="r")
    await set_costs(client, namespace, {("z1", "z2"): 5, ("z2", "z1"): 5})
    await create_group(client, namespace, {"P1": {"P2": 15}, "P2": {}}, members=POD_COUNT)
    async with run_controller(control_plane, "extender") as (program, url):
        # A short timeout, because the test only shows that kube-scheduler continues after it.
        await scheduler(build_scheduler_config(extender_url=url, extender_timeout_s=0.5))
        names = [f"pod-{i}" for i in range(POD_COUNT)]
        for i, name in enumerate(names):
            await create_pod(client, namespace, name, group="a1", workload="P1" if i % 2 else "P2")
            if i == POD_COUNT // 2:
                await wait_until_bound(client, namespace, *names[:BOUND_BEFORE_SIGNAL])
                os.kill(program.pid, signal_number)
        assert len(await wait_until_bound(client, namespace, *names)) == POD_COUNT


@asynccontextmanager
async def refusing_extender(zone_of: dict[str, str]) -> AsyncIterator[tuple[str, list[list[str]]]]:
    """Run another extender that refuses the whole zone of the first nodes in a request; yields its URL and each request's nodes."""
    requests: list[list[str]] = []

    async def answer(request: web.Request) -> web.Response:
        names = sorted((await request.json())["NodeNames"])
        requests.append(names)
        refused = {name: "no licence" for name in names if zone_of[name] == zone_of[requests[0][0]]}
        kept = [name for name in names if name not in refused]
        return web.json_response({"nodenames": kept, "failedNodes": refused, "error": ""})

    app = web.Application()
    app.router.add_post("/filter", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), requests


@pytest.mark.usefixtures("gate_policy")
async def test_a_pod_whose_planned_node_another_extender_refuses_is_bound_elsewhere(
    client: Client,
    namespace: str,
    control_plane: ControlPlane,
    ready_node: MakeNode,
    scheduler: StartScheduler,
    extender: Serve,
    lead: Lead,
) -> None:
    zone_of = {f"n{i}": f"z{(i + 1) // 2}" for i in range(1, 5)}
    for name, zone in zone_of.items():
        await ready_node(name, zone=zone, region="r")
    await set_costs(client, namespace, {("z1", "z2"): 5, ("z2", "z1"): 5})
    await create_group(client, namespace, {"P1": {"P2": 15}, "P2": {}}, members=1)
    async with extender() as url, lead(), refusing_extender(zone_of) as (other_url, requests):
        config = build_scheduler_config(extender_url=url)
        # kube-scheduler asks extenders that are not ignorable first, so this one is ignorable, as ours is.
        other = {"urlPrefix": other_url, "filterVerb": "filter", "nodeCacheCapable": True, "ignorable": True}
        config["extenders"].append(other)
        await scheduler(config)
        await create_pod(client, namespace, "p1", group="a1", workload="P1")
        bound = await wait_until_bound(client, namespace, "p1")
    (planned_node,) = requests[0]  # our extender passes no other
    assert zone_of[bound["p1"]] != zone_of[planned_node]
