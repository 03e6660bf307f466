"""Runs a scale measurement in a new lab: fills it, starts our programs, changes the cluster, and reads the figures."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack, suppress
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
from lab.credentials import credentials_dir
from lab.installation import CENTRAL_PROGRAMS, MANIFESTS, start_central_program
from lab.programs import answers_ok
from lab.progress import ProgressPrinter
from netperf.contract import AGENT, CONTROLLER, NETAWARE_NAMESPACE
from tests.scale import figures, populate
from tests.scale.figures import ControllerUsage, MetricsSnapshot, ScaleReport
from tests.scale.populate import Sizes, zone_name
from tests.scale.simulation import ClusterChanges, ZoneAgents
from tests.support.etcd import create_client_context
from tests.support.tasks import supervised_tasks

_CONTROLLER_MANAGER_FLAGS = (
    # No kubelet renews Leases, which the node controller must not notice.
    "--node-monitor-grace-period=600m",
    "--node-monitor-period=10s",
    # The ttl controller would write to every node.
    "--controllers=*,-ttl-controller",
)
_WARM_UP_S, _USAGE_INTERVAL_S = 30.0, 5.0
_START_TIMEOUT_S = 600.0


async def run_scale(sizes: Sizes, *, name: str, print_progress: ProgressPrinter) -> ScaleReport:
    """Measure a cluster of these sizes, and remove it. Raises LabError if a program does not start."""
    started_s = time.monotonic()
    async with Lab.start(None, name=name, components=()) as lab, AsyncExitStack() as stack:
        plane = lab.control_plane
        manager = await plane.start_controller_manager(_CONTROLLER_MANAGER_FLAGS)
        print_progress("control plane is up")
        admin = await stack.enter_async_context(Client(lab.client_config, timeout_s=60.0))
        await populate.install_rules(lab)
        await populate.create_namespaces(admin, sizes)
        # The controller manager would write to every new node.
        await lab.programs.stop(manager)
        names_by_zone = await populate.put_nodes_and_pods(plane, sizes, print_progress)
        await plane.start_controller_manager(_CONTROLLER_MANAGER_FLAGS)
        controller_url = await _start_programs(lab)
        print_progress("controller and extender are ready")
        changes = ClusterChanges(admin, names_by_zone)
        changes.deployments = await populate.create_groups(admin, sizes)
        agents = await _start_agents(lab, sizes, changes, stack)
        print_progress(
            f"the cluster is complete after {time.monotonic() - started_s:.0f} s, and every zone pair has a first sample"
        )
        # The load of the start is not measured.
        await asyncio.sleep(_WARM_UP_S)
        before = await _take_metrics_snapshot(lab, admin, controller_url)
        for zone_agents in agents:
            zone_agents.plan_bytes = 0
        await stack.enter_async_context(supervised_tasks({agent.zone: agent.probe() for agent in agents}))
        if changes.deployments:
            await stack.enter_async_context(supervised_tasks({"rollouts": changes.roll_out()}))
        duration_s = sizes.minutes * 60
        # The zone fails early enough to recover within the measurement.
        failure = changes.fail_zone(sizes.zones // 2, delay_s=duration_s / 3, duration_s=min(duration_s / 5, 300.0))
        zone_failure = asyncio.create_task(failure)
        usages = await _record_usage(lab, duration_s)
        await zone_failure
        after = await _take_metrics_snapshot(lab, admin, controller_url)
        plan_bytes = sum(zone_agents.plan_bytes for zone_agents in agents)
        return figures.compute_report(
            sizes, before, after, usages=usages, plan_bytes=plan_bytes, changes=changes.counts
        )


async def _start_programs(lab: Lab) -> str:
    """Start controller, extender and scheduler with the shipped configuration; returns the controller's URL."""
    controller_url, extender_url = urls = [f"http://{LOOPBACK}:{port}" for port in find_free_ports(2)]
    for (name, account, verb), url in zip(CENTRAL_PROGRAMS, urls, strict=True):
        kubeconfig = await lab.control_plane.write_token_kubeconfig(NETAWARE_NAMESPACE, account, file_name=name)
        config = MANIFESTS / "base" / "controller" / "config.yaml"
        start_central_program(lab.programs, name, verb, url, kubeconfig=kubeconfig, config=config)
    for url in urls:
        is_ready = partial(answers_ok, f"{url}/readyz", 5)
        await lab.programs.wait_until(is_ready, f"{url} to be ready", _START_TIMEOUT_S, every_s=0.5)
    await lab.control_plane.start_scheduler(extender_url=extender_url)
    return controller_url


async def _start_agents(lab: Lab, sizes: Sizes, changes: ClusterChanges, stack: AsyncExitStack) -> list[ZoneAgents]:
    """Start the simulated agents of all zones, with a first round of results."""
    kubeconfig = await lab.control_plane.write_token_kubeconfig(NETAWARE_NAMESPACE, AGENT)
    client = await stack.enter_async_context(Client(load_cluster_config(credentials_dir(kubeconfig)), timeout_s=60.0))
    names = map(zone_name, range(sizes.zones))
    is_unreachable = changes.unreachable_zones.__contains__
    agents = [ZoneAgents(client, name, sizes.nodes_per_zone, is_unreachable) for name in names]
    await stack.enter_async_context(supervised_tasks({agent.zone: agent.watch_plan() for agent in agents}))
    async with asyncio.timeout(_START_TIMEOUT_S):
        await asyncio.gather(*(zone_agents.write_first_results() for zone_agents in agents))
    return agents


async def _record_usage(lab: Lab, duration_s: float) -> list[ControllerUsage]:
    """Read the controller's usage every `_USAGE_INTERVAL_S` for this time."""
    started_s, usages = time.monotonic(), [_read_usage(lab)]
    while (elapsed_s := time.monotonic() - started_s) < duration_s:
        await asyncio.sleep(min(_USAGE_INTERVAL_S, duration_s - elapsed_s))
        lab.programs.check_running()
        usages.append(_read_usage(lab))
    return usages


def _read_usage(lab: Lab) -> ControllerUsage:
    controller = next(program for program in lab.programs if program.name == "controller")
    processes = controller.find_process_tree()  # the controller first
    rss_bytes, cpu_s = processes[0].memory_info().rss, 0.0
    for process in processes:
        with suppress(psutil.Error):  # the process has ended
            cpu_times = process.cpu_times()
            cpu_s += cpu_times.user + cpu_times.system
    return ControllerUsage(time.monotonic(), rss_bytes, cpu_s)


async def _take_metrics_snapshot(lab: Lab, admin: Client, controller_url: str) -> MetricsSnapshot:
    api_server = (await admin.request("GET", "/metrics", timeout_s=120.0)).decode()
    lease = await admin.get(LEASES, CONTROLLER, Lease, namespace=NETAWARE_NAMESPACE)
    etcd = await _fetch(f"{lab.control_plane.etcd}/metrics", create_client_context(lab.control_plane))
    controller = await _fetch(f"{controller_url}/metrics")
    readings = await asyncio.to_thread(figures.read_metrics, (api_server, etcd, controller))
    return MetricsSnapshot(readings, lease.spec.lease_transitions or 0)


async def _fetch(url: str, context: ssl.SSLContext | None = None) -> str:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=context or True) as response:
        return await response.text()
