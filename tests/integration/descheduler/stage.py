"""A cluster whose load is known: real API server, scheduler, controller manager and Prometheus; usage itself is simulated.

kwok runs no containers, so a small exporter plays the kubelets' resource metrics: each running pod uses the cores that its
annotation says, a node the sum of its pods'. Prometheus scrapes it as it scrapes kubelets.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import PODS, Object, Pod, Resource
from lab.controlplane import free_ports

CORES = "netaware.io/test-cores"
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


class Kubelets:
    """The simulated resource metrics of all nodes, as counters that grow while pods run.

    Attributes:
        pods: mirror of the namespace's pods.
        url: where it is served.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.pods: Reflector[Pod] = Reflector(client, PODS, Pod, namespace=namespace)
        self.port = free_ports(1)[0]
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._at = time.monotonic()
        self.nodes: set[str] = set()

    def running(self) -> dict[str, list[Pod]]:
        """Pods that run, by node."""
        found: dict[str, list[Pod]] = {name: [] for name in self.nodes}
        for pod in self.pods:
            if pod.spec.node_name in found and pod.status.phase == "Running" and not pod.metadata.deletion_timestamp:
                found[pod.spec.node_name].append(pod)
        return found

    def cores(self) -> dict[str, float]:
        """Cores in use, by node."""
        return {name: sum(_cores(pod) for pod in pods) for name, pods in self.running().items()}

    def _advance(self) -> None:
        now = time.monotonic()
        for node, pods in self.running().items():
            self._seconds[node, ""] += 0.0
            for pod in pods:
                used = _cores(pod) * (now - self._at)
                self._seconds[node, ""] += used
                self._seconds[node, pod.metadata.name] += used
        self._at = now

    def text(self, namespace: str) -> str:
        """The exposition."""
        self._advance()
        alive = {pod.metadata.name for pod in self.pods}
        lines = []
        for (node, pod), seconds in self._seconds.items():
            if not pod:
                lines.append(f'node_cpu_usage_seconds_total{{node="{node}"}} {seconds:.6f}')
            elif pod in alive:
                lines.append(f'pod_cpu_usage_seconds_total{{namespace="{namespace}",pod="{pod}"}} {seconds:.6f}')
        return "\n".join(lines) + "\n"


def _cores(pod: Pod) -> float:
    return float(pod.metadata.annotation(CORES, "0"))


@asynccontextmanager
async def serve_usage(client: Client, namespace: str) -> AsyncIterator[Kubelets]:
    """The exporter, kept true by a watch."""
    kubelets = Kubelets(client, namespace)
    mirror = asyncio.create_task(kubelets.pods.run())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=kubelets.text(namespace))

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", kubelets.port).start()
    try:
        await asyncio.wait_for(kubelets.pods.synced.wait(), 20)
        yield kubelets
    finally:
        mirror.cancel()
        await runner.cleanup()


@asynccontextmanager
async def run_prometheus(programs: Mapping[str, Path], folder: Path, target_port: int) -> AsyncIterator[str]:
    """A real Prometheus that scrapes one target every second; its URL."""
    port = free_ports(1)[0]
    scrape = {"job_name": "kubelets", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "900ms"}, "scrape_configs": [scrape]}
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [
        "setpriv", "--pdeathsig", "KILL", "--", str(programs["prometheus"]), f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            async with asyncio.timeout(30):
                while not await asyncio.to_thread(_answers, f"{url}/-/ready"):
                    assert process.poll() is None, (folder / "prometheus.log").read_text()
                    await asyncio.sleep(0.1)
            yield url
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def pod_template(app: str, cores: float, **spec: Any) -> dict[str, Any]:
    """Labels, usage and spec of a pod that asks for half of what it uses."""
    request = {"cpu": f"{int(cores * 500)}m"}
    return {
        "metadata": {"labels": {"app": app}, "annotations": {CORES: str(cores)}},
        "spec": {
            "schedulerName": "default-scheduler",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": request}}],
            "tolerations": [{"key": "netaware.io/test", "operator": "Exists"}],
            **spec,
        },
    }


async def place(client: Client, namespace: str, app: str, cores: float, nodes: list[str], **spec: Any) -> None:
    """A ReplicaSet whose first pods are on the nodes named, and whose later ones go where the scheduler wants.

    The pods are created bound and then adopted, since a template that named a node would name it for replacements too.
    """
    template = pod_template(app, cores, **spec)
    for i, node in enumerate(nodes):
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": f"{app}-first-{i}"},
            "spec": {**template["spec"], "nodeName": node},
        }
        await client.create(PODS, body, Object, namespace=namespace)
    body = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": app},
        "spec": {"replicas": len(nodes), "selector": {"matchLabels": {"app": app}}, "template": template},
    }
    await client.create(REPLICA_SETS, body, Object, namespace=namespace)
