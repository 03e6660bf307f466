"""Turns flows into dependencies between workloads. Pure.

DNS, probes and scrapes are no dependencies: every pod has them, whatever the application does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Literal

import msgspec

from controller.cluster.pod_info import SYSTEM_NAMESPACES

DNS_PORT = 53
DNS_NAMES = frozenset({"coredns", "kube-dns", "node-local-dns", "nodelocaldns"})
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
"""Relative error of sums of rates."""

Reason = Literal["external", "dns", "scrape", "system", "self", "thin"]
"""Why a flow is no dependency."""


class WorkloadId(msgspec.Struct, frozen=True, order=True):
    """A workload as metrics name it. ``kind`` is empty if the source lacks it; an empty ``name`` is an unknown workload."""

    namespace: str = ""
    name: str = ""
    kind: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for messages, and to compare sources with and without kinds."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_known(self) -> bool:
        """Whether namespace and name are known; an external end has none."""
        return bool(self.namespace and self.name)


class Flow(msgspec.Struct, frozen=True):
    """Traffic from a client to a server and back, over a window.

    Attributes:
        client: who opens the connection or sends the request.
        server: who answers.
        bytes_per_s: both ways, mean over the window.
        peak_bytes_per_s: both ways, the 95th percentile over the window, or the mean.
        client_zone, server_zone: empty if the source lacks them.
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
    """Calls of one workload to another, over all zones and ports.

    Attributes:
        client, server: the calling workload and the called one.
        bytes_per_s: both ways, mean over the window.
        peak_bytes_per_s: both ways; the sum of the flows' 95th percentiles, an upper bound.
        zones: (client's zone, server's zone) -> bytes per second, of flows whose zones are known.
    """

    client: WorkloadId
    server: WorkloadId
    bytes_per_s: float
    peak_bytes_per_s: float
    zones: Mapping[tuple[str, str], float] = {}

    @property
    def zoneless_bytes_per_s(self) -> float:
        """Bytes per second of flows without zones."""
        zoneless = self.bytes_per_s - sum(self.zones.values())
        return zoneless if zoneless > _ROUNDING * self.bytes_per_s else 0.0


class LeftOut(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic that is no dependency, with its reason; both ends as ``namespace/name``."""

    reason: Reason
    client: str
    server: str
    bytes_per_s: float


class TrafficGraph(msgspec.Struct, frozen=True):
    """Dependencies and omitted traffic, greatest first."""

    dependencies: tuple[ObservedDependency, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of all dependencies."""
        return sum(d.bytes_per_s for d in self.dependencies)


def build_traffic_graph(flows: Iterable[Flow], netaware_namespace: str) -> TrafficGraph:
    """Sum flows by pair of workloads, and omit those that are no dependency, such as netaware's own."""
    system_namespaces = SYSTEM_NAMESPACES | {netaware_namespace}
    by_ends: dict[tuple[WorkloadId, WorkloadId], list[Flow]] = defaultdict(list)
    omitted: dict[tuple[Reason, str, str], float] = defaultdict(float)
    traffic_of: dict[WorkloadId, float] = defaultdict(float)
    for flow in flows:
        reason = _reason_to_omit(flow, system_namespaces)
        if reason is not None:
            omitted[reason, _name(flow.client), _name(flow.server)] += flow.bytes_per_s
            continue
        by_ends[flow.client, flow.server].append(flow)
        traffic_of[flow.client] += flow.bytes_per_s
        traffic_of[flow.server] += flow.bytes_per_s
    dependencies = []
    for (client, server), parts in by_ends.items():
        total = sum(flow.bytes_per_s for flow in parts)
        if total < THIN_SHARE * max(traffic_of[client], traffic_of[server]):
            omitted["thin", client.key, server.key] += total
            continue
        zones: dict[tuple[str, str], float] = defaultdict(float)
        for flow in parts:
            if flow.client_zone and flow.server_zone:
                zones[flow.client_zone, flow.server_zone] += flow.bytes_per_s
        peak = sum(max(flow.peak_bytes_per_s, flow.bytes_per_s) for flow in parts)
        dependencies.append(ObservedDependency(client, server, total, peak, dict(zones)))
    dependencies.sort(key=lambda d: (-d.bytes_per_s, d.client, d.server))
    left_out = [LeftOut(reason, client, server, total) for (reason, client, server), total in omitted.items()]
    left_out.sort(key=lambda item: (-item.bytes_per_s, item.reason, item.client, item.server))
    return TrafficGraph(tuple(dependencies), tuple(left_out))


def _name(end: WorkloadId) -> str:
    return end.key if end.is_known else "outside the cluster"


def _reason_to_omit(flow: Flow, system_namespaces: Set[str]) -> Reason | None:
    """Why a flow is no dependency; None if it may be one."""
    client, server = flow.client, flow.server
    if not client.is_known or not server.is_known:
        return "external"
    if (client.namespace, client.name) == (server.namespace, server.name):
        return "self"
    if flow.port == DNS_PORT or server.name in DNS_NAMES:
        return "dns"
    if any(word in client.name for word in SCRAPER_NAMES):
        return "scrape"
    if not system_namespaces.isdisjoint((client.namespace, server.namespace)):
        return "system"
    return None
