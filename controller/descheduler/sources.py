"""Reads usage from metrics.k8s.io or Prometheus into a `UsageBatch`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from controller.cluster.requests import parse_amount
from controller.descheduler.config import UsageConfig
from controller.descheduler.usage import CPU, MEMORY, UsageBatch, UsageReading
from controller.prometheus import PrometheusClient, PrometheusError, VectorSample
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError, QuantityError
from kubekit.wire import Object, Resource, Wire, parse_time
from netperf.contract import BANDWIDTH

NODE_METRICS = Resource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", namespaced=False)
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
URL_FIELD = "descheduler.usage.prometheus.url"
TOKEN_FIELD = "descheduler.usage.prometheus.tokenFile"
TIMEOUT_S = 20.0
"""For one read of the metrics API, or one query of Prometheus."""


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

    Does not raise for a source that is down, see `UsageBatch.faults`.
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
            reads.append(self._read_prometheus((BANDWIDTH,) if uses_api else (CPU, MEMORY, BANDWIDTH)))
        batches = await asyncio.gather(*reads)
        return UsageBatch(
            tuple(r for b in batches for r in b.nodes),
            tuple(r for b in batches for r in b.pods),
            tuple(f for b in batches for f in b.faults),
        )

    async def _read_metrics_api(self) -> UsageBatch:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                nodes, pods = await asyncio.gather(
                    self._client.list(NODE_METRICS, _NodeMetrics), self._client.list(POD_METRICS, _PodMetrics)
                )
        except (KubekitError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.is_not_found:
                return UsageBatch(faults=("metrics.k8s.io: is not served; install metrics-server, or use Prometheus",))
            return UsageBatch(faults=(f"metrics.k8s.io: {str(error) or 'no response in time'}",))
        return await asyncio.to_thread(_metrics_batch, nodes, pods)

    async def _read_prometheus(self, resources: Iterable[str]) -> UsageBatch:
        """Usage by the configured queries, all evaluated for one time. Reads the token again, because tokens rotate."""
        q, path, at_s = self._config.prometheus.queries, self._config.prometheus.token_file, self._wall()
        try:
            token = await asyncio.to_thread(lambda: Path(path).read_text().strip() if path else "")
        except (OSError, UnicodeDecodeError) as error:
            return UsageBatch(faults=(f"{TOKEN_FIELD}: {error}",))
        faults: list[str] = []
        expressions = {
            CPU: (q.node_cpu, q.pod_cpu),
            MEMORY: (q.node_memory, q.pod_memory),
            BANDWIDTH: (q.node_bandwidth, q.pod_bandwidth),
        }
        labels = ("node",), ("namespace", "pod")

        async def query(client: PrometheusClient, kind: int) -> tuple[UsageReading, ...]:
            """Readings of nodes (kind 0) or pods (kind 1)."""
            readings: list[UsageReading] = []
            for resource in resources:
                if not expressions[resource][kind]:
                    continue
                try:
                    series = await client.query(expressions[resource][kind], at_s=at_s, finite=False)
                except PrometheusError as error:
                    faults.append(f"{resource}: {error}")
                else:
                    readings += _to_readings(resource, series, labels[kind])
            return tuple(readings)

        url = self._config.prometheus.url
        async with PrometheusClient(url, token=token, timeout_s=TIMEOUT_S, field=URL_FIELD) as client:
            nodes, pods = await asyncio.gather(query(client, 0), query(client, 1))
        return UsageBatch(nodes, pods, tuple(faults))


def _metrics_batch(nodes: Iterable[_NodeMetrics], pods: Iterable[_PodMetrics]) -> UsageBatch:
    faults: list[str] = []
    return UsageBatch(
        tuple(r for n in nodes for r in _readings(n.metadata.name, n.timestamp, [n.usage], faults)),
        tuple(
            r
            for p in pods
            for r in _readings(p.metadata.key, p.timestamp, [c.usage for c in p.containers or ()], faults)
        ),
        (f"{faults[0]}" + (f" and {len(faults) - 1} more" if len(faults) > 1 else ""),) if faults else (),
    )


def _readings(
    name: str, timestamp: str, usages: Iterable[dict[str, str] | None], faults: list[str]
) -> Iterable[UsageReading]:
    """Sums over containers; none for an object with an invalid value, because a partial sum would look idle."""
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


def _to_readings(resource: str, vector: Iterable[VectorSample], labels: tuple[str, ...]) -> Iterable[UsageReading]:
    """Readings of the series that have these labels; cores become millicores."""
    factor = 1000.0 if resource == CPU else 1.0
    for series in vector:
        names = [series.labels.get(label, "") for label in labels]
        if all(names):
            yield UsageReading("/".join(names), resource, series.value * factor, series.at_s)
