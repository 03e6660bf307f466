"""Turns flows into dependencies between workloads. Pure.

DNS, probes and scrapes are never a dependency: every pod has them, and where they go says nothing about the application.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from netperf.contract import HOME_NAMESPACE

DNS_PORT = 53
DNS_NAMES = frozenset({"coredns", "kube-dns", "node-local-dns", "nodelocaldns"})
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-node-lease", "kube-public", HOME_NAMESPACE})
SCRAPER_NAMES = (
    "prometheus",
    "vmagent",
    "alloy",
    "grafana-agent",
    "otel-collector",
    "opentelemetry-collector",
    "datadog",
)
THIN_SHARE = 0.001
"""An edge below this share of either end's traffic is ignored: a health check, an exporter, a user's shell."""

_ROUNDING = 1e-6

Reason = Literal["external", "dns", "scrape", "system", "self", "thin"]


class WorkloadId(msgspec.Struct, frozen=True, order=True):
    """A workload as metrics name it. ``kind`` is empty if the source lacks it; an empty ``name`` is an unknown workload."""

    namespace: str = ""
    name: str = ""
    kind: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for people, and to compare sources with and without kinds."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_known(self) -> bool:
        """Whether this is a workload of the cluster, and not an external end."""
        return bool(self.namespace and self.name)


class Flow(msgspec.Struct, frozen=True):
    """Traffic from a client to a server and back, over a window.

    Attributes:
        client: who opens the connection or sends the request.
        server: who answers.
        bytes_per_s: both ways, mean over the window.
        peak_bytes_per_s: both ways, the 95th percentile over the window; the mean where a source cannot tell.
        client_zone: empty if the source lacks it; likewise ``server_zone``.
        port: the server's; 0 if the source lacks it.
    """

    client: WorkloadId
    server: WorkloadId
    bytes_per_s: float
    peak_bytes_per_s: float = 0.0
    client_zone: str = ""
    server_zone: str = ""
    port: int = 0


class ObservedDependency(msgspec.Struct, frozen=True):
    """One workload calls another, over all zones and ports.

    Attributes:
        bytes_per_s: both ways, mean over the window.
        peak_bytes_per_s: both ways, 95th percentile; the sum of the flows' own, so never too small.
        zones: (client's zone, server's zone) -> bytes per second, where zones are known.
    """

    client: WorkloadId
    server: WorkloadId
    bytes_per_s: float
    peak_bytes_per_s: float
    zones: Mapping[tuple[str, str], float] = {}

    @property
    def zoneless_bytes_per_s(self) -> float:
        """Bytes per second of flows without zones."""
        left = self.bytes_per_s - sum(self.zones.values())
        return left if left > _ROUNDING * self.bytes_per_s else 0.0


class LeftOut(msgspec.Struct, frozen=True):
    """Traffic that is no dependency, by reason and ends."""

    reason: Reason
    client: str
    server: str
    bytes_per_s: float


class TrafficGraph(msgspec.Struct, frozen=True):
    """Dependencies, greatest first, and omitted flows."""

    dependencies: tuple[ObservedDependency, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of all dependencies."""
        return sum(d.bytes_per_s for d in self.dependencies)


def build_traffic_graph(flows: Iterable[Flow]) -> TrafficGraph:
    """Sort flows into dependencies and omitted ones."""
    by_ends: dict[tuple[WorkloadId, WorkloadId], list[Flow]] = defaultdict(list)
    out: dict[tuple[Reason, str, str], float] = defaultdict(float)
    moved: dict[WorkloadId, float] = defaultdict(float)
    for flow in flows:
        reason = _no_dependency(flow)
        if reason is not None:
            out[reason, _name(flow.client), _name(flow.server)] += flow.bytes_per_s
            continue
        by_ends[flow.client, flow.server].append(flow)
        moved[flow.client] += flow.bytes_per_s
        moved[flow.server] += flow.bytes_per_s
    kept = []
    for (client, server), parts in by_ends.items():
        total = sum(flow.bytes_per_s for flow in parts)
        if total < THIN_SHARE * max(moved[client], moved[server]):
            out["thin", client.key, server.key] += total
            continue
        zones: dict[tuple[str, str], float] = defaultdict(float)
        for flow in parts:
            if flow.client_zone and flow.server_zone:
                zones[flow.client_zone, flow.server_zone] += flow.bytes_per_s
        peak = sum(max(flow.peak_bytes_per_s, flow.bytes_per_s) for flow in parts)
        kept.append(ObservedDependency(client, server, total, peak, dict(zones)))
    kept.sort(key=lambda d: (-d.bytes_per_s, d.client, d.server))
    left = [LeftOut(reason, client, server, total) for (reason, client, server), total in out.items()]
    left.sort(key=lambda item: (-item.bytes_per_s, item.reason, item.client, item.server))
    return TrafficGraph(tuple(kept), tuple(left))


def _name(end: WorkloadId) -> str:
    return end.key if end.is_known else "outside the cluster"


def _no_dependency(flow: Flow) -> Reason | None:
    client, server = flow.client, flow.server
    if not client.is_known or not server.is_known:
        return "external"
    if (client.namespace, client.name) == (server.namespace, server.name):
        return "self"
    if flow.port == DNS_PORT or server.name in DNS_NAMES:
        return "dns"
    if any(word in client.name for word in SCRAPER_NAMES):
        return "scrape"
    if client.namespace in SYSTEM_NAMESPACES or server.namespace in SYSTEM_NAMESPACES:
        return "system"
    return None
