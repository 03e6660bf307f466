"""Finds dependencies between workloads in their flows. No I/O.

DNS, probes and scrapes are not dependencies, because every application has them; `OmissionReason` has all reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal

import msgspec

from controller.cluster.pod_info import SYSTEM_NAMESPACES

DNS_PORT = 53
DNS_WORKLOADS = frozenset({"coredns", "kube-dns", "node-local-dns", "nodelocaldns"})
SCRAPER_NAME_PARTS = (
    "prometheus",
    "vmagent",
    "alloy",
    "grafana-agent",
    "otel-collector",
    "opentelemetry-collector",
    "datadog",
)
MIN_SHARE = 0.001
"""Traffic between two workloads below this share of either workload's traffic is not a dependency, but a health check, an exporter or a
user's shell."""

_ROUNDING_ERROR = 1e-6
"""Relative error of sums of rates."""

OmissionReason = Literal["external", "dns", "scrape", "system", "self", "negligible"]
"""Traffic with an external end, to a name server, from a scraper, of a system namespace, of a workload to itself, or below `MIN_SHARE`."""


class WorkloadId(msgspec.Struct, frozen=True, order=True):
    """A workload as metrics name it: namespace and name are empty if unknown, kind is empty if the source lacks it."""

    namespace: str = ""
    name: str = ""
    kind: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for messages and for look-ups without a kind."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_known(self) -> bool:
        """Whether this is a workload of the cluster; an external end has no namespace or name."""
        return bool(self.namespace and self.name)


class Flow(msgspec.Struct, frozen=True):
    """Traffic from a client to a server and back, over a window.

    Attributes:
        client: the workload that opens the connection or sends the request.
        server: the workload that answers.
        bytes_per_s: requests and responses, mean over the window.
        peak_bytes_per_s: requests and responses, the 95th percentile over the window; 0 or the mean if unknown.
        client_zone, server_zone: empty if the source lacks them.
        port: the server's port; 0 if the source lacks it.
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
        client, server: the calling workload and the called workload.
        bytes_per_s: requests and responses, mean over the window.
        peak_bytes_per_s: sum of the flows' 95th percentiles (the mean if that is higher), an upper bound.
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
        return zoneless if zoneless > _ROUNDING_ERROR * self.bytes_per_s else 0.0


class OmittedTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic that is not a dependency, with the reason; client and server are ``namespace/name`` or "outside the cluster"."""

    reason: OmissionReason
    client: str
    server: str
    bytes_per_s: float


class TrafficGraph(msgspec.Struct, frozen=True):
    """Dependencies, and traffic that is not a dependency, most traffic first."""

    dependencies: tuple[ObservedDependency, ...] = ()
    omitted: tuple[OmittedTraffic, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of all dependencies."""
        return sum(d.bytes_per_s for d in self.dependencies)


def build_traffic_graph(flows: Iterable[Flow], netaware_namespace: str) -> TrafficGraph:
    """Sum flows by pair of workloads, and omit traffic that is not a dependency, such as netaware's own."""
    system_namespaces = SYSTEM_NAMESPACES | {netaware_namespace}
    flows_by_pair: dict[tuple[WorkloadId, WorkloadId], list[Flow]] = defaultdict(list)
    omitted_rates: dict[tuple[OmissionReason, str, str], float] = defaultdict(float)
    rates: dict[WorkloadId, float] = defaultdict(float)
    for flow in flows:
        reason = _omission_reason(flow, system_namespaces)
        if reason is not None:
            omitted_rates[reason, _display_name(flow.client), _display_name(flow.server)] += flow.bytes_per_s
            continue
        flows_by_pair[flow.client, flow.server].append(flow)
        rates[flow.client] += flow.bytes_per_s
        rates[flow.server] += flow.bytes_per_s
    dependencies: list[ObservedDependency] = []
    for (client, server), pair_flows in flows_by_pair.items():
        dependency = _sum_flows(client, server, pair_flows)
        if dependency.bytes_per_s < MIN_SHARE * max(rates[client], rates[server]):
            omitted_rates["negligible", client.key, server.key] += dependency.bytes_per_s
        else:
            dependencies.append(dependency)
    dependencies.sort(key=lambda d: (-d.bytes_per_s, d.client, d.server))
    omitted = [OmittedTraffic(*key, bytes_per_s) for key, bytes_per_s in omitted_rates.items()]
    omitted.sort(key=lambda item: (-item.bytes_per_s, item.reason, item.client, item.server))
    return TrafficGraph(tuple(dependencies), tuple(omitted))


def _sum_flows(client: WorkloadId, server: WorkloadId, flows: Sequence[Flow]) -> ObservedDependency:
    zones: dict[tuple[str, str], float] = defaultdict(float)
    for flow in flows:
        if flow.client_zone and flow.server_zone:
            zones[flow.client_zone, flow.server_zone] += flow.bytes_per_s
    total = sum(flow.bytes_per_s for flow in flows)
    peak = sum(max(flow.peak_bytes_per_s, flow.bytes_per_s) for flow in flows)
    return ObservedDependency(client, server, total, peak, dict(zones))


def _display_name(end: WorkloadId) -> str:
    return end.key if end.is_known else "outside the cluster"


def _omission_reason(flow: Flow, system_namespaces: Set[str]) -> OmissionReason | None:
    """The reason for which a flow is not a dependency; None if it may be one."""
    client, server = flow.client, flow.server
    if not client.is_known or not server.is_known:
        return "external"
    if (client.namespace, client.name) == (server.namespace, server.name):
        return "self"
    if flow.port == DNS_PORT or server.name in DNS_WORKLOADS:
        return "dns"
    if any(part in client.name for part in SCRAPER_NAME_PARTS):
        return "scrape"
    if not system_namespaces.isdisjoint((client.namespace, server.namespace)):
        return "system"
    return None
