"""What an agent costs its node: memory, CPU and writes, with 110 annotated pods that it keeps to their limits; then CPU with 250
of them and 20,000 routes, of which some change all the time.

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

from agent.bandwidth.manager import FULL_LOOK_S
from kubekit.client import Client
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Node, Object, Pod
from lab.controlplane import ControlPlane, credentials_of, free_ports
from lab.netperf_install import Netperf, find_or_fetch
from tests.integration.agent.agents import Agent, running_agent
from tests.integration.agent.pods_on_node import NETWORK, NodePod, node_pod, run

ROOT = Path(__file__).parents[2]
PODS_ON_NODE, PODS_IN_CHURN = 110, 250
ROUTES, ROUTES_A_SECOND = 20_000, 20
AS_INSTALLED = {"FROZENLIST_NO_EXTENSIONS": "1", "MALLOC_ARENA_MAX": "1", "SSL_CERT_FILE": os.devnull}
"""The image's and the manifest's environment, but that the authority comes with the kubeconfig."""
IMPORTS = (
    ("Python itself", "sys"),
    ("asyncio and TLS", "asyncio"),
    ("msgspec", "msgspec"),
    ("aiohttp, client", "aiohttp"),
    ("aiohttp, server", "aiohttp.web"),
    ("prometheus_client", "prometheus_client"),
    ("pyroute2", "pyroute2"),
    ("the agent and its packages", "agent.program,agent.bandwidth.manager,agent.probing.manager"),
)
"""What an agent is made of, in the order in which it is imported; netperf's histogram is with the packages."""
QUIET_S = 60.0
SETTLE_S = 40.0
NODE = "bench-node"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WRITES = ('verb="POST"', 'verb="PUT"', 'verb="PATCH"', 'verb="APPLY"', 'verb="DELETE"')


def measure() -> dict[str, dict[str, object]]:
    """The figures by name."""
    figures = {f"agent: memory of {name}": _figure(mb, "MB", None, "") for name, mb in _imports()}
    if os.geteuid() != 0:
        print("bench agent: needs root, skipped but for imports", file=sys.stderr)
        return figures
    for scene in ("quiet", "churn"):
        # In a network namespace of its own, where nobody else's devices come and go.
        inside = [
            "unshare",
            "--net",
            "--",
            "sh",
            "-c",
            'ip link set lo up && exec "$@"',
            "sh",
            sys.executable,
            __file__,
        ]
        done = subprocess.run([*inside, scene], env=_environment(), stdout=subprocess.PIPE, check=True)
        figures |= json.loads(done.stdout)
    return figures


def _environment() -> dict[str, str]:
    """Ours with bytecode, as in the image, and this source tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT)}


def _imports() -> list[tuple[str, float]]:
    """Resident memory by import in MB: once for bytecode to be there, then counted."""
    program = """
import importlib, sys
sys.modules["psutil"] = None  # as the agent has it, too
before = 0
for names in sys.argv[1:]:
    for name in names.split(","):
        importlib.import_module(name)
    now = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
    print(now - before)
    before = now
"""
    command = [sys.executable, "-c", program, *(module for _, module in IMPORTS)]
    env = {**_environment(), **AS_INSTALLED}
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
    return [(name, int(kib) / 1024) for (name, _), kib in zip(IMPORTS, done.stdout.split(), strict=True)]


async def _start(stack: AsyncExitStack, count: int) -> tuple[Agent, Client, list[NodePod]]:
    """An agent that has enforced the limits of so many pods, and has settled."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netaware-bench-")))
    # No controllers: every write to be counted is then the agent's.
    plane = await stack.enter_async_context(
        ControlPlane.start("bench-agent", state_dir=directory / "plane", components=())
    )
    client = await stack.enter_async_context(Client(plane.client_config))
    pods = [stack.enter_context(node_pod(number, adopt_uid=True)) for number in range(count)]
    await _populate(client, pods)
    agent = await stack.enter_async_context(_agent(directory, plane))
    await _until_enforced(agent, count)
    await asyncio.sleep(SETTLE_S)
    return agent, client, pods


async def _quiet() -> dict[str, dict[str, object]]:
    async with AsyncExitStack() as stack:
        agent, client, pods = await _start(stack, PODS_ON_NODE)
        look_s = await _cpu_of_a_look(agent, pods[0])
        await asyncio.sleep(5.0)
        writes = await _count_writes(client)
        quiet_s, busy = await _share(agent)
        idle = busy + look_s / FULL_LOOK_S
        wrote = await _count_writes(client) - writes
        memory_mb = _memory_mb(agent)
    what = f"{PODS_ON_NODE} annotated pods, both directions enforced"
    return {
        "agent: resident memory": _figure(
            memory_mb, "MB", 55, f"{what}; with PyYAML for the kubeconfig, which a pod does without (1 MB)"
        ),
        "agent: CPU when idle": _figure(
            100 * idle,
            "% of a core",
            0.2,
            f"{what}; a full look takes {1000 * look_s:.0f} ms, every {FULL_LOOK_S:.0f} s",
        ),
        "agent: API writes when nothing changes": _figure(
            wrote * 300 / quiet_s, "per 5 min", 1, f"{what}; counted by the API server over {quiet_s:.0f} s"
        ),
    }


async def _churn() -> dict[str, dict[str, object]]:
    async with AsyncExitStack() as stack:
        agent, _, _ = await _start(stack, PODS_IN_CHURN)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netaware-bench-")))
        for command in ("add up0 type veth peer name up1", "set up0 up", "set up1 up"):
            run(f"ip link {command}")
        run("ip addr add 10.0.0.1/16 dev up0")
        routes = [f"100.{64 + n // 250}.{n % 250}.0/24 via 10.0.0.2" for n in range(ROUTES - ROUTES // 5)]
        routes += [f"101.{n // 250}.{n % 250}.0/24 via 10.0.0.2" for n in range(ROUTES // 5)]
        batch = directory / "routes"
        batch.write_text("".join(f"route add {route}\n" for route in routes))
        run(f"ip -batch {batch}")
        batch.write_text("".join(f"route del {route}\nroute add {route}\n" for route in routes[:ROUTES_A_SECOND]))
        await asyncio.sleep(10.0)
        changing = subprocess.Popen(["sh", "-c", f"while ip -batch {batch}; do sleep 1; done"])
        stack.callback(changing.wait)
        stack.callback(changing.kill)
        _, busy = await _share(agent)
    what = f"{PODS_IN_CHURN} annotated pods, {ROUTES} routes of which {ROUTES_A_SECOND} a second go and come"
    return {"agent: CPU when routes change": _figure(100 * busy, "% of a core", 0.5, what)}


async def _share(agent: Agent) -> tuple[float, float]:
    """Seconds waited, and the agent's share of a core meanwhile."""
    cpu_s, started = _cpu_s(agent), time.monotonic()
    await asyncio.sleep(QUIET_S)
    waited_s = time.monotonic() - started
    return waited_s, (_cpu_s(agent) - cpu_s) / waited_s


def _figure(value: float, unit: str, budget: float | None, reference: str) -> dict[str, object]:
    ok = None if budget is None else value <= budget
    return {"value": round(value, 3), "unit": unit, "budget": budget, "ok": ok, "reference": reference}


def _agent(directory: Path, plane: ControlPlane) -> AbstractAsyncContextManager[Agent]:
    found = find_or_fetch()
    env = {"NETAWARE_NETPERF": str(found.netperf), **found.env} if isinstance(found, Netperf) else {}
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


async def _count_writes(client: Client) -> float:
    """Writes that the API server answered so far, whoever asked."""
    text = (await client.request("GET", "/metrics")).decode()
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    ours = [line for line in lines if any(verb in line for verb in _WRITES) and 'component="apiserver"' in line]
    # The API server's own writes: its lease, its services, its addresses.
    foreign = (
        "leases",
        "services",
        "endpoints",
        "endpointslices",
        "ipaddresses",
        "servicecidrs",
        "subjectaccessreviews",
    )
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in ours if not any(f'resource="{name}"' in line for name in foreign)
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"quiet": _quiet, "churn": _churn}[sys.argv[1]]()), indent=2))
