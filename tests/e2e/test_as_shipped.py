"""On four real nodes, the images of the Dockerfiles and the unchanged overlays work, and leave nothing behind."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.cluster.crds import NETPERF_COSTS, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit import conditions
from lab.image_build import AGENT, CONTROLLER
from lab.realnode.cluster import APP_IMAGE
from lab.realnode.programs import NodeBinaries
from tests.e2e.labs import LabCommand
from tests.e2e.real_cluster import (
    MANIFESTS,
    NAMESPACE,
    TIMEOUT_S,
    Cluster,
    start_shipped_lab,
    wait_until,
)
from tests.e2e.terminal import Terminal
from tests.integration.manifests.kubectl import write_kustomization
from tests.support.bodies import make_appgroup_body, make_deployment
from tests.support.controller_program import generate_webhook_manifests
from tests.support.documents import read_shell_blocks
from tests.support.tools.builds import find_or_fetch_operator_definitions

pytestmark = pytest.mark.real_nodes

NEXT_VERSION = "0.0.0-next"
# Workload -> largest size of /opt/netaware in MiB, and modules that its image must not have.
IMAGE_LIMITS = {
    "daemonset/netaware-agent": (42, ("kubernetes", "requests", "numpy", "rich", "controller", "lab")),
    "deployment/netaware-controller": (150, ("kubernetes", "psutil", "pyroute2", "agent", "lab")),
}
# Prints which of its arguments are modules of the image, and the size of /opt/netaware in bytes.
INSPECT_SCRIPT = """
import importlib.util, json, pathlib, sys
modules = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
files = [path for path in pathlib.Path("/opt/netaware").rglob("*") if path.is_file()]
print(json.dumps([modules, sum(path.lstat().st_size for path in files)]))
"""
FOUR_NODES = """\
name: four
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: e2e-s1}]}
      - {name: z2, nodes: [{name: e2e-s2}]}
  - name: r2
    zones:
      - {name: z3, nodes: [{name: e2e-s3}]}
      - {name: z4, nodes: [{name: e2e-s4}]}
links:
  - {between: [z1, z2], rtt: 2ms}
  - {between: [z1, z3], rtt: 20ms}
  - {between: [z1, z4], rtt: 25ms}
  - {between: [z2, z3], rtt: 22ms}
  - {between: [z2, z4], rtt: 27ms}
  - {between: [z3, z4], rtt: 3ms}
nodeDefaults: {kubelet: real, cpu: 2, memory: 4Gi}
"""
APP_GROUP = make_appgroup_body("shop", {"web": {"store": 10}, "store": {}}, members=2, algorithm="ReverseKahn")
# Round trips of FOUR_NODES.
RTT_MS_BY_PAIR = {("z1", "z2"): 2, ("z1", "z3"): 20, ("z2", "z4"): 27, ("z3", "z4"): 3}


def make_workload(name: str) -> dict[str, Any]:
    """A Deployment of a workload of `APP_GROUP`."""
    labels = {"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": name}
    container = {"name": "server", "image": APP_IMAGE, "args": ["serve"], "resources": {"requests": {"cpu": "100m"}}}
    return make_deployment(name, container, labels=labels, schedulerName="network-aware-scheduler")


@pytest.fixture
def cluster(
    tmp_path: Path, lab_command: LabCommand, node_binaries: NodeBinaries, images: Mapping[str, Path]
) -> Cluster:
    shipped_lab = start_shipped_lab(lab_command, tmp_path, FOUR_NODES, images, NEXT_VERSION)
    wait_until(
        lambda: "False" not in shipped_lab.run("get", "pods", "-A", "-o", "jsonpath={..conditions[*].status}"),
        "DNS and metrics",
    )
    return shipped_lab


def assert_webhook_gates_pods(cluster: Cluster) -> None:
    """A pod of an AppGroup has a gate, which only the webhook can have set."""
    assert cluster.get("mutatingadmissionpolicies")["items"] == []
    template = make_workload("web")["spec"]["template"]
    body = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "gated"}}
    dry_run = ("create", "--dry-run=server", "-n", "default", "-o", "json", "-f", "-")
    assert json.loads(cluster.run(*dry_run, text=json.dumps(body)))["spec"]["schedulingGates"]


def assert_kubectl_tools_work(cluster: Cluster) -> None:
    """Logs, exec and port-forward work; the API server forwards them to the kubelet."""
    assert "agent starts" in cluster.run("-n", NAMESPACE, "logs", "daemonset/netaware-agent")
    table = cluster.run("-n", NAMESPACE, "exec", "daemonset/netaware-agent", "--", "python", "-m", "agent", "capacity")
    assert "wan0" in table
    with cluster.forward_port("service/netaware-controller", 9851) as url:
        assert urllib.request.urlopen(f"{url}/healthz", timeout=30).status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/", timeout=30)


def assert_images_are_small(cluster: Cluster) -> None:
    """The sizes of images, with bytecode, are within `IMAGE_LIMITS`; no image has modules of another program."""
    for workload, (limit_mib, foreign_modules) in IMAGE_LIMITS.items():
        command = ["exec", workload, "--", "python", "-c", INSPECT_SCRIPT, *foreign_modules]
        found_modules, size_bytes = json.loads(cluster.run("-n", NAMESPACE, *command))
        assert found_modules == [], workload
        assert size_bytes <= limit_mib << 20, f"{workload}: {size_bytes / 2**20:.0f} MiB"


def read_costs(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Costs by pair of zones; empty until they are measured."""
    (body,) = cluster.get("networktopologies", "-n", NAMESPACE)["items"]
    topology = msgspec.convert(body, NetworkTopology)
    condition = conditions.find_condition(topology.status.conditions, "Measured")
    is_measured = condition is not None and condition.status == "True"
    return zone_costs_of(topology.weight(NETPERF_COSTS)) if is_measured else {}


def assert_costs_are_measured(cluster: Cluster) -> None:
    """Costs are not below the emulated round trips, and nodes have the annotated bandwidth."""
    wait_until(
        lambda: len(read_costs(cluster)) == 4 * 3, "a cost of every pair of zones", lambda: str(read_costs(cluster))
    )
    costs = read_costs(cluster)
    # No upper bound: on a busy machine round trips are longer. A cost that was inferred first may stay up to 10 % too low, by hysteresis.
    for pair, rtt_ms in RTT_MS_BY_PAIR.items():
        assert costs[pair] >= 0.9 * rtt_ms, costs
    allocatable = [node["status"]["allocatable"] for node in cluster.get("nodes")["items"]]
    assert {amounts.get("network.aware.com/bandwidth") for amounts in allocatable} == {"1G"}


def assert_placement_is_near(cluster: Cluster) -> None:
    """Pods that may call each other over 10 ms at most run in one region; netaware's scheduler alone binds them."""
    cluster.create("shop", APP_GROUP, make_workload("web"), make_workload("store"))
    cluster.wait_for_rollout("shop")
    region_by_node = {node["name"]: node["region"] for node in cluster.lab["nodes"]}
    region_by_app = {
        pod["metadata"]["labels"]["app"]: region_by_node[pod["spec"]["nodeName"]]
        for pod in cluster.list_pods("-n", "shop")
    }
    assert region_by_app["web"] == region_by_app["store"], "web and store are in different regions"
    messages = [event.get("message", "") for event in cluster.get("events", "-n", "shop")["items"]]
    conflicts = [message for message in messages if "is already assigned" in message]
    assert conflicts == [], "two schedulers bound the same pod"
    cluster.run("delete", "namespace", "shop", "--wait=true")


def uninstall_while_a_pod_is_gated(cluster: Cluster) -> None:
    """The commands of docs/install.md uninstall, and open the gate of a pod whose group is incomplete."""
    cluster.create("waiting", APP_GROUP, make_workload("web"))
    wait_until(lambda: list_gates(cluster) == ["netaware.io/topological-order"], "a gated pod")
    *release_blocks, delete = read_shell_blocks("install", "Uninstall")
    paste(cluster, "".join(release_blocks))
    columns = "custom-columns=OWNER:.metadata.annotations.netaware\\.io/bandwidth-owner"
    assert set(cluster.run("get", "nodes", "-o", columns).split()) == {"OWNER", "<none>"}
    wait_until(lambda: list_gates(cluster) == [], "the gate to be open")
    paste(cluster, delete)
    cluster.run("delete", "namespace", "waiting", "--wait=false")


def list_gates(cluster: Cluster) -> list[str]:
    """The gates of the only pod in the namespace ``waiting``, if it exists."""
    pods = cluster.get("pods", "-n", "waiting")["items"]
    assert len(pods) < 2
    return [gate["name"] for pod in pods for gate in pod["spec"].get("schedulingGates", ())]


def paste(cluster: Cluster, script: str) -> None:
    terminal = Terminal(Path(cluster.lab["kubectl"]), Path(cluster.lab["kubeconfig"]))
    code, output = terminal.paste(f"set -eu\n{script}", timeout_s=TIMEOUT_S)
    assert code == 0, f"{script}\n{output}{cluster.describe_pods()}"


@pytest.mark.timeout(1500, func_only=True)
def test_overlays_install_measure_place_pods_and_uninstall_without_leftovers_on_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The order: observe-only, the webhook on Kubernetes 1.35, the other overlays, enforce, and the uninstallation."""
    original_fields, original_tc = cluster.read_node_fields(), cluster.read_traffic_control()
    for node in cluster.lab["nodes"]:
        # The agent does not take the speed of a TUN device for the node's capacity.
        cluster.run("annotate", "node", node["name"], "netaware.io/bandwidth-capacity=1G")
    for definition in find_or_fetch_operator_definitions():
        cluster.run("apply", "--server-side", "-f", str(definition))
    certificate = yaml.safe_dump_all(generate_webhook_manifests())  # as in docs/install.md
    cluster.run("apply", "--server-side", "-f", str(MANIFESTS / "base" / "common" / "namespace.yaml"))
    cluster.run("apply", "--server-side", "-f", "-", text=certificate)
    cluster.apply_overlay(MANIFESTS / "overlays" / "observe-only")
    cluster.apply_overlay(write_kustomization("default", "kubernetes-1.35", folder=tmp_path))
    assert_webhook_gates_pods(cluster)
    cluster.run("delete", "-f", "-", text=certificate)
    for overlay in ("any-scheduler", "default", "prometheus-operator", "descheduler"):
        cluster.apply_overlay(MANIFESTS / "overlays" / overlay)
        monitors = cluster.run("get", "podmonitors,servicemonitors,prometheusrules", "-n", NAMESPACE, "-o", "name")
        assert bool(monitors) == (overlay == "prometheus-operator")
    assert_kubectl_tools_work(cluster)
    assert_images_are_small(cluster)
    assert_costs_are_measured(cluster)
    assert_placement_is_near(cluster)
    image_tags = [{"name": recipe.name, "newTag": NEXT_VERSION} for recipe in (AGENT, CONTROLLER)]
    cluster.apply_overlay(write_kustomization("enforce", folder=tmp_path, images=image_tags))
    agents = cluster.list_pods("-n", NAMESPACE, "-l", "app.kubernetes.io/name=netaware-agent")
    assert {pod["spec"]["containers"][0]["image"] for pod in agents} == {f"{AGENT.name}:{NEXT_VERSION}"}
    uninstall_while_a_pod_is_gated(cluster)
    for node in cluster.lab["nodes"]:
        cluster.run("annotate", "node", node["name"], "netaware.io/bandwidth-capacity-")
    # The kubelet removes from allocatable what capacity no longer has, with its next report.
    wait_until(
        lambda: cluster.read_node_fields() == original_fields, "the original fields", lambda: f"{original_fields}"
    )
    assert cluster.read_traffic_control() == original_tc
