"""Where usage is read: metrics.k8s.io, or Prometheus' query API; both answer with one `UsageBatch`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from controller.cluster.requests import parse_amount
from controller.descheduler.config import Queries, UsageConfig
from controller.descheduler.usage import CPU, MEMORY, UsageBatch, UsageReading
from controller.prometheus import PrometheusClient, PrometheusError, Series
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError, QuantityError
from kubekit.wire import Object, Resource, Wire, parse_time
from netperf.contract import BANDWIDTH

TIMEOUT_S = 20.0
"""For one read of all usage."""
NODE_METRICS = Resource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", namespaced=False)
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")


class UsageSource(Protocol):
    """Reads all usage there is; never raises for a source that is down, see `UsageBatch.faults`."""

    async def read(self) -> UsageBatch:
        """Ask once."""
        ...


class _NodeMetrics(Object, frozen=True):
    timestamp: str = ""
    usage: dict[str, str] | None = None


class _ContainerMetrics(Wire, frozen=True):
    usage: dict[str, str] | None = None


class _PodMetrics(Object, frozen=True):
    timestamp: str = ""
    containers: list[_ContainerMetrics] | None = None


class MetricsApi:
    """cpu and memory from the resource metrics API."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s

    async def read(self) -> UsageBatch:
        """Ask once."""
        try:
            async with asyncio.timeout(self._timeout_s):
                nodes, pods = await asyncio.gather(
                    self._client.list(NODE_METRICS, _NodeMetrics), self._client.list(POD_METRICS, _PodMetrics)
                )
        except (KubekitError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.not_found:
                return UsageBatch(faults=("metrics.k8s.io: is not served; install metrics-server, or use Prometheus",))
            return UsageBatch(faults=(f"metrics.k8s.io: {str(error) or 'no answer in time'}",))
        return await asyncio.to_thread(_batch, nodes, pods)


def _batch(nodes: Iterable[_NodeMetrics], pods: Iterable[_PodMetrics]) -> UsageBatch:
    faults: list[str] = []
    return UsageBatch(
        tuple(r for n in nodes for r in _readings(n.metadata.name, n.timestamp, [n.usage], faults)),
        tuple(
            r
            for p in pods
            for r in _readings(p.metadata.key, p.timestamp, [c.usage for c in p.containers or ()], faults)
        ),
        tuple(faults[:1]),
    )


def _readings(
    name: str, timestamp: str, usages: Iterable[dict[str, str] | None], faults: list[str]
) -> Iterable[UsageReading]:
    """Sums over containers; an object with anything unreadable in it gives nothing rather than part of its usage."""
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


class PrometheusUsage:
    """Usage from Prometheus, one query per resource and kind of object.

    Args:
        url: base address.
        token_file: file with a bearer token; read on each round, since tokens rotate.
        resources: which resources to ask for.
        wall: unix seconds.

    Raises:
        ConfigError: the address is no http(s) URL.
    """

    def __init__(
        self,
        url: str,
        queries: Queries,
        *,
        token_file: str = "",
        timeout_s: float = TIMEOUT_S,
        resources: frozenset[str] = frozenset((CPU, MEMORY, BANDWIDTH)),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._queries, self._token_file, self._timeout_s = url, queries, token_file, timeout_s
        self._resources, self._wall = resources, wall
        self._client("")

    def _client(self, token: str) -> PrometheusClient:
        return PrometheusClient(
            self._url, token=token, timeout_s=self._timeout_s, field="descheduler.usage.prometheus.url"
        )

    async def read(self) -> UsageBatch:
        """Ask once; all queries are evaluated at the same moment."""
        q, at_s = self._queries, self._wall()
        try:
            token = await asyncio.to_thread(_token, self._token_file)
        except OSError as error:
            return UsageBatch(faults=(f"usage.prometheus.tokenFile: {error}",))
        faults: list[str] = []
        async with self._client(token) as client:
            nodes, pods = await asyncio.gather(
                self._ask(client, at_s, {CPU: q.node_cpu, MEMORY: q.node_memory, BANDWIDTH: q.node_bandwidth}, faults),
                self._ask(client, at_s, {CPU: q.pod_cpu, MEMORY: q.pod_memory, BANDWIDTH: q.pod_bandwidth}, faults),
            )
        return UsageBatch(
            tuple(r for resource, found in nodes for r in _named(resource, found, ("node",))),
            tuple(r for resource, found in pods for r in _named(resource, found, ("namespace", "pod"))),
            tuple(faults),
        )

    async def _ask(
        self, client: PrometheusClient, at_s: float, queries: dict[str, str], faults: list[str]
    ) -> list[tuple[str, list[Series]]]:
        found = []
        for resource, expression in queries.items():
            if not expression or resource not in self._resources:
                continue
            try:
                found.append((resource, await client.query(expression, at_s=at_s, finite=False)))
            except PrometheusError as error:
                faults.append(f"{resource}: {error}")
        return found


def _token(path: str) -> str:
    return Path(path).read_text().strip() if path else ""


def _named(resource: str, found: Iterable[Series], labels: tuple[str, ...]) -> Iterable[UsageReading]:
    """Readings of series that carry the labels; cores become millicores."""
    factor = 1000.0 if resource == CPU else 1.0
    for series in found:
        names = [series.labels.get(label, "") for label in labels]
        if all(names):
            at_s, value = series.points[-1]
            yield UsageReading("/".join(names), resource, value * factor, at_s)


class Joined:
    """Several sources as one; each has the resources that the others do not ask for."""

    def __init__(self, *sources: UsageSource) -> None:
        self._sources = sources

    async def read(self) -> UsageBatch:
        """Ask all at once."""
        batches = await asyncio.gather(*(source.read() for source in self._sources))
        return UsageBatch(
            tuple(r for b in batches for r in b.nodes),
            tuple(r for b in batches for r in b.pods),
            tuple(f for b in batches for f in b.faults),
        )


def source_of(config: UsageConfig, client: Client) -> UsageSource:
    """The source that is configured.

    Raises:
        ConfigError: Prometheus is wanted, and its address is missing or none.
    """
    prometheus = config.prometheus
    asked = frozenset((CPU, MEMORY, BANDWIDTH)) if config.source == "prometheus" else frozenset((BANDWIDTH,))
    sources: list[UsageSource] = [] if config.source == "prometheus" else [MetricsApi(client, TIMEOUT_S)]
    if prometheus.url:
        sources.append(
            PrometheusUsage(
                prometheus.url,
                prometheus.queries,
                token_file=prometheus.token_file,
                resources=asked,
            )
        )
    if not sources:
        raise ConfigError("descheduler.usage.prometheus.url", "is empty, and usage.source is prometheus")
    return sources[0] if len(sources) == 1 else Joined(*sources)
