"""What only pods that run can show, on real nodes: limits by five versions of the CNI bandwidth plugin as pods feel them, a pod
that burns CPU and is moved, the default Prometheus queries over real kubelets.

One lab for all of them; the product is installed as it ships, but for names of images and the descheduler's settings.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from controller.descheduler.config import Queries
from controller.prometheus import PrometheusClient
from lab.cluster import Lab
from lab.image_build import CONTROLLER, version
from lab.realnode.cluster import APP_IMAGE
from lab.realnode.programs import NodePrograms
from lab.shipped import build_images
from lab.topology import load
from tests.e2e.real_cluster import MANIFESTS, NAMESPACE, PATIENCE_S, Cluster, configured_overlay, wait_until
from tests.support.prometheus_server import start_prometheus
from tests.support.tools.builds import PROMETHEUS, find_or_build_tools

# The bandwidth plugin of every kind that there has been, and what it is chained behind.
PLUGINS = {
    "e2e-w1": ("1.1.1", "bridge"),
    "e2e-w2": ("1.5.0", "ptp"),
    "e2e-w3": ("1.5.1", "bridge"),
    "e2e-w4": ("1.6.2", "ptp"),
    "e2e-w5": ("1.9.1", "bridge"),
}
HTB = ("1.5.0", "1.5.1")
ZONES = {"z1": ["e2e-w1"], "z2": ["e2e-w2", "e2e-w4"], "z3": ["e2e-w3", "e2e-w5"]}
FAR_MS = 12


def zone(name: str, nodes: Iterable[str]) -> str:
    """One line of the topology, in YAML's flow style, which is JSON."""
    plugins = [(node, *PLUGINS[node]) for node in nodes]
    found = [{"name": node, "cniPlugins": version, "cniMain": main} for node, version, main in plugins]
    return json.dumps({"name": name, "nodes": found}) + "\n"


TOPOLOGY = f"""\
name: three
regions:
  - name: r1
    zones:
{"".join(f"      - {zone(name, nodes)}" for name, nodes in ZONES.items())}links:
  - {{between: [z1, z2], rtt: {FAR_MS}ms}}
  - {{between: [z1, z3], rtt: 2ms}}
  - {{between: [z2, z3], rtt: 2ms}}
nodeDefaults: {{kubelet: real, cpu: 1, memory: 4Gi}}
"""
LIMIT_BPS, CHANGED_BPS, ANSWER_BYTES = 20_000_000, 5_000_000, 2_000_000
ROOT = Path(__file__).parents[2]
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
            # From the mean: how much of their 0.6 cores the burners get is up to the machine. Of five nodes of one core, with u
            # the share of one burner: two of them are hot from 1.6 u > 22 % on, and one fits elsewhere while 0.6 u <= 22 %.
            "useDeviationThresholds": True,
            "lowThresholds": {"cpu": 5},
            "highThresholds": {"cpu": 22},
            "evictableNamespaces": {"include": ["burn"]},
            "anomalyCondition": {"consecutiveAbnormalities": 2},
        },
    },
}
OWN_QUERIES = ("node_cpu", "node_memory", "node_bandwidth", "pod_cpu", "pod_memory", "pod_bandwidth")

pytestmark = [
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.alone,  # other tests' use of the machine's two processors would be no pod's
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass(frozen=True)
class Stage:
    """The lab, by kubectl, and the overlays of its operator: one that observes and one that enforces."""

    lab: Lab
    cluster: Cluster
    observing: Path
    enforcing: Path
    prometheus: str

    def metrics(self, node: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """What the node's agent exports."""
        address = self.lab.node(node).address
        text = urllib.request.urlopen(f"http://{address}:9850/metrics", timeout=30).read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def verdicts(self, node: str) -> dict[str, tuple[str, str]]:
        """Verdict and device of the node's limited pod, by direction."""
        return {
            labels["direction"]: (labels["verdict"], labels["device"])
            for name, labels, _ in self.metrics(node)
            if name == "netaware_pod_bandwidth_verdict" and labels["pod"] == f"limited-{node}"
        }

    def run(self, node: str, *command: str, timeout_s: float = 30.0) -> str:
        """What a command of this machine prints in the node's network."""
        argv = ["nsenter", f"--net=/run/netns/{self.lab.node(node).netns}", *command]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT).stdout

    def tc(self, node: str, *words: str) -> str:
        return self.run(node, "tc", *words)

    def address(self, pod: str) -> str:
        return str(self.cluster.get("pod", pod, "-n", "limits")["status"]["podIP"])

    def fetch(self, pod: str, url: str) -> float:
        """Milliseconds until one answer is complete, asked for from inside a pod."""
        call = [f"--url={url}", "--rate=1", "--duration=500ms", "--warm-up=0s", "--timeout=60s"]
        text = self.cluster.run("-n", "limits", "exec", pod, "--", "/usr/local/bin/app", "load", *call, timeout_s=90)
        found = json.loads(text)
        assert (found["requests"], found["errors"]) == (1, 0), found
        return float(found["p50_ms"])

    def rates_bps(self, node: str) -> dict[str, float]:
        """What a pod gets through, measured inside it and inside its peer on the same node: egress and ingress."""
        limited, free = f"limited-{node}", f"free-{node}"
        took_ms = {
            "egress": self.fetch(free, f"http://{self.address(limited)}:8080/"),
            "ingress": self.fetch(limited, f"http://{self.address(free)}:8080/"),
        }
        return {direction: ANSWER_BYTES * 8e3 / ms for direction, ms in took_ms.items()}


def pod(name: str, node: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "server", "image": APP_IMAGE, "args": ["serve", f"--answer={ANSWER_BYTES}"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": dict(annotations)},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(node_programs: NodePrograms, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("three")
    (folder / "three.yaml").write_text(TOPOLOGY)
    images = await asyncio.to_thread(build_images)
    program = (await asyncio.to_thread(find_or_build_tools, PROMETHEUS))["prometheus"]
    with tempfile.TemporaryDirectory() as labs:
        topology = load(str(folder / "three.yaml"))
        async with Lab.start(topology, name="e2e-workloads", folder=Path(labs)) as lab:
            assert lab.real.images is not None
            for name, layout in images.items():
                lab.real.images.add_layout(name, layout)
            cluster = Cluster(lab.describe())
            for network in lab.nodes:
                cluster.run("annotate", "node", network.node.name, "netaware.io/bandwidth-capacity=1G")
            url = await scrape_kubelets(lab, program)
            yield Stage(lab, cluster, *overlays(folder), url)


async def scrape_kubelets(lab: Lab, program: Path) -> str:
    """Prometheus over kubelets and agents, with the label ``node`` that docs/descheduling.md asks for."""
    authority = {"ca_file": str(lab.control_plane.ca_file)}
    secured = {
        "scheme": "https",
        "tls_config": authority,
        "authorization": {"credentials": lab.control_plane.admin_token},
    }
    slow = {"scrape_interval": "5s", "scrape_timeout": "5s"}

    def named(port: int) -> dict[str, Any]:
        rules = [
            {
                "source_labels": ["__address__"],
                "regex": f"{node.address}:{port}",
                "target_label": "node",
                "replacement": node.node.name,
            }
            for node in lab.nodes
        ]
        return {**slow, "relabel_configs": rules}

    settings = {
        "resource": {**secured, **named(10250), "metrics_path": "/metrics/resource"},
        "cadvisor": {**secured, **named(10250), "metrics_path": "/metrics/cadvisor"},
        "agents": named(9850),
    }
    ports = {"resource": 10250, "cadvisor": 10250, "agents": 9850}
    targets = {job: [f"{node.address}:{port}" for node in lab.nodes] for job, port in ports.items()}
    return await start_prometheus(lab, program, targets, settings=settings)


def overlays(folder: Path) -> tuple[Path, Path]:
    """The shipped overlay `descheduler` with a configuration of our own; and the same with the component `enforce`."""
    observing, enforcing = folder / "observing", folder / "enforcing"
    configured_overlay(observing, "descheduler", CONTROLLER_CONFIG)
    enforcing.mkdir()
    component = os.path.relpath(MANIFESTS / "components" / "enforce", enforcing)
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    repair = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--repair-burst"}]
    patch = {"target": {"kind": "DaemonSet", "name": "netaware-agent"}, "patch": yaml.safe_dump(repair)}
    second = {**kind, "resources": ["../observing"], "components": [component]}
    (enforcing / "kustomization.yaml").write_text(yaml.safe_dump({**second, "patches": [patch]}))
    return observing, enforcing


async def test_limits_by_every_plugin_are_judged_repaired_and_felt_inside_pods(stage: Stage) -> None:
    cluster = stage.cluster
    cluster.run("create", "namespace", "limits")
    asked = {f"kubernetes.io/{way}-bandwidth": str(LIMIT_BPS) for way in ("ingress", "egress")}
    pods = [pod(f"limited-{node}", node, asked) for node in PLUGINS] + [pod(f"free-{n}", n, {}) for n in PLUGINS]
    cluster.run("apply", "-n", "limits", "-f", "-", text="\n---\n".join(map(json.dumps, pods)))
    cluster.run("-n", "limits", "wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s", timeout_s=130)
    cluster.apply(stage.observing)
    # containerd asks for bursts of 512 MB: each plugin sets them up as asked, and the limit does not limit.
    for node, (plugins, main) in PLUGINS.items():
        wait_until(
            lambda node=node: {v for v, _ in stage.verdicts(node).values()} == {"burst-too-large"},  # type: ignore[misc]
            f"the verdict of {plugins} behind {main}",
            lambda node=node: str(stage.verdicts(node)),  # type: ignore[misc]
        )
        devices = {direction: device for direction, (_, device) in stage.verdicts(node).items()}
        kinds = {stage.tc(node, "qdisc", "show", "dev", device, "root").split()[1] for device in devices.values()}
        assert kinds == ({"htb"} if plugins in HTB else {"tbf"})
        at_bridge = "master" in stage.run(node, "ip", "link", "show", devices["ingress"])
        assert at_bridge == (main == "bridge")
        wait_until(lambda node=node: min(stage.rates_bps(node).values()) > 1.5 * LIMIT_BPS, "more than the limit")  # type: ignore[misc]
    cluster.apply(stage.enforcing)
    for node in PLUGINS:
        await_enforced(stage, node)
        # Answers are all payload: what headers take only makes them slower.
        assert max(stage.rates_bps(node).values()) <= 1.05 * LIMIT_BPS
    devices = {node: stage.verdicts(node)["ingress"][1] for node in PLUGINS}
    for node, device in devices.items():
        stage.tc(node, "qdisc", "del", "dev", device, "root")
        stage.tc(node, "qdisc", "del", "dev", device, "ingress")
    for node, device in devices.items():
        wait_until(lambda node=node, device=device: is_limited(stage, node, device), "the repair")  # type: ignore[misc]
        assert max(stage.rates_bps(node).values()) <= 1.05 * LIMIT_BPS
    for node in PLUGINS:
        changed = f"kubernetes.io/egress-bandwidth={CHANGED_BPS}"
        cluster.run("-n", "limits", "annotate", "--overwrite", "pod", f"limited-{node}", changed)
    for node in PLUGINS:
        wait_until(lambda node=node: effective_bps(stage, node, "egress") == CHANGED_BPS, "the changed limit")  # type: ignore[misc]
        rates = stage.rates_bps(node)
        assert rates["egress"] <= 1.05 * CHANGED_BPS
        assert rates["ingress"] <= 1.05 * LIMIT_BPS


def await_enforced(stage: Stage, node: str) -> None:
    def is_enforced() -> bool:
        return [v for v, _ in stage.verdicts(node).values()] == ["enforced", "enforced"]

    wait_until(is_enforced, f"limits on {node}", lambda: str(stage.verdicts(node)))


def is_limited(stage: Stage, node: str, device: str) -> bool:
    """Both ways: a bucket at the device's root, and a filter that redirects what the pod sends."""
    bucket = stage.tc(node, "qdisc", "show", "dev", device, "root")
    filters = "".join(
        stage.tc(node, "filter", "show", "dev", device, *way) for way in (("ingress",), ("parent", "ffff:"))
    )
    return any(kind in bucket for kind in ("tbf", "htb")) and "mirred" in filters


def effective_bps(stage: Stage, node: str, direction: str) -> float:
    (rate,) = [
        value
        for name, labels, value in stage.metrics(node)
        if name == "netaware_pod_bandwidth_effective_rate_bytes_per_second"
        and (labels["pod"], labels["direction"]) == (f"limited-{node}", direction)
    ]
    return rate * 8


async def test_a_deployment_that_burns_cpu_is_moved_by_what_metrics_server_says(stage: Stage) -> None:
    cluster, (first, *others) = stage.cluster, PLUGINS
    cluster.run("create", "namespace", "burn")
    container = {
        "name": "burner",
        "image": f"{CONTROLLER.name}:{version()}",
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
    rollout = ["rollout", "status", "deployment/burner", f"--timeout={PATIENCE_S:.0f}s"]
    cluster.run("-n", "burn", *rollout, timeout_s=PATIENCE_S + 10)

    def nodes_of_burners() -> list[str]:
        pods = cluster.get("pods", "-n", "burn")["items"]
        return sorted(p["spec"].get("nodeName", "") for p in pods if "deletionTimestamp" not in p["metadata"])

    assert nodes_of_burners() == [first, first]
    for node in others:
        cluster.run("uncordon", node)
    wait_until(
        lambda: len(set(nodes_of_burners())) == 2 and "" not in nodes_of_burners(),
        "one of the two to move",
        lambda: cluster.run("top", "nodes") + cluster.run("-n", "burn", "get", "events") + tell(cluster),
    )
    (event,) = [e for e in cluster.get("events", "-n", "burn")["items"] if e["reason"] == "Descheduled"]
    assert "node cpu usage(" in event["message"]


def tell(cluster: Cluster) -> str:
    return cluster.run("-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/name=netaware-controller", "--tail=20")


async def test_the_default_queries_have_an_answer_from_real_kubelets_and_agents(stage: Stage) -> None:
    queries = Queries()
    pods = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in stage.cluster.get("pods", "-A")["items"]}
    assert {namespace for namespace, _ in pods} >= {"burn", "limits", "kube-system", NAMESPACE}
    async with PrometheusClient(stage.prometheus) as prometheus:
        for name in OWN_QUERIES:
            series = await prometheus.query(getattr(queries, name))
            if name.startswith("node"):
                assert {s.labels["node"] for s in series} == set(PLUGINS), name
            else:
                found = {(s.labels["namespace"], s.labels["pod"]) for s in series}
                assert {namespace for namespace, _ in found & pods} >= {"burn", "limits"}, (name, found)
            assert all(s.value >= 0 for s in series), name
            assert max(s.value for s in series) > 0, name
        burning = [s for s in await prometheus.query(queries.pod_cpu) if s.labels["namespace"] == "burn"]
        assert all(0 < s.value < 0.4 for s in burning), "of 0.3 cores at most"
