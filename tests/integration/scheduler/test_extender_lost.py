"""The extender ends or freezes in the middle of scheduling, as a process does on a real node: pods are scheduled all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from kubekit.client import Client
from lab.controlplane import ControlPlane, free_ports
from lab.programs import Program
from lab.scheduling import build_config
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import create_group, create_pod, set_costs, until_bound

pytestmark = pytest.mark.usefixtures("kwok", "crds")

COUNT, BEFORE = 16, 4


@asynccontextmanager
async def extender_process(plane: ControlPlane) -> AsyncIterator[tuple[Program, str]]:
    """``python -m controller extender``, ready; its process and its address."""
    port = free_ports(1)[0]
    argv = [
        sys.executable,
        "-m",
        "controller",
        "extender",
        f"--kubeconfig={plane.kubeconfig}",
        f"--listen=127.0.0.1:{port}",
    ]
    program = plane.programs.start(f"extender-{uuid.uuid4().hex[:6]}", argv)
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            while not await _is_ready(session, url):
                await asyncio.sleep(0.1)
        yield program, url
    finally:
        await plane.programs.stop(program)


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_an_extender_lost_in_the_middle_of_scheduling_keeps_no_pod_waiting(
    client: Client,
    namespace: str,
    control_plane: ControlPlane,
    ready_node: MakeNode,
    scheduler: StartScheduler,
    number: signal.Signals,
) -> None:
    for i in range(1, 9):
        await ready_node(f"n{i}", zone=f"z{(i + 1) // 2}", region="r")
    await set_costs(client, namespace, {("z1", "z2"): 5, ("z2", "z1"): 5})
    await create_group(client, namespace, {"P1": [("P2", 15)], "P2": []}, members=COUNT)
    async with extender_process(control_plane) as (program, url):
        # The shipped deadline is longer; what is shown is that a silence ends with it.
        config = build_config(control_plane.kubeconfig, extender_url=url, extender_timeout_s=0.5)
        await scheduler(config)
        names = [f"pod-{i}" for i in range(COUNT)]
        for i, name in enumerate(names):
            await create_pod(client, namespace, name, group="a1", workload="P1" if i % 2 else "P2")
            if i == COUNT // 2:
                await until_bound(client, namespace, *names[:BEFORE])
                os.kill(program.pid, number)
        assert len(await until_bound(client, namespace, *names, deadline_s=60)) == COUNT
