"""Reads usage from metrics.k8s.io and Prometheus into a `UsageBatch`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from controller.cluster.resource_requests import parse_amount
from controller.descheduler.config import URL_FIELD, UsageConfig
from controller.descheduler.usage import CPU, MEMORY, RESOURCES, UsageBatch, UsageReading
from controller.prometheus import PrometheusClient, PrometheusError, VectorSample
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError, QuantityError
from kubekit.wire import Object, Resource, Wire, parse_time
from netperf.contract import BANDWIDTH_RESOURCE

NODE_METRICS = Resource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", is_namespaced=False)
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
TOKEN_FIELD = "descheduler.usage.prometheus.tokenFile"
TIMEOUT_S = 20.0
"""Timeout of one read of the metrics API, or one query of Prometheus."""


class _NodeMetrics(Object, frozen=True):
    timestamp: str = ""
    usage: dict[str, str] | None = None


class _ContainerMetrics(Wire, frozen=True):
    usage: dict[str, str] | None = None


class _PodMetrics(Object, frozen=True):
    timestamp: str = ""
    containers: list[_ContainerMetrics] | None = None


class UsageReader:
    """Reads usage from the configured sources: metrics.k8s.io for cpu and memory, Prometheus for bandwidth or for everything.

    A source that is down raises nothing: its error is one of `UsageBatch.faults`.
    """

    def __init__(self, config: UsageConfig, client: Client, wall: Callable[[], float] = time.time) -> None:
        self._config, self._client, self._wall = config, client, wall

    async def read(self) -> UsageBatch:
        """Read all sources concurrently."""
        uses_api, url = self._config.source == "metrics.k8s.io", self._config.prometheus.url
        if not uses_api and not url:
            return UsageBatch(faults=(f"{URL_FIELD}: is empty, and usage.source is prometheus",))
        reads = [self._read_metrics_api()] if uses_api else []
        if url:
            reads.append(self._read_prometheus((BANDWIDTH_RESOURCE,) if uses_api else RESOURCES))
        batches = await asyncio.gather(*reads)
        return UsageBatch(tuple(r for b in batches for r in b.readings), tuple(f for b in batches for f in b.faults))

    async def _read_metrics_api(self) -> UsageBatch:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                nodes, pods = await asyncio.gather(
                    self._client.list(NODE_METRICS, _NodeMetrics), self._client.list(POD_METRICS, _PodMetrics)
                )
        except (KubekitError, TimeoutError) as error:
            problem = str(error) or "no response in time"
            if isinstance(error, ApiError) and error.is_not_found:
                problem = "is not served; install metrics-server, or use Prometheus"
            return UsageBatch(faults=(f"metrics.k8s.io: {problem}",))
        return await asyncio.to_thread(_convert_metrics, nodes, pods)

    async def _read_prometheus(self, resources: Iterable[str]) -> UsageBatch:
        """Run the configured queries, all for the same time. The token is read again for each round, because tokens rotate."""
        queries, path, at_s = self._config.prometheus.queries, self._config.prometheus.token_file, self._wall()
        try:
            token = await asyncio.to_thread(lambda: Path(path).read_text().strip() if path else "")
        except (OSError, UnicodeDecodeError) as error:
            return UsageBatch(faults=(f"{TOKEN_FIELD}: {error}",))
        faults: list[str] = []
        node_queries = {CPU: queries.node_cpu, MEMORY: queries.node_memory, BANDWIDTH_RESOURCE: queries.node_bandwidth}
        pod_queries = {CPU: queries.pod_cpu, MEMORY: queries.pod_memory, BANDWIDTH_RESOURCE: queries.pod_bandwidth}
        readings: list[UsageReading] = []
        client = PrometheusClient(self._config.prometheus.url, token=token, timeout_s=TIMEOUT_S, field=URL_FIELD)

        async def run_queries(queries: Mapping[str, str], *labels: str) -> None:
            """Add readings or faults of all resources; these labels of a series name its node or pod."""
            for resource in resources:
                if not queries[resource]:
                    continue
                try:
                    vector = await client.query(queries[resource], at_s=at_s, finite_only=False)
                except PrometheusError as error:
                    faults.append(f"{resource}: {error}")
                else:
                    readings.extend(_convert_vector(resource, vector, labels))

        await asyncio.gather(run_queries(node_queries, "node"), run_queries(pod_queries, "namespace", "pod"))
        return UsageBatch(tuple(readings), tuple(faults))


def _convert_metrics(nodes: Iterable[_NodeMetrics], pods: Iterable[_PodMetrics]) -> UsageBatch:
    faults: list[str] = []
    readings: list[UsageReading] = []
    for node in nodes:
        readings += _sum_containers(node.metadata.name, node.timestamp, [node.usage], faults)
    for pod in pods:
        usages = [container.usage for container in pod.containers or ()]
        readings += _sum_containers(pod.metadata.key, pod.timestamp, usages, faults)
    if len(faults) > 1:
        faults = [f"{faults[0]} and {len(faults) - 1} more"]
    return UsageBatch(tuple(readings), tuple(faults))


def _sum_containers(
    name: str, timestamp: str, usages: Iterable[dict[str, str] | None], faults: list[str]
) -> Iterable[UsageReading]:
    """Sum usage over containers. An object with an invalid value has no readings, because a partial sum would be too low."""
    totals: dict[str, float] = {}
    try:
        at_s = parse_time(timestamp)
        for usage in usages:
            for resource in (CPU, MEMORY):
                if usage and resource in usage:
                    totals[resource] = totals.get(resource, 0.0) + parse_amount(resource, usage[resource])
    except (QuantityError, ValueError) as error:
        faults.append(f"metrics.k8s.io: {name}: {error}")
        return []
    return [UsageReading(name, resource, value, at_s) for resource, value in totals.items()]


def _convert_vector(resource: str, vector: Iterable[VectorSample], labels: tuple[str, ...]) -> Iterable[UsageReading]:
    """Convert samples that have these labels to readings; cores become millicores."""
    factor = 1000.0 if resource == CPU else 1.0
    for sample in vector:
        names = [sample.labels.get(label, "") for label in labels]
        if all(names):
            yield UsageReading("/".join(names), resource, sample.value * factor, sample.at_s)
