"""On real nodes: throughput of limited pods, the move of a pod that burns CPU, and the default Prometheus queries.

All tests use one lab, with the shipped product except for the descheduler's settings. All kinds of bandwidth plugins
are tested in tests/integration/agent/test_cni_plugins.py.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from controller.descheduler.config import Queries
from controller.prometheus import PrometheusClient
from lab.cluster import Lab
from lab.image_build import CONTROLLER, IMAGE_TAG
from lab.realnode.cluster import APP_IMAGE
from lab.realnode.programs import NodeBinaries
from lab.topology import load_topology
from tests.e2e.real_cluster import NAMESPACE, Cluster, wait_until
from tests.integration.manifests.kubectl import write_kustomization
from tests.support.bodies import make_deployment
from tests.support.prometheus_program import run_prometheus

NODES = ("e2e-w1", "e2e-w2", "e2e-w3")
TOPOLOGY = """\
name: three
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: e2e-w1}]}
      - {name: z2, nodes: [{name: e2e-w2}]}
      - {name: z3, nodes: [{name: e2e-w3}]}
links:
  - {between: [z1, z2], rtt: 12ms}
  - {between: [z1, z3], rtt: 2ms}
  - {between: [z2, z3], rtt: 2ms}
nodeDefaults: {kubelet: real, cpu: 1, memory: 4Gi}
"""
LIMIT_BPS, CHANGED_LIMIT_BPS, RESPONSE_BYTES = 20_000_000, 5_000_000, 2_000_000
# Rates count payload only, so headers lower them.
TOLERANCE = 1.05
CONTROLLER_CONFIG = {
    "apiVersion": "netaware.io/v1alpha1",
    "kind": "ControllerConfiguration",
    "bootstrap": {"networkTopology": "nt-default", "probeSecret": True},
    "descheduler": {
        "enabled": True,
        "intervalS": 5,
        "protection": {"minPodAgeS": 10},
        "limits": {"unavailablePerWorkload": 1, "perWorkload": 1},
        "policy": {
            # Thresholds around the mean, because the machine decides how much CPU the burners get. On three nodes of
            # one core, if a burner uses the share u, the mean is 0.67 u: two are too much for a node if 1.33 u > 22 %,
            # and one is not if 0.33 u <= 22 %.
            "useDeviationThresholds": True,
            "lowThresholds": {"cpu": 5},
            "highThresholds": {"cpu": 22},
            "evictableNamespaces": {"include": ["burn"]},
            "anomalyCondition": {"consecutiveAbnormalities": 2},
        },
    },
}
DEFAULT_QUERIES = ("node_cpu", "node_memory", "node_bandwidth", "pod_cpu", "pod_memory", "pod_bandwidth")

pytestmark = [
    pytest.mark.real_nodes,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.alone,  # the use of processors by other tests would not be a pod's
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass(frozen=True)
class Stage:
    """The lab, its cluster, overlays that observe and enforce limits, and a Prometheus."""

    lab: Lab
    cluster: Cluster
    observing_overlay: Path
    enforcing_overlay: Path
    prometheus: PrometheusClient

    def read_metrics(self, node: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Yield name, labels and value of each sample of the node's agent."""
        address = self.lab.network_of(node).address
        exposition = urllib.request.urlopen(f"http://{address}:9850/metrics", timeout=30).read().decode()
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def read_verdicts(self, node: str) -> dict[str, tuple[str, str]]:
        """Return direction -> verdict and device of the node's limited pod."""
        return {
            labels["direction"]: (labels["verdict"], labels["device"])
            for name, labels, _ in self.read_metrics(node)
            if name == "netaware_pod_bandwidth_verdict" and labels["pod"] == f"limited-{node}"
        }

    def run_tc(self, node: str, *words: str) -> str:
        """Run tc in the node's network namespace; return its output."""
        argv = ["nsenter", f"--net=/run/netns/{self.lab.network_of(node).netns}", "tc", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout

    def find_address(self, pod: str) -> str:
        return str(self.cluster.get("pod", pod, "-n", "limits")["status"]["podIP"])

    def measure_request_ms(self, pod: str, url: str) -> float:
        """Send a request from inside a pod; return the milliseconds until the response is complete."""
        options = [f"--url={url}", "--rate=1", "--duration=500ms", "--warm-up=0s", "--timeout=60s"]
        command = ["exec", pod, "--", "/usr/local/bin/app", "load", *options]
        summary = json.loads(self.cluster.run("-n", "limits", *command, timeout_s=90))
        assert summary["requests"] == 1, summary
        assert summary["errors"] == 0, summary
        return float(summary["p50_ms"])

    def measure_rates_bps(self, node: str) -> dict[str, float]:
        """Return direction -> throughput of the limited pod, measured between it and its peer on the same node."""
        limited_pod, free_pod = f"limited-{node}", f"free-{node}"
        durations_ms = {
            "egress": self.measure_request_ms(free_pod, f"http://{self.find_address(limited_pod)}:8080/"),
            "ingress": self.measure_request_ms(limited_pod, f"http://{self.find_address(free_pod)}:8080/"),
        }
        return {direction: RESPONSE_BYTES * 8e3 / duration_ms for direction, duration_ms in durations_ms.items()}

    def exceeds_limit(self, node: str) -> bool:
        return min(self.measure_rates_bps(node).values()) > 1.5 * LIMIT_BPS

    def read_effective_bps(self, node: str, direction: str) -> float:
        """The limit of the limited pod that is in effect."""
        (bytes_per_s,) = [
            value
            for name, labels, value in self.read_metrics(node)
            if name == "netaware_pod_bandwidth_effective_rate_bytes_per_second"
            and labels["pod"] == f"limited-{node}"
            and labels["direction"] == direction
        ]
        return bytes_per_s * 8

    def has_limit(self, node: str, device: str) -> bool:
        """Whether the device's root is a token bucket, and a filter redirects the packets that the pod sends."""
        filters = self.run_tc(node, "filter", "show", "dev", device, "ingress")
        filters += self.run_tc(node, "filter", "show", "dev", device, "parent", "ffff:")
        return "tbf" in self.run_tc(node, "qdisc", "show", "dev", device, "root") and "mirred" in filters

    def wait_for_verdict(self, node: str, verdict: str) -> None:
        """Wait until both directions have a verdict."""
        wait_until(
            lambda: [v for v, _ in self.read_verdicts(node).values()] == [verdict, verdict],
            f"{verdict} on {node}",
            lambda: str(self.read_verdicts(node)),
        )


def make_pod(name: str, node: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "server", "image": APP_IMAGE, "args": ["serve", f"--answer={RESPONSE_BYTES}"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": dict(annotations)},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    node_binaries: NodeBinaries,
    images: Mapping[str, Path],
    prometheus_programs: Mapping[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("three")
    (folder / "three.yaml").write_text(TOPOLOGY)
    with tempfile.TemporaryDirectory() as labs:
        topology = load_topology(str(folder / "three.yaml"))
        async with Lab.start(topology, name="e2e-workloads", folder=Path(labs)) as lab:
            assert lab.real_nodes.images is not None
            for name, layout in images.items():
                lab.real_nodes.images.add_oci_layout(name, layout)
            cluster = Cluster(lab.describe())
            for node in NODES:
                cluster.run("annotate", "node", node, "netaware.io/bandwidth-capacity=1G")
            async with run_prometheus(prometheus_programs, folder, jobs=make_scrape_jobs(lab)) as prometheus:
                yield Stage(lab, cluster, *write_overlays(folder), prometheus)


def make_scrape_job(lab: Lab, name: str, port: int, **options: Any) -> dict[str, Any]:
    """A scrape job of a port of all nodes, with the label ``node`` that docs/descheduling.md requires."""
    targets = [
        {"targets": [f"{network.address}:{port}"], "labels": {"node": network.node.name}} for network in lab.networks
    ]
    return {"job_name": name, "static_configs": targets, "scrape_interval": "5s", "scrape_timeout": "5s", **options}


def make_scrape_jobs(lab: Lab) -> list[dict[str, Any]]:
    """The scrape jobs of kubelets and agents."""
    kubelet_options = {
        "scheme": "https",
        "tls_config": {"ca_file": str(lab.control_plane.authority.certificate)},
        "authorization": {"credentials": lab.control_plane.admin_token},
    }
    return [
        make_scrape_job(lab, "resource", 10250, metrics_path="/metrics/resource", **kubelet_options),
        make_scrape_job(lab, "cadvisor", 10250, metrics_path="/metrics/cadvisor", **kubelet_options),
        make_scrape_job(lab, "agents", 9850),
    ]


def write_overlays(folder: Path) -> tuple[Path, Path]:
    """Write the overlay `descheduler` with `CONTROLLER_CONFIG`, without and with the component `enforce`."""
    generator = {
        "name": "netaware-controller-config",
        "namespace": NAMESPACE,
        "behavior": "merge",
        "literals": [f"config.yaml={json.dumps(CONTROLLER_CONFIG)}"],
    }
    repair = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--repair-burst"}]
    patch = {"target": {"kind": "DaemonSet", "name": "netaware-agent"}, "patch": json.dumps(repair)}
    return (
        write_kustomization("descheduler", folder=folder, configMapGenerator=[generator]),
        write_kustomization("descheduler", "enforce", folder=folder, configMapGenerator=[generator], patches=[patch]),
    )


def list_burner_nodes(cluster: Cluster) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "") for pod in cluster.list_pods("-n", "burn"))


async def test_limits_are_repaired_and_limit_the_throughput_of_pods(stage: Stage) -> None:
    cluster, changed_node = stage.cluster, NODES[0]
    limits = {f"kubernetes.io/{direction}-bandwidth": str(LIMIT_BPS) for direction in ("ingress", "egress")}
    limited_pods = [make_pod(f"limited-{node}", node, limits) for node in NODES]
    cluster.create("limits", *limited_pods, *(make_pod(f"free-{node}", node, {}) for node in NODES))
    cluster.run("-n", "limits", "wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s", timeout_s=130)

    cluster.apply_overlay(stage.observing_overlay)
    for node in NODES:
        # containerd requests bursts of 512 MB from the plugin, so that the limit has no effect.
        stage.wait_for_verdict(node, "burst-too-large")
        wait_until(partial(stage.exceeds_limit, node), "more than the limit")

    cluster.apply_overlay(stage.enforcing_overlay)
    for node in NODES:
        stage.wait_for_verdict(node, "enforced")
        assert max(stage.measure_rates_bps(node).values()) <= TOLERANCE * LIMIT_BPS

    device = stage.read_verdicts(changed_node)["ingress"][1]
    for qdisc in ("root", "ingress"):
        stage.run_tc(changed_node, "qdisc", "del", "dev", device, qdisc)
    wait_until(lambda: stage.has_limit(changed_node, device), "the repair")
    assert max(stage.measure_rates_bps(changed_node).values()) <= TOLERANCE * LIMIT_BPS

    annotation = f"kubernetes.io/egress-bandwidth={CHANGED_LIMIT_BPS}"
    cluster.run("-n", "limits", "annotate", "--overwrite", "pod", f"limited-{changed_node}", annotation)
    wait_until(lambda: stage.read_effective_bps(changed_node, "egress") == CHANGED_LIMIT_BPS, "the changed limit")
    rates_bps = stage.measure_rates_bps(changed_node)
    assert rates_bps["egress"] <= TOLERANCE * CHANGED_LIMIT_BPS
    assert rates_bps["ingress"] <= TOLERANCE * LIMIT_BPS


async def test_usage_of_metrics_server_moves_a_pod_from_an_overutilized_node(stage: Stage) -> None:
    cluster, (hot_node, *other_nodes) = stage.cluster, NODES
    container = {
        "name": "burner",
        "image": f"{CONTROLLER.name}:{IMAGE_TAG}",
        "command": ["python", "-c", "while True: pass"],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}},
    }
    cluster.run("cordon", *other_nodes)
    cluster.create("burn", make_deployment("burner", container, replicas=2))
    cluster.wait_for_rollout("burn")
    assert list_burner_nodes(cluster) == [hot_node, hot_node]

    cluster.run("uncordon", *other_nodes)

    log = ("-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/name=netaware-controller", "--tail=20")
    wait_until(
        lambda: "" not in list_burner_nodes(cluster) and len(set(list_burner_nodes(cluster))) == 2,
        "one of the two to move",
        lambda: cluster.run("top", "nodes") + cluster.run("-n", "burn", "get", "events") + cluster.run(*log),
    )
    (event,) = [e for e in cluster.get("events", "-n", "burn")["items"] if e["reason"] == "Descheduled"]
    assert "node cpu usage(" in event["message"]


async def test_default_queries_return_series_of_real_kubelets_and_agents(stage: Stage) -> None:
    queries = Queries()
    pods = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in stage.cluster.get("pods", "-A")["items"]}
    assert {namespace for namespace, _ in pods} >= {"burn", "limits", "kube-system", NAMESPACE}
    for name in DEFAULT_QUERIES:
        all_series = await stage.prometheus.query(getattr(queries, name))
        if name.startswith("node"):
            assert {series.labels["node"] for series in all_series} == set(NODES), name
        else:
            series_pods = {(series.labels["namespace"], series.labels["pod"]) for series in all_series}
            assert {namespace for namespace, _ in series_pods & pods} >= {"burn", "limits"}, (name, series_pods)
        assert all(series.value >= 0 for series in all_series), name
        assert max(series.value for series in all_series) > 0, name
    cpu_series = await stage.prometheus.query(queries.pod_cpu)
    burner_cores = [series.value for series in cpu_series if series.labels["namespace"] == "burn"]
    assert all(0 < cores < 0.4 for cores in burner_cores), "of 0.3 cores at most"
