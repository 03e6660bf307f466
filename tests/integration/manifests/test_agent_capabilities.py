"""The capabilities of the DaemonSet suffice for the agent, and each is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.agent.pods_on_node import NodePod, needs_root, node_pod
from tests.integration.manifests.kubectl import MANIFESTS

pytestmark = needs_root
ROOT = MANIFESTS.parent
IFB = "nawcapifb0"
SCRIPT = Path(__file__).with_name("limiting_a_pod.py")


@pytest.fixture
def pod() -> Iterator[NodePod]:
    with node_pod(240) as pod_on_node:  # a number that no other test uses
        yield pod_on_node
    subprocess.run(["ip", "link", "del", IFB], check=False, capture_output=True)


def read_granted_capabilities() -> list[str]:
    daemon_set = yaml.safe_load((MANIFESTS / "base" / "agent" / "daemonset.yaml").read_text())
    container = daemon_set["spec"]["template"]["spec"]["containers"][0]
    return [str(name).lower() for name in container["securityContext"]["capabilities"]["add"]]


def run_script(pod: NodePod, capabilities: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the script with these capabilities only."""
    bounding = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    setpriv = ["setpriv", f"--bounding-set={bounding}", f"--inh-caps={bounding}", "--no-new-privs"]
    command = [*setpriv, sys.executable, str(SCRIPT), str(pod.pid), pod.host_device, IFB]
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
