"""Real nodes in a lab are Ready beside kwok's nodes, run pods over the emulated network, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from lab import namespaces
from lab.realnode.programs import NodeBinaries
from tests.e2e.labs import LabCommand, list_leftovers
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

DNS_QUERY = (
    bytes.fromhex("123401000001000000000000")  # ID, flag "recursion desired", one question
    + b"".join(bytes([len(label)]) + label for label in b"kubernetes.default.svc.cluster.local".split(b"."))
    + bytes.fromhex("0000010001")  # end of the name, type A, class IN
)

pytestmark = pytest.mark.timeout(360, func_only=True)


@pytest.fixture
def mixed(tmp_path: Path, lab_command: LabCommand, node_binaries: NodeBinaries) -> dict[str, Any]:
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    return lab_command.json("up", "--name", "e2e-real", "--topology", str(file))


def is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def are_system_pods_ready(cluster: Cluster) -> bool:
    """Whether two pods of CoreDNS and one of metrics-server are ready."""
    pods = cluster.list_pods("-A")
    return len(pods) == 3 and all(map(is_ready, pods))


def measure_dns_round_trip_s(netns: str, server: str) -> float:
    """The shortest of ten round trips from a namespace to a name server, asked for the address of the API's Service."""
    durations_s = []
    with namespaces.enter(netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        for _ in range(10):
            started_s = time.monotonic()
            client.sendto(DNS_QUERY, (server, 53))
            response = client.recv(512)
            durations_s.append(time.monotonic() - started_s)
            assert response.endswith(socket.inet_aton("10.96.0.1")), response
    return min(durations_s)


def test_real_nodes_run_pods_whose_traffic_takes_the_emulated_network(
    mixed: dict[str, Any], lab_command: LabCommand
) -> None:
    kubelet_by_node = {node["name"]: node["kubelet"] for node in mixed["nodes"]}
    assert kubelet_by_node == {"e2e-real-a": "real", "e2e-fake": "kwok", "e2e-real-b": "real"}
    cluster = Cluster(mixed)
    status = cluster.get("node", "e2e-real-a")["status"]
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert status["allocatable"]["cpu"] == "1"

    wait_until(lambda: are_system_pods_ready(cluster), "DNS and metrics-server")
    dns_pods = cluster.list_pods("-A", "-l", "k8s-app=kube-dns")
    server_by_node = {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in dns_pods}
    netns = next(node["netns"] for node in mixed["nodes"] if node["name"] == "e2e-real-a")
    # The pod in the other zone answers after the link's round trip. The Service may choose the pod of the same node.
    assert measure_dns_round_trip_s(netns, server_by_node["e2e-real-b"]) >= 0.02
    assert measure_dns_round_trip_s(netns, "10.96.0.10") > 0
    wait_until(lambda: "e2e-real-a" in cluster.run("top", "nodes"), "metrics of the nodes")
    assert "CoreDNS" in cluster.run("logs", "-n", "kube-system", dns_pods[0]["metadata"]["name"])

    as_node = ("--as=system:node:e2e-real-a", "--as-group=system:nodes")
    with pytest.raises(AssertionError, match="is not allowed to modify labels"):
        cluster.run(*as_node, "label", "node", "e2e-real-a", "node-restriction.kubernetes.io/mine=1")

    lab_command("down", "--name", "e2e-real")
    assert list_leftovers(mixed) == []


def test_down_removes_processes_mounts_cgroups_and_devices_of_a_killed_lab(
    mixed: dict[str, Any], lab_command: LabCommand
) -> None:
    os.kill(mixed["pid"], signal.SIGKILL)
    lab_command("down", "--name", "e2e-real")
    assert list_leftovers(mixed) == []
