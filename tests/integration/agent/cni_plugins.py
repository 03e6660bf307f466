"""Builds the CNI plugins, and sets pods up with them as a container runtime would."""

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
from tests.integration.agent.pods_on_node import NETWORK, NodePod, find_cgroup_hierarchy, running_process

MAIN_VERSION = CNI.version
"""Version of all plugins except bandwidth, whose version the test chooses."""
CHECKSUMS = {
    CNI.version: CNI.checksum,
    "v1.1.1": "h1:+AGfFigZ5TiQH00vhR8qPeSatj53eNGz0C1d3wVYlHE=",
}
PROGRAMS = {"ptp": "./plugins/main/ptp", **CNI.programs}


def find_or_build_plugin(name: str, version: str) -> Path:
    """Path of a plugin, which is built once per version."""
    module = replace(CNI, version=version, checksum=CHECKSUMS[version], programs=PROGRAMS)
    return find_or_build_programs(module)[name]


def call_plugin(program: Path, command: str, pod: NodePod, config: dict[str, Any]) -> dict[str, Any]:
    """Call a plugin as libcni does, and return its result; fails with its output."""
    env = {
        **os.environ,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod.container,
        "CNI_NETNS": f"/var/run/netns/{pod.namespace}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(find_or_build_plugin("host-local", MAIN_VERSION).parent),
    }
    result = subprocess.run([program], input=json.dumps(config), env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout) if result.stdout.strip() else {}


@contextmanager
def pod_with_plugins(version: str, main: str, number: int, bandwidth: dict[str, int], state: Path) -> Iterator[NodePod]:
    """A pod that bridge or ptp and then the bandwidth plugin set up; at the end they are called with DEL in reverse order.

    Args:
        version: of the bandwidth plugin.
        main: ``bridge`` or ``ptp``.
        number: third byte of its subnet 10.250.<number>.0/24.
        bandwidth: the plugin's runtimeConfig, such as ``ingressRate`` in bits per second.
        state: folder for the leases of host-local.
    """
    tag = uuid.uuid4().hex[:6]
    bridge = f"nab{tag}"
    common = {"cniVersion": "0.4.0", "name": NETWORK}
    ipam = {"type": "host-local", "subnet": f"10.250.{number}.0/24", "dataDir": str(state)}
    main_config = {**common, "type": main, "ipam": ipam, "bridge": bridge, "isGateway": True}  # ptp ignores both
    bandwidth_config = {**common, "type": "bandwidth", "runtimeConfig": {"bandwidth": bandwidth}}
    main_plugin, bandwidth_plugin = find_or_build_plugin(main, MAIN_VERSION), find_or_build_plugin("bandwidth", version)
    pod = NodePod(
        name=f"pod-{tag}",
        host_address=f"10.250.{number}.1",
        address="",
        namespace=f"napod-{tag}",
        host_device="",
        cgroup_root=find_cgroup_hierarchy() / f"natest-{tag}",
    )
    with ExitStack() as cleanup:
        cleanup.callback(subprocess.run, ["ip", "link", "del", bridge], check=False, capture_output=True)
        cleanup.enter_context(running_process(pod))
        cleanup.callback(call_plugin, main_plugin, "DEL", pod, main_config)
        cleanup.callback(call_plugin, bandwidth_plugin, "DEL", pod, bandwidth_config)
        pod.join_cgroup(pod.uid)
        result = call_plugin(main_plugin, "ADD", pod, main_config)
        pod.address = result["ips"][0]["address"].partition("/")[0]
        host_interfaces = [interface["name"] for interface in result["interfaces"] if not interface.get("sandbox")]
        pod.host_device = next(name for name in host_interfaces if name != bridge)
        call_plugin(bandwidth_plugin, "ADD", pod, {**bandwidth_config, "prevResult": result})
        yield pod
