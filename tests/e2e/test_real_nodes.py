"""Real nodes in a lab are Ready beside kwok's nodes, run pods over the emulated network, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.realnode.programs import NodeBinaries
from tests.e2e.labs import LabCommand
from tests.e2e.leftovers import leftovers_of
from tests.e2e.real_cluster import Cluster, wait_until

MIXED = """\
name: mixed
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: e2e-real-a}, {name: e2e-fake, kubelet: kwok}]}
      - {name: z2, nodes: [{name: e2e-real-b}]}
links:
  - {between: [z1, z2], rtt: 20ms}
nodeDefaults: {kubelet: real, cpu: 1, memory: 2Gi}
"""

pytestmark = pytest.mark.timeout(360, func_only=True)


@pytest.fixture
def mixed(tmp_path: Path, lab_command: LabCommand, node_binaries: NodeBinaries) -> dict[str, Any]:
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    up: dict[str, Any] = lab_command.json("up", "--name", "e2e-real", "--topology", str(file))
    return up


def list_pods(lab: Cluster, *args: str) -> list[dict[str, Any]]:
    return list(lab.get("pods", "-A", *args)["items"])


def is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def measure_dns_round_trip_s(lab: dict[str, Any], node: str, server: str) -> float:
    """Return the shortest of ten round trips from a node to a name server, asked for the address of the API's Service."""
    (entry,) = (n for n in lab["nodes"] if n["name"] == node)
    script = (
        "import socket, sys, time\n"
        "name = b''.join(bytes([len(p)]) + p for p in b'kubernetes.default.svc.cluster.local'.split(b'.'))\n"
        "question = bytes.fromhex('123401000001000000000000') + name + bytes.fromhex('0000010001')\n"
        "best = 9.0\n"
        "for _ in range(10):\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)\n"
        "    started = time.monotonic(); s.sendto(question, (sys.argv[1], 53)); answer = s.recv(512)\n"
        "    best = min(best, time.monotonic() - started)\n"
        "    assert answer.endswith(socket.inet_aton('10.96.0.1')), answer\n"
        "print(best)\n"
    )
    argv = ["nsenter", f"--net=/run/netns/{entry['netns']}", "python3", "-c", script, server]
    return float(subprocess.run(argv, check=True, capture_output=True, timeout=60, text=True).stdout)


def test_real_nodes_run_pods_whose_traffic_takes_the_emulated_network(
    mixed: dict[str, Any], lab_command: LabCommand
) -> None:
    assert {n["name"]: n["kubelet"] for n in mixed["nodes"]} == {
        "e2e-real-a": "real",
        "e2e-fake": "kwok",
        "e2e-real-b": "real",
    }
    cluster = Cluster(mixed)
    nodes = {n["metadata"]["name"]: n for n in cluster.get("nodes")["items"]}
    assert nodes["e2e-real-a"]["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert nodes["e2e-real-a"]["status"]["allocatable"]["cpu"] == "1"
    wait_until(
        lambda: len(list_pods(cluster)) == 3 and all(map(is_ready, list_pods(cluster))), "DNS and metrics-server"
    )
    servers = {p["spec"]["nodeName"]: p["status"]["podIP"] for p in list_pods(cluster, "-l", "k8s-app=kube-dns")}
    # The pod in the other zone answers after the link's round trip. The Service may choose the pod of the same node.
    assert measure_dns_round_trip_s(mixed, "e2e-real-a", servers["e2e-real-b"]) >= 0.02
    assert measure_dns_round_trip_s(mixed, "e2e-real-a", "10.96.0.10") > 0
    wait_until(lambda: "e2e-real-a" in cluster.run("top", "nodes"), "metrics of the nodes")
    name = next(p["metadata"]["name"] for p in list_pods(cluster, "-l", "k8s-app=kube-dns"))
    assert "CoreDNS" in cluster.run("logs", "-n", "kube-system", name)
    as_node = ["--as=system:node:e2e-real-a", "--as-group=system:nodes", "label", "node", "e2e-real-a"]
    argv = [mixed["kubectl"], "--kubeconfig", mixed["kubeconfig"], *as_node, "node-restriction.kubernetes.io/mine=1"]
    denied = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert "is not allowed to modify labels" in denied.stderr
    lab_command("down", "--name", "e2e-real")
    assert leftovers_of(mixed) == []


def test_down_removes_processes_mounts_cgroups_and_devices_of_a_killed_lab(
    mixed: dict[str, Any], lab_command: LabCommand
) -> None:
    os.kill(mixed["pid"], signal.SIGKILL)
    lab_command("down", "--name", "e2e-real")
    assert leftovers_of(mixed) == []
