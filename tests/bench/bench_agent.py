"""Measures memory and CPU of an idle agent that enforces the limits of 110 pods.

Pods are network namespaces with veth pairs and processes in cgroups, and the API server is real. CPU is a share of one
core. The idle time is shorter than the interval of full checks, so the cost of a full check is measured separately and
added. Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import psutil

from agent.bandwidth.manager import FULL_CHECK_INTERVAL_S
from kubekit.client import Client
from kubekit.wire import NODES, SERVICE_ACCOUNTS, Node, Object
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.netperf_install import find_netperf_if_available
from lab.polling import poll_until
from netperf.contract import NETAWARE_NAMESPACE
from tests.bench.control_plane import bench_control_plane
from tests.bench.figures import Figures, make_figure
from tests.integration.agent.agents import Agent, create_pod, report_pod_address, running_agent
from tests.integration.agent.pods_on_node import NETWORK, NodePod, node_pod, run_bench, run_command

PODS_ON_NODE = 110
IMAGE_ENVIRONMENT = {
    "PYTHONOPTIMIZE": "2",
    "PYTHONNODEBUGRANGES": "1",
    "FROZENLIST_NO_EXTENSIONS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "SSL_CERT_FILE": os.devnull,
}
"""Environment variables of the image and the manifest."""
IDLE_S, WARM_UP_S = 60.0, 40.0
CHECK_S = 6.0
"""Longer than the agent waits after a change of a link, and than the check takes."""
NODE = "bench-node"


def measure() -> Figures:
    return dict(run_bench(__file__))


async def _start_enforcing_agent(stack: AsyncExitStack) -> tuple[Agent, list[NodePod]]:
    """Start an agent, and wait until it has enforced the limits of all pods."""
    plane, client = await stack.enter_async_context(bench_control_plane(NETAWARE_NAMESPACE, components=()))
    pods = [stack.enter_context(node_pod(number, adopt_uid=True)) for number in range(PODS_ON_NODE)]
    await _populate(client, pods)
    agent = await stack.enter_async_context(_running_agent(plane))
    await _wait_until_enforced(agent)
    await asyncio.sleep(WARM_UP_S)
    return agent, pods


async def _measure_idle() -> Figures:
    async with AsyncExitStack() as stack:
        agent, pods = await _start_enforcing_agent(stack)
        check_s = await _measure_full_check_s(agent, pods[0])
        await asyncio.sleep(5.0)
        start_cpu_s, start_s = _read_cpu_s(agent), time.monotonic()
        await asyncio.sleep(IDLE_S)
        idle_cores = (_read_cpu_s(agent) - start_cpu_s) / (time.monotonic() - start_s) + check_s / FULL_CHECK_INTERVAL_S
        memory_mb = psutil.Process(agent.process.pid).memory_info().rss / 2**20
    scope = f"{PODS_ON_NODE} annotated pods, both directions enforced"
    details = f"{scope}; a full check takes {1000 * check_s:.0f} ms, every {FULL_CHECK_INTERVAL_S:.0f} s"
    return {
        "agent: resident memory": make_figure(memory_mb, "MB", 45, scope),
        "agent: CPU when idle": make_figure(100 * idle_cores, "% of a core", 0.2, details),
    }


def _running_agent(plane: ControlPlane) -> AbstractAsyncContextManager[Agent]:
    netperf = find_netperf_if_available()
    netperf_env = {"NETAWARE_NETPERF": str(netperf.netperf), **netperf.env} if netperf else {}
    return running_agent(
        plane.state_dir,
        find_free_ports(1)[0],
        f"--node-name={NODE}",
        f"--credentials={credentials_dir(plane.kubeconfig)}",
        "--capacity=10G",
        "--bandwidth=enforce",
        f"--cni-network={NETWORK}",
        env={**IMAGE_ENVIRONMENT, **netperf_env},
    )


async def _populate(client: Client, pods: list[NodePod]) -> None:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, Object, namespace="default")
    addresses = [{"type": "InternalIP", "address": "127.78.0.1"}]
    labels = {"topology.kubernetes.io/zone": "z1"}
    status = {"addresses": addresses, "capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}
    node = {"metadata": {"name": NODE, "labels": labels}, "status": status}
    await client.create(NODES, node, Node)
    limits = {"kubernetes.io/ingress-bandwidth": "20M", "kubernetes.io/egress-bandwidth": "20M"}
    for pod in pods:
        created = await create_pod(client, "default", pod.name, NODE, limits)
        pod.join_cgroup(created.metadata.uid)
        await report_pod_address(client, created, pod.address)


async def _wait_until_enforced(agent: Agent) -> None:
    async def are_enforced() -> bool:
        verdicts = await agent.read_metrics("netaware_pod_bandwidth_verdict")
        return sum('verdict="enforced"' in series for series in verdicts) == 2 * PODS_ON_NODE

    await poll_until(are_enforced, every_s=1.0)


async def _measure_full_check_s(agent: Agent, pod: NodePod) -> float:
    """CPU seconds of a full check, after a change of a link that does not affect limits."""
    start_cpu_s = _read_cpu_s(agent)
    run_command(f"ip link set {pod.host_device} txqueuelen 999")
    await asyncio.sleep(CHECK_S)
    return _read_cpu_s(agent) - start_cpu_s


def _read_cpu_s(agent: Agent) -> float:
    """CPU seconds of the agent without its children."""
    times = psutil.Process(agent.process.pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure_idle())))
