"""The CNI plugins' own programs, built from their Go modules, and pods that they set up: as a runtime would, without one."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.build import find_or_build_programs
from lab.realnode.programs import CNI
from tests.integration.agent.pods_on_node import NETWORK, NodePod, cgroup_hierarchy, remove_groups, run

MAIN_VERSION = "v1.9.1"
"""Of bridge, ptp and host-local; the bandwidth plugin is the one that differs."""
CHECKSUMS = {
    "v1.9.1": CNI.checksum,
    "v1.1.1": "h1:+AGfFigZ5TiQH00vhR8qPeSatj53eNGz0C1d3wVYlHE=",
}
PROGRAMS = {"ptp": "./plugins/main/ptp", **CNI.programs}


def plugin(path: str, version: str) -> Path:
    """A plugin's program, such as ``meta/bandwidth``; built once per version."""
    module = replace(CNI, version=version, checksum=CHECKSUMS[version], programs=PROGRAMS)
    return find_or_build_programs(module)[Path(path).name]


def call(program: Path, command: str, pod: NodePod, config: dict[str, Any]) -> dict[str, Any]:
    """Call a plugin as libcni does; its error is the test's."""
    env = {
        **os.environ,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod.container,
        "CNI_NETNS": f"/var/run/netns/{pod.namespace}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(plugin("ipam/host-local", MAIN_VERSION).parent),
    }
    done = subprocess.run([program], input=json.dumps(config), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else {}


@contextmanager
def plugged_pod(version: str, main: str, number: int, bandwidth: dict[str, int], state: Path) -> Iterator[NodePod]:
    """A pod behind bridge or ptp with the bandwidth plugin chained; DEL is called at the end, last plugin first.

    Args:
        version: of the bandwidth plugin.
        main: ``bridge`` or ``ptp``.
        number: 0..250, of its subnet.
        bandwidth: ``ingressRate`` and the like, as runtimes pass them, in bits.
        state: where host-local keeps its leases.
    """
    tag = uuid.uuid4().hex[:6]
    common = {"cniVersion": "0.4.0", "name": NETWORK}
    ipam = {"type": "host-local", "subnet": f"10.250.{number}.0/24", "dataDir": str(state)}
    first = {**common, "type": main, "ipam": ipam, "bridge": f"nab{tag}", "isGateway": True}
    second = {**common, "type": "bandwidth", "runtimeConfig": {"bandwidth": bandwidth}}
    programs = plugin(f"main/{main}", MAIN_VERSION), plugin("meta/bandwidth", version)
    top = cgroup_hierarchy() / f"natest-{tag}"
    pod = NodePod(
        name=f"plugged-{tag}",
        host_address=f"10.250.{number}.1",
        address="",
        namespace=f"napod-{tag}",
        host_device="",
        groups=top,
    )
    with ExitStack() as cleanup:
        cleanup.callback(subprocess.run, ["ip", "link", "del", f"nab{tag}"], check=False, capture_output=True)
        cleanup.callback(subprocess.run, ["ip", "netns", "del", pod.namespace], check=False, capture_output=True)
        cleanup.callback(remove_groups, top)
        run(f"ip netns add {pod.namespace}")
        pod.process = subprocess.Popen(pod.command("sleep", "3600"))
        cleanup.callback(pod.process.wait)
        cleanup.callback(pod.process.kill)
        cleanup.callback(call, programs[0], "DEL", pod, first)
        cleanup.callback(call, programs[1], "DEL", pod, second)
        pod.adopt(pod.uid)
        result = call(programs[0], "ADD", pod, first)
        pod.address = result["ips"][0]["address"].partition("/")[0]
        ends = [i["name"] for i in result["interfaces"] if not i.get("sandbox") and i["name"] != first["bridge"]]
        pod.host_device = ends[0]
        call(programs[1], "ADD", pod, {**second, "prevResult": result})
        yield pod
