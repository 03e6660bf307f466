"""A harness for tests of the descheduler: nodes, pods, and simulated usage, which Prometheus scrapes.

kwok runs no containers, so an exporter simulates the kubelets' resource metrics: a running pod uses the cores of its annotation, a
node the sum of its pods'.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import EVENTS, PODS, Object, Pod, Resource
from lab.controlplane import ControlPlane, find_free_ports
from lab.polling import poll_until
from tests.integration.conftest import CreateNode
from tests.integration.controller.harness import Replica

CORES_ANNOTATION = "netaware.io/test-cores"
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
QUERIES = {
    "nodeCpu": "sum by (node) (rate(node_cpu_usage_seconds_total[4s]))",
    "nodeMemory": "",
    "nodeBandwidth": "",
    "podCpu": "sum by (namespace, pod) (rate(pod_cpu_usage_seconds_total[4s]))",
    "podMemory": "",
    "podBandwidth": "",
}
"""The defaults with a window that suits a scrape every second."""
SHORT_LIMITS = {
    "perNode": 2,
    "perNamespace": 8,
    "perRound": 8,
    "perWorkload": 1,
    "unavailablePerWorkload": 1,
    "workloadBackoffS": 8,
    "usageLagS": 8,
    "startTimeoutS": 30,
}


class FakeKubeletMetrics:
    """The simulated resource metrics of all nodes, as counters that grow while pods run.

    Attributes:
        pods: store of the namespace's pods.
        nodes: names of the nodes.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.pods: Reflector[Pod] = Reflector(client, PODS, Pod, namespace=namespace)
        self.port, self._namespace = find_free_ports(1)[0], namespace
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._advanced_at_s = time.monotonic()
        self.nodes: set[str] = set()

    def list_running_pods(self) -> dict[str, list[Pod]]:
        """Running pods by node."""
        by_node: dict[str, list[Pod]] = {name: [] for name in self.nodes}
        for pod in self.pods:
            if pod.spec.node_name in by_node and pod.status.phase == "Running" and not pod.metadata.deletion_timestamp:
                by_node[pod.spec.node_name].append(pod)
        return by_node

    def _advance(self) -> None:
        now = time.monotonic()
        for node, pods in self.list_running_pods().items():
            self._seconds[node, ""] += 0.0  # a node without pods has a counter too
            for pod in pods:
                cpu_s = float(pod.metadata.annotation(CORES_ANNOTATION) or 0) * (now - self._advanced_at_s)
                self._seconds[node, ""] += cpu_s
                self._seconds[node, pod.metadata.name] += cpu_s
        self._advanced_at_s = now

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format."""
        self._advance()
        alive = {pod.metadata.name for pod in self.pods}
        lines = []
        for (node, pod), seconds in self._seconds.items():
            if not pod:
                lines.append(f'node_cpu_usage_seconds_total{{node="{node}"}} {seconds:.6f}')
            elif pod in alive:
                lines.append(f'pod_cpu_usage_seconds_total{{namespace="{self._namespace}",pod="{pod}"}} {seconds:.6f}')
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def serve_usage(client: Client, namespace: str) -> AsyncIterator[FakeKubeletMetrics]:
    """Serve the exporter, which watches pods."""
    kubelets = FakeKubeletMetrics(client, namespace)
    store = asyncio.create_task(kubelets.pods.run())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=kubelets.metrics_text())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app, port=kubelets.port):
        try:
            await asyncio.wait_for(kubelets.pods.synced.wait(), 20)
            yield kubelets
        finally:
            store.cancel()
            await asyncio.gather(store, return_exceptions=True)


def make_pod_template(app: str, cores: float, labels: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    """A pod template whose request is half of its usage."""
    request = {"cpu": f"{int(cores * 500)}m"}
    return {
        "metadata": {"labels": {"app": app, **labels}, "annotations": {CORES_ANNOTATION: str(cores)}},
        "spec": {
            "schedulerName": "default-scheduler",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": request}}],
            "tolerations": [{"key": "netaware.io/test", "operator": "Exists"}],
            **spec,
        },
    }


async def create_bound_replica_set(
    client: Client,
    namespace: str,
    app: str,
    cores: float,
    nodes: list[str],
    *,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> None:
    """Create a ReplicaSet whose first pods are on these nodes, and whose later pods the scheduler places.

    The pods are created bound and then adopted, because a template with a node name would bind replacements too. The controller
    manager may see the ReplicaSet first, and create other pods, with a gate. Of too many pods, a ReplicaSet deletes unscheduled
    ones first; of scheduled ones it would delete those that share a node, which are ours.
    """
    template = make_pod_template(app, cores, labels or {}, **spec)
    for i, node in enumerate(nodes):
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": f"{app}-first-{i}"},
            "spec": {**template["spec"], "nodeName": node},
        }
        await client.create(PODS, body, Object, namespace=namespace)
    gated = {**template, "spec": {**template["spec"], "schedulingGates": [{"name": "netaware.io/test-adoption"}]}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": app},
        "spec": {"replicas": len(nodes), "selector": {"matchLabels": {"app": app}}, "template": gated},
    }
    created = await client.create(REPLICA_SETS, body, Object, namespace=namespace)

    async def are_adopted() -> bool:
        pods = await client.list(PODS, Pod, namespace=namespace, label_selector=f"app={app}")
        adopted = [pod for pod in pods if created.metadata.uid in {o.uid for o in pod.metadata.owner_references or []}]
        return len(adopted) == len(pods) == len(nodes) and all(pod.spec.node_name for pod in pods)

    await poll_until(are_adopted)
    open_gate = {"spec": {"template": {"spec": {"schedulingGates": None}}}}
    changed = await client.patch(REPLICA_SETS, app, open_gate, Object, namespace=namespace)

    async def is_observed() -> bool:
        replica_set: dict[str, Any] = await client.get(REPLICA_SETS, app, dict, namespace=namespace)
        return bool(replica_set["status"].get("observedGeneration", 0) >= changed.metadata.generation)

    await poll_until(is_observed)


class Event(Object, frozen=True):
    """An event of events.k8s.io."""

    reason: str = ""
    note: str = ""


@dataclass
class DeschedulerHarness:
    """Nodes of one test, their simulated usage, and managers whose LowNodeLoad is restricted to these nodes."""

    client: Client
    namespace: str
    netaware_namespace: str
    control_plane: ControlPlane
    folder: Path
    usage: FakeKubeletMetrics
    prometheus_url: str
    create_node: CreateNode
    replicas: list[Replica] = field(default_factory=list)

    @property
    def node_labels(self) -> dict[str, str]:
        return {"netaware.io/test": self.namespace}

    def make_config(self, **sections: Any) -> dict[str, Any]:
        """The descheduler's configuration; ``sections`` replace whole sections."""
        policy = {
            "lowThresholds": {"cpu": 35},
            "highThresholds": {"cpu": 50},
            "nodeSelector": {"matchLabels": self.node_labels},
            "nodeMetricExpirationSeconds": 15,
            "anomalyCondition": {"timeout": "20s", "consecutiveAbnormalities": 3, "consecutiveNormalities": 2},
        }
        return {
            "enabled": True,
            "intervalS": 1,
            "policy": policy,
            "usage": {"source": "prometheus", "prometheus": {"url": self.prometheus_url, "queries": QUERIES}},
            "limits": SHORT_LIMITS,
            # A test is shorter than the default of `minPodAgeS`, and some of its workloads have one pod.
            "protection": {"minPodAgeS": 0, "minReplicas": 1},
            **sections,
        }

    def start_manager(self, **sections: Any) -> Replica:
        config = {"namespace": self.netaware_namespace, "descheduler": self.make_config(**sections)}
        replica = Replica(self.folder, self.control_plane.kubeconfig, self.namespace, config)
        replica.start()
        self.replicas.append(replica)
        return replica

    async def create_nodes(self, count: int) -> list[str]:
        """Create nodes of 8 cpu for this test; returns their names."""
        names = [f"d{i:02}-{self.namespace}" for i in range(count)]
        for name in names:
            await self.create_node(name, capacity={"cpu": "8"}, labels=self.node_labels)
        self.usage.nodes.update(names)
        return names

    async def create_bound_pods(self, app: str, cores: float, nodes: list[str], **spec: Any) -> None:
        """Create a ReplicaSet with a pod of this usage on each of ``nodes``, which may repeat, and wait until all run."""
        goal = self._count_running_pods() + len(nodes)
        await create_bound_replica_set(self.client, self.namespace, app, cores, nodes, **spec)
        await poll_until(lambda: self._count_running_pods() >= goal)

    async def list_events(self, reason: str, namespace: str = "") -> list[Event]:
        events = await self.client.list(EVENTS, Event, namespace=namespace or self.namespace)
        return [event for event in events if event.reason == reason]

    def _count_running_pods(self) -> int:
        return sum(map(len, self.usage.list_running_pods().values()))


async def count_eviction_attempts(replica: Replica) -> float:
    """Evictions with any result, also refused ones and dry runs."""
    return await _sum_metric(replica, "netaware_descheduler_evictions_total")


async def wait_for_rounds(replica: Replica, count: int) -> None:
    goal = await _sum_metric(replica, "netaware_descheduler_rounds_total") + count

    async def are_done() -> bool:
        return await _sum_metric(replica, "netaware_descheduler_rounds_total") >= goal

    await poll_until(are_done, timeout_s=30 + 5 * count)


async def _sum_metric(replica: Replica, prefix: str) -> float:
    return sum(value for name, value in (await replica.read_metrics()).items() if name.startswith(prefix))
