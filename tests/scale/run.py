"""One scale run from beginning to end: boot, fill, start our programs, live, read the figures; everything is gone afterwards."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import aiohttp
import psutil

from kubekit.client import Client
from kubekit.config import load_cluster_config
from kubekit.lease import Lease
from kubekit.wire import LEASES
from lab.cluster import Lab
from lab.controlplane import find_free_ports
from lab.controlplane_commands import LOOPBACK
from lab.credentials import credentials_of
from lab.errors import BootError
from lab.installation import CENTRAL_PROGRAMS, MANIFESTS, start_central_program
from lab.polling import poll_until
from lab.programs import answers_ok
from lab.progress import ProgressPrinter
from netperf.contract import AGENT, CONTROLLER, NETAWARE_NAMESPACE
from tests.scale import figures, populate
from tests.scale.agents import ZoneAgents
from tests.scale.figures import Levels, Moment, ScaleReport
from tests.scale.life import Life
from tests.scale.objects import zone_name
from tests.scale.populate import Sizes
from tests.support.etcd import create_client_context

# Ten thousand kubelets renew their Leases a thousand times a second, which two cores do not bear: here there are no kubelets, the
# node controller is patient, and no controller writes to every node that it meets.
_MANAGER = ("--node-monitor-grace-period=600m", "--node-monitor-period=10s", "--controllers=*,-ttl-controller")
_SETTLE_S, _LOOK_EVERY_S = 30.0, 5.0
_DEADLINE_S = 600.0


async def run_scale(sizes: Sizes, *, name: str, say: ProgressPrinter) -> ScaleReport:
    """Run a cluster of these sizes in a lab of its own, measure it, and clean up.

    Raises:
        LabError: the control plane did not come up, or our programs did not become ready.
    """
    started = time.monotonic()
    async with Lab.start(None, name=name, components=()) as lab, AsyncExitStack() as stack:
        plane = lab.control_plane
        manager = await plane.start_controller_manager(_MANAGER)
        say("control plane is up")
        admin = await stack.enter_async_context(Client(lab.client_config, timeout_s=60.0))
        await populate.install_rules(lab)
        await populate.create_namespaces(admin, sizes)
        # It would take every node for a new one of a cluster that just begins, and write to it more than once.
        await lab.programs.stop(manager)
        nodes = await populate.restore(plane, sizes, say)
        await plane.start_controller_manager(_MANAGER)
        controller_url = await _start_programs(lab)
        say("controller and extender are ready")
        life, beside = Life(admin, nodes), await stack.enter_async_context(endless())
        life.deployments = await populate.create_groups(admin, sizes)
        zones = await _start_agents(lab, sizes, life, beside, stack)
        say(f"the cluster stands after {time.monotonic() - started:.0f} s, and every zone pair has a first sample")
        # What beginning costs is no part of a day's life.
        await asyncio.sleep(_SETTLE_S)
        before = await _read(lab, admin, controller_url)
        for zone in zones:
            zone.plan_bytes = 0
            beside.create_task(zone.run())
        beside.create_task(life.rollouts())
        length_s = sizes.minutes * 60
        # After a third of the time, for a fifth of it: that leaves room for the way back.
        failing = asyncio.create_task(life.fail_zone(sizes.zones // 2, length_s / 3, min(length_s / 5, 300.0)))
        levels = await _watch_levels(lab, length_s)
        await failing
        after = await _read(lab, admin, controller_url)
        plan_bytes = sum(zone.plan_bytes for zone in zones)
        return figures.report(sizes, before, after, levels=levels, plan_bytes=plan_bytes, done=life.done)


class _EndedError(Exception):
    """The block is left, and what runs beside it ends."""


@asynccontextmanager
async def endless() -> AsyncIterator[asyncio.TaskGroup]:
    """For tasks that run until the block is left; the failure of one ends the block, since the figures would be wrong."""
    with suppress(_EndedError):
        try:
            async with asyncio.TaskGroup() as group:
                yield group
                raise _EndedError
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None


async def _start_programs(lab: Lab) -> str:
    """Controller, extender and scheduler, with the configuration as it is shipped and no pods of theirs; the controller's URL."""
    urls = [f"http://{LOOPBACK}:{port}" for port in find_free_ports(2)]
    for (name, account, verb), url in zip(CENTRAL_PROGRAMS, urls, strict=True):
        kubeconfig = await lab.control_plane.write_token_kubeconfig(NETAWARE_NAMESPACE, account, file_name=name)
        config = MANIFESTS / "base" / "controller" / "config.yaml"
        start_central_program(lab.programs, name, verb, url, kubeconfig=kubeconfig, config=config)
    for url in urls:
        ready, what = partial(answers_ok, f"{url}/readyz", 5), f"{url} to be ready"
        await poll_until(ready, what, _DEADLINE_S, every_s=0.5, on_retry=lab.programs.check_running, error=BootError)
    await lab.control_plane.start_scheduler(extender_url=urls[1])
    return urls[0]


async def _start_agents(
    lab: Lab, sizes: Sizes, life: Life, beside: asyncio.TaskGroup, stack: AsyncExitStack
) -> list[ZoneAgents]:
    """Simulated agents of all zones, which watch their plans and have written what the round before would have left."""
    kubeconfig = await lab.control_plane.write_token_kubeconfig(NETAWARE_NAMESPACE, AGENT)
    client = await stack.enter_async_context(Client(load_cluster_config(credentials_of(kubeconfig)), timeout_s=60.0))
    names = map(zone_name, range(sizes.zones))
    zones = [ZoneAgents(client, name, sizes.nodes_per_zone, life.dead.__contains__) for name in names]
    for zone in zones:
        beside.create_task(zone.store())
    async with asyncio.timeout(_DEADLINE_S):
        await asyncio.gather(*(zone.fill() for zone in zones))
    return zones


async def _watch_levels(lab: Lab, length_s: float) -> list[Levels]:
    """Read the controller's memory and processor time until the time is over."""
    begun, levels = time.monotonic(), [_levels(lab)]
    while (elapsed_s := time.monotonic() - begun) < length_s:
        await asyncio.sleep(min(_LOOK_EVERY_S, length_s - elapsed_s))
        lab.programs.check_running()
        levels.append(_levels(lab))
    return levels


def _levels(lab: Lab) -> Levels:
    controller = next(program for program in lab.programs if program.name == "controller")
    rss, cpu_s = 0, 0.0
    for number, process in enumerate(controller.process_tree()):
        with suppress(psutil.Error):
            rss = process.memory_info().rss if number == 0 else rss
            cpu_s += sum(process.cpu_times()[:2])
    return Levels(time.monotonic(), rss, cpu_s)


async def _read(lab: Lab, admin: Client, controller_url: str) -> Moment:
    server = (await admin.request("GET", "/metrics", timeout_s=120.0)).decode()
    lease = await admin.get(LEASES, CONTROLLER, Lease, namespace=NETAWARE_NAMESPACE)
    etcd = await _fetch(f"{lab.control_plane.etcd}/metrics", create_client_context(lab.control_plane))
    readings = await asyncio.to_thread(figures.read, (server, etcd, await _fetch(f"{controller_url}/metrics")))
    return Moment(readings, lease.spec.lease_transitions or 0)


async def _fetch(url: str, context: ssl.SSLContext | None = None) -> str:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=context or True) as answer:
        return await answer.text()
