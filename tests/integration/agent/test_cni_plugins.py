"""The agent reads and repairs limits of real versions of the CNI bandwidth plugin, called as a container runtime would."""

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

import pytest

from lab.build import find_or_build_binaries
from lab.realnode.programs import CNI
from tests.integration.agent.pods_on_node import (
    NETWORK,
    NodePod,
    enforce,
    find_cgroup_hierarchy,
    needs_root,
    read_statuses,
    run_command,
    running_process,
)

pytestmark = [pytest.mark.real_nodes, needs_root]
MAIN_VERSION = CNI.version
"""Version of all plugins except bandwidth, whose version the test chooses."""
CHECKSUMS = {CNI.version: CNI.checksum, "v1.1.1": "h1:+AGfFigZ5TiQH00vhR8qPeSatj53eNGz0C1d3wVYlHE="}
PROGRAMS = {"ptp": "./plugins/main/ptp", **CNI.programs}
RATE_BPS = 20_000_000
BURST_BITS = RATE_BPS // 10
"""A tenth of a second."""
REQUESTED_BANDWIDTH = {f"{direction}Rate": RATE_BPS for direction in ("ingress", "egress")}
REQUESTED_BANDWIDTH |= {f"{direction}Burst": BURST_BITS for direction in ("ingress", "egress")}


def find_or_build_plugin(name: str, version: str) -> Path:
    """Path of a plugin, which is built once per version."""
    module = replace(CNI, version=version, checksum=CHECKSUMS[version], programs=PROGRAMS)
    return find_or_build_binaries(module)[name]


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
def pod_with_plugins(bandwidth_version: str, main: str, leases: Path) -> Iterator[NodePod]:
    """A pod that ``main`` and then the bandwidth plugin set up; at the end they are called with DEL in reverse order."""
    tag = uuid.uuid4().hex[:6]
    bridge = f"nab{tag}"
    common = {"cniVersion": "0.4.0", "name": NETWORK}
    ipam = {"type": "host-local", "subnet": "10.250.60.0/24", "dataDir": str(leases)}
    main_config = {**common, "type": main, "ipam": ipam, "bridge": bridge, "isGateway": True}  # ptp ignores both
    bandwidth_config = {**common, "type": "bandwidth", "runtimeConfig": {"bandwidth": REQUESTED_BANDWIDTH}}
    main_plugin = find_or_build_plugin(main, MAIN_VERSION)
    bandwidth_plugin = find_or_build_plugin("bandwidth", bandwidth_version)
    pod = NodePod(
        name=f"pod-{tag}",
        host_address="10.250.60.1",
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


@pytest.mark.parametrize(("bandwidth_version", "main_plugin"), [("v1.1.1", "bridge"), (MAIN_VERSION, "ptp")])
def test_the_plugins_limits_are_read_changed_and_deleted_by_the_plugin(
    bandwidth_version: str, main_plugin: str, tmp_path: Path
) -> None:
    with pod_with_plugins(bandwidth_version, main_plugin, tmp_path) as pod:
        statuses = read_statuses(pod.make_spec(ingress=str(RATE_BPS), egress=str(RATE_BPS))).values()
        assert {status.verdict for status in statuses} == {"enforced"}
        assert [status.device_name for status in statuses] == [pod.host_device, pod.ifb_name]
        assert {status.rate_bytes_per_s for status in statuses} == {RATE_BPS // 8}

        # A changed annotation changes the limit of the running pod, whatever kind it was of.
        changed_statuses = enforce(pod.make_spec(ingress="5M", egress="5M")).values()
        assert [status.direction for status in changed_statuses] == ["ingress", "egress"]
        assert {status.verdict for status in changed_statuses} == {"enforced"}
        assert {status.rate_bytes_per_s for status in changed_statuses} == {5_000_000 // 8}
    assert pod.ifb_name not in run_command("ip -br link")
