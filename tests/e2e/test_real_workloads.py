"""On real nodes: throughput of limited pods, the move of a pod that burns CPU, and the default Prometheus queries.

All tests use one lab, with the shipped product except for the descheduler's settings. All kinds of bandwidth plugins are tested in
tests/integration/agent/test_cni_plugins.py.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
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
from tests.e2e.real_cluster import NAMESPACE, TIMEOUT_S, Cluster, wait_until
from tests.integration.manifests.kubectl import write_kustomization
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
LIMIT_BPS, CHANGED_BPS, ANSWER_BYTES = 20_000_000, 5_000_000, 2_000_000
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
            # Thresholds around the mean, because the machine decides how much CPU the burners get. On three nodes of one core, if a
            # burner uses the share u, two are too much for a node if 1.33 u > 22 %, and one is not if 0.33 u <= 22 %.
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
    observing: Path
    enforcing: Path
    prometheus: PrometheusClient

    def read_metrics(self, node: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Yield name, labels and value of each sample of the node's agent."""
        address = self.lab.network_of(node).address
        text = urllib.request.urlopen(f"http://{address}:9850/metrics", timeout=30).read().decode()
        for family in text_string_to_metric_families(text):
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
        text = self.cluster.run("-n", "limits", "exec", pod, "--", "/usr/local/bin/app", "load", *options, timeout_s=90)
        summary = json.loads(text)
        assert (summary["requests"], summary["errors"]) == (1, 0), summary
        return float(summary["p50_ms"])

    def measure_rates_bps(self, node: str) -> dict[str, float]:
        """Return direction -> throughput of the limited pod, measured between it and its peer on the same node."""
        limited, free = f"limited-{node}", f"free-{node}"
        durations_ms = {
            "egress": self.measure_request_ms(free, f"http://{self.find_address(limited)}:8080/"),
            "ingress": self.measure_request_ms(limited, f"http://{self.find_address(free)}:8080/"),
        }
        return {direction: ANSWER_BYTES * 8e3 / ms for direction, ms in durations_ms.items()}


def build_pod(name: str, node: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "server", "image": APP_IMAGE, "args": ["serve", f"--answer={ANSWER_BYTES}"]}
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
            async with run_prometheus(prometheus_programs, folder, jobs=build_scrape_jobs(lab)) as prometheus:
                yield Stage(lab, cluster, *write_overlays(folder), prometheus)


def build_scrape_jobs(lab: Lab) -> list[dict[str, Any]]:
    """Return scrape jobs of kubelets and agents, with the label ``node`` that docs/descheduling.md requires."""
    authorization = {"credentials": lab.control_plane.admin_token}
    kubelet = {
        "scheme": "https",
        "tls_config": {"ca_file": str(lab.control_plane.authority.certificate)},
        "authorization": authorization,
    }

    def job(name: str, port: int, **more: Any) -> dict[str, Any]:
        each = [
            {"targets": [f"{network.address}:{port}"], "labels": {"node": network.node.name}}
            for network in lab.networks
        ]
        return {"job_name": name, "static_configs": each, "scrape_interval": "5s", "scrape_timeout": "5s", **more}

    return [
        job("resource", 10250, metrics_path="/metrics/resource", **kubelet),
        job("cadvisor", 10250, metrics_path="/metrics/cadvisor", **kubelet),
        job("agents", 9850),
    ]


def write_overlays(folder: Path) -> tuple[Path, Path]:
    """Write the overlay `descheduler` with this file's configuration, without and with the component `enforce`."""
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


async def test_limits_are_repaired_and_limit_the_throughput_of_pods(stage: Stage) -> None:
    cluster = stage.cluster
    cluster.run("create", "namespace", "limits")
    limits = {f"kubernetes.io/{way}-bandwidth": str(LIMIT_BPS) for way in ("ingress", "egress")}
    pods = [build_pod(f"limited-{node}", node, limits) for node in NODES] + [
        build_pod(f"free-{n}", n, {}) for n in NODES
    ]
    cluster.run("apply", "-n", "limits", "-f", "-", text="\n---\n".join(map(json.dumps, pods)))
    cluster.run("-n", "limits", "wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s", timeout_s=130)
    cluster.apply(stage.observing)
    for node in NODES:
        # containerd requests bursts of 512 MB from the plugin, so that the limit has no effect.
        await_verdict(stage, node, "burst-too-large")
        wait_until(lambda n=node: min(stage.measure_rates_bps(n).values()) > 1.5 * LIMIT_BPS, "more than the limit")  # type: ignore[misc]
    cluster.apply(stage.enforcing)
    for node in NODES:
        await_verdict(stage, node, "enforced")
        # Rates count payload only, so headers lower them.
        assert max(stage.measure_rates_bps(node).values()) <= 1.05 * LIMIT_BPS
    first = NODES[0]
    device = stage.read_verdicts(first)["ingress"][1]
    for qdisc in ("root", "ingress"):
        stage.run_tc(first, "qdisc", "del", "dev", device, qdisc)
    wait_until(lambda: is_limited(stage, first, device), "the repair")
    assert max(stage.measure_rates_bps(first).values()) <= 1.05 * LIMIT_BPS
    changed = f"kubernetes.io/egress-bandwidth={CHANGED_BPS}"
    cluster.run("-n", "limits", "annotate", "--overwrite", "pod", f"limited-{first}", changed)
    wait_until(lambda: read_effective_bps(stage, first, "egress") == CHANGED_BPS, "the changed limit")
    rates = stage.measure_rates_bps(first)
    assert rates["egress"] <= 1.05 * CHANGED_BPS
    assert rates["ingress"] <= 1.05 * LIMIT_BPS


def await_verdict(stage: Stage, node: str, verdict: str) -> None:
    """Wait until both directions have a verdict."""
    wait_until(
        lambda: [v for v, _ in stage.read_verdicts(node).values()] == [verdict, verdict],
        f"{verdict} on {node}",
        lambda: str(stage.read_verdicts(node)),
    )


def is_limited(stage: Stage, node: str, device: str) -> bool:
    """Whether the device's root is a token bucket, and a filter redirects the packets that the pod sends."""
    filters = "".join(
        stage.run_tc(node, "filter", "show", "dev", device, *way) for way in (("ingress",), ("parent", "ffff:"))
    )
    return "tbf" in stage.run_tc(node, "qdisc", "show", "dev", device, "root") and "mirred" in filters


def read_effective_bps(stage: Stage, node: str, direction: str) -> float:
    (rate,) = [
        value
        for name, labels, value in stage.read_metrics(node)
        if name == "netaware_pod_bandwidth_effective_rate_bytes_per_second"
        and (labels["pod"], labels["direction"]) == (f"limited-{node}", direction)
    ]
    return rate * 8


async def test_usage_of_metrics_server_moves_a_pod_from_an_overutilized_node(stage: Stage) -> None:
    cluster, (first, *others) = stage.cluster, NODES
    cluster.run("create", "namespace", "burn")
    container = {
        "name": "burner",
        "image": f"{CONTROLLER.name}:{IMAGE_TAG}",
        "command": ["python", "-c", "while True: pass"],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": {"app": "burner"}}, "spec": spec}
    burner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "burner"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "burner"}}, "template": template},
    }
    for node in others:
        cluster.run("cordon", node)
    cluster.run("apply", "-n", "burn", "-f", "-", text=json.dumps(burner))
    rollout = ["rollout", "status", "deployment/burner", f"--timeout={TIMEOUT_S:.0f}s"]
    cluster.run("-n", "burn", *rollout, timeout_s=TIMEOUT_S + 10)

    def list_burner_nodes() -> list[str]:
        pods = cluster.get("pods", "-n", "burn")["items"]
        return sorted(p["spec"].get("nodeName", "") for p in pods if "deletionTimestamp" not in p["metadata"])

    assert list_burner_nodes() == [first, first]
    for node in others:
        cluster.run("uncordon", node)
    log = ("-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/name=netaware-controller", "--tail=20")
    wait_until(
        lambda: len(set(list_burner_nodes())) == 2 and "" not in list_burner_nodes(),
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
        series = await stage.prometheus.query(getattr(queries, name))
        if name.startswith("node"):
            assert {s.labels["node"] for s in series} == set(NODES), name
        else:
            series_pods = {(s.labels["namespace"], s.labels["pod"]) for s in series}
            assert {namespace for namespace, _ in series_pods & pods} >= {"burn", "limits"}, (name, series_pods)
        assert all(s.value >= 0 for s in series), name
        assert max(s.value for s in series) > 0, name
    burning = [s for s in await stage.prometheus.query(queries.pod_cpu) if s.labels["namespace"] == "burn"]
    assert all(0 < s.value < 0.4 for s in burning), "of 0.3 cores at most"
