"""The capabilities of the DaemonSet suffice for the agent, and each is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.integration.agent.pods_on_node import NodePod, node_pod
from tests.integration.manifests.kubectl import MANIFESTS

ROOT = MANIFESTS.parent
SCRIPT = """
import asyncio, json, subprocess, sys
from pathlib import Path
from agent.bandwidth import processes
from agent.bandwidth.tc_writer import execute
from agent.bandwidth.state import SetEgressLimit, SetIngressLimit, RemoveLimit
from agent.bandwidth.tc_reader import read_tc_state
from agent.rtnetlink import TbfParams
from netperf.probers.child import start_confined

async def main(pid, name):
    params = TbfParams(rate_bytes_per_s=1_250_000, buffer_ticks=625_000, limit_bytes=100_000)
    state, numbers = await read_tc_state({"uid": pid})
    device = next(d for d in state.devices if d.name == name)
    await execute(SetIngressLimit(device.index, name, params))
    await execute(SetEgressLimit(device.index, name, "nawcapifb0", 1500, params, "netaware:test", add_ingress_qdisc=True))
    after, _ = await read_tc_state({})
    through = next(d for d in after.devices if d.name == "nawcapifb0")
    print(json.dumps({
        "same namespace": device.namespace_id == numbers["uid"],
        "own index": processes.read_pod_interface_index(Path("/proc"), pid) == device.peer_index,
        "ingress": any(q.device_index == device.index and q.params == params for q in after.qdiscs),
        "egress": any(q.device_index == through.index and q.params == params for q in after.qdiscs),
        "redirect": any(f.device_index == device.index and f.target_index == through.index for f in after.filters),
    }))
    await execute(RemoveLimit(device.index, name, "ingress"))
    ours = tuple(f.priority for f in after.filters if f.device_index == device.index)
    await execute(RemoveLimit(device.index, name, "egress", "nawcapifb0", ours, remove_ingress_qdisc=True))
    try:
        await (await start_confined("/bin/true", stdin=asyncio.subprocess.DEVNULL)).wait()
    except subprocess.SubprocessError as error:
        sys.exit(f"not permitted: {error}")

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""
"""Limits a pod's device both ways, reads and removes the limits, and starts a program as the agent starts netserver."""


@pytest.fixture
def pod() -> Iterator[NodePod]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with node_pod(240) as pod_on_node:
        yield pod_on_node
    subprocess.run(["ip", "link", "del", "nawcapifb0"], check=False, capture_output=True)


def read_granted_capabilities() -> list[str]:
    daemon_set = yaml.safe_load((MANIFESTS / "base" / "agent" / "daemonset.yaml").read_text())
    container = daemon_set["spec"]["template"]["spec"]["containers"][0]
    return [str(name).lower() for name in container["securityContext"]["capabilities"]["add"]]


def run_script(pod: NodePod, capabilities: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `SCRIPT` with no other capabilities."""
    bounding = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    setpriv = ["setpriv", f"--bounding-set={bounding}", f"--inh-caps={bounding}", "--no-new-privs"]
    command = [*setpriv, sys.executable, "-c", SCRIPT, str(pod.pid), pod.host_device]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_granted_capabilities_suffice_to_read_set_and_remove_limits(pod: NodePod) -> None:
    script = run_script(pod, read_granted_capabilities())
    assert script.returncode == 0, script.stderr
    checks = ("same namespace", "own index", "ingress", "egress", "redirect")
    assert json.loads(script.stdout) == dict.fromkeys(checks, True)


def test_each_granted_capability_is_needed(pod: NodePod) -> None:
    capabilities = read_granted_capabilities()
    for removed in capabilities:
        script = run_script(pod, [name for name in capabilities if name != removed])
        assert script.returncode != 0, f"{removed} is granted and not needed"
        assert "not permitted" in script.stderr
