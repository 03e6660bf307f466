"""What an agent costs its node: memory and CPU with 110 annotated pods that it keeps to their limits, when nothing changes.

The pods are network namespaces with veth pairs and real processes in cgroups, the API server is real, netserver runs
where it is installed. Needs root. CPU is a share of one core; a full look, which comes every five minutes, is measured by
itself and added, since the quiet time that is watched is shorter.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from agent.bandwidth.manager import FULL_CHECK_INTERVAL_S
from kubekit.client import Client
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Node, Object, Pod
from lab.controlplane import ControlPlane, credentials_of, free_ports
from lab.netperf_install import find_if_available
from tests.bench.figures import Figures, figure
from tests.integration.agent.agents import Agent, running_agent
from tests.integration.agent.pods_on_node import NETWORK, NodePod, node_pod, run

ROOT = Path(__file__).parents[2]
PODS_ON_NODE = 110
AS_INSTALLED = {
    "PYTHONOPTIMIZE": "2",
    "FROZENLIST_NO_EXTENSIONS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "SSL_CERT_FILE": os.devnull,
}
"""The image's and the manifest's environment, but that the authority comes with the kubeconfig."""
QUIET_S = 60.0
SETTLE_S = 40.0
NODE = "bench-node"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure() -> Figures:
    """The figures by name."""
    if os.geteuid() != 0:
        print("bench agent: needs root, skipped", file=sys.stderr)
        return {}
    # In a network namespace of its own, where nobody else's devices come and go.
    inside = ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, __file__]
    done = subprocess.run(inside, env=_environment(), stdout=subprocess.PIPE, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def _environment() -> dict[str, str]:
    """Ours with bytecode, as in the image, and this source tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT)}


async def _start(stack: AsyncExitStack) -> tuple[Agent, list[NodePod]]:
    """An agent that has enforced the limits of all pods, and has settled."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netaware-bench-")))
    plane = await stack.enter_async_context(
        ControlPlane.start("bench-agent", state_dir=directory / "plane", components=())
    )
    client = await stack.enter_async_context(Client(plane.client_config))
    pods = [stack.enter_context(node_pod(number, adopt_uid=True)) for number in range(PODS_ON_NODE)]
    await _populate(client, pods)
    agent = await stack.enter_async_context(_agent(directory, plane))
    await _until_enforced(agent, PODS_ON_NODE)
    await asyncio.sleep(SETTLE_S)
    return agent, pods


async def _quiet() -> Figures:
    async with AsyncExitStack() as stack:
        agent, pods = await _start(stack)
        look_s = await _cpu_of_a_look(agent, pods[0])
        await asyncio.sleep(5.0)
        idle = await _share(agent) + look_s / FULL_CHECK_INTERVAL_S
        memory_mb = _memory_mb(agent)
    what = f"{PODS_ON_NODE} annotated pods, both directions enforced"
    look = f"{what}; a full look takes {1000 * look_s:.0f} ms, every {FULL_CHECK_INTERVAL_S:.0f} s"
    return {
        "agent: resident memory": figure(memory_mb, "MB", 48, what),
        "agent: CPU when idle": figure(100 * idle, "% of a core", 0.2, look),
    }


async def _share(agent: Agent) -> float:
    """The agent's share of a core while nothing changes."""
    cpu_s, started = _cpu_s(agent), time.monotonic()
    await asyncio.sleep(QUIET_S)
    return (_cpu_s(agent) - cpu_s) / (time.monotonic() - started)


def _agent(directory: Path, plane: ControlPlane) -> AbstractAsyncContextManager[Agent]:
    found = find_if_available()
    env = {"NETAWARE_NETPERF": str(found.netperf), **found.env} if found else {}
    return running_agent(
        directory,
        free_ports(1)[0],
        f"--node-name={NODE}",
        f"--credentials={credentials_of(plane.kubeconfig)}",
        "--capacity=10G",
        "--bandwidth=enforce",
        f"--cni-network={NETWORK}",
        env={**AS_INSTALLED, **env},
    )


async def _populate(client: Client, pods: list[NodePod]) -> None:
    await client.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "netaware-system"}}, Object
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await client.create(SERVICE_ACCOUNTS, account, Object, namespace="default")
    addresses = [{"type": "InternalIP", "address": "127.78.0.1"}]
    labels = {"topology.kubernetes.io/zone": "z1"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": labels},
        "status": {"addresses": addresses, "capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}},
    }
    await client.create(NODES, node, Node)
    for pod in pods:
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name,
                "annotations": {"kubernetes.io/ingress-bandwidth": "20M", "kubernetes.io/egress-bandwidth": "20M"},
            },
            "spec": {
                "nodeName": NODE,
                "automountServiceAccountToken": False,
                "containers": [{"name": "c", "image": "x"}],
            },
        }
        created = await client.create(PODS, body, Pod, namespace="default")
        pod.adopt(created.metadata.uid)
        status = {"status": {"phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}]}}
        await client.patch(PODS, pod.name, status, Pod, namespace="default", subresource="status")


async def _until_enforced(agent: Agent, count: int) -> None:
    async with asyncio.timeout(120):
        while True:
            verdicts = await agent.metrics("netaware_pod_bandwidth_verdict")
            if sum('verdict="enforced"' in series for series in verdicts) == 2 * count:
                return
            await asyncio.sleep(1.0)


async def _cpu_of_a_look(agent: Agent, pod: NodePod) -> float:
    """CPU of one full look, brought about by a change of traffic control that changes nothing for the pods."""
    before = _cpu_s(agent)
    run(f"ip link set {pod.host_device} txqueuelen 999")
    await asyncio.sleep(6.0)
    return _cpu_s(agent) - before


def _cpu_s(agent: Agent) -> float:
    """CPU seconds of the agent itself so far: utime and stime of proc(5)."""
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _memory_mb(agent: Agent) -> float:
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_quiet())))
