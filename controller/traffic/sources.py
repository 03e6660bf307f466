"""Readers of traffic from Prometheus, one per project, with the names that the project documents.

Each reader lists what its source lacks. A source is chosen by the metrics that Prometheus has, or by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controller.prometheus import PrometheusClient, PrometheusError, VectorSample
from controller.traffic.graph import Flow, WorkloadId
from kubekit.errors import ConfigError
from netperf.contract import TRAFFIC_ROUND_S, traffic_pause_s

_STEPS = 60
"""Points of the window over which the peak is taken."""

_SHORTEST_STEP_S = 15
"""Shortest resolution of a subquery."""
_PRECISE_STEPS = 20
"""A window of this many steps is known precisely enough."""
_LONGEST_PAUSE_S = 600.0
"""Longest time between two readings, so that one agent's value cannot stretch all rates."""

Labels = Mapping[str, str]


@dataclass(frozen=True)
class EndpointLabels:
    """Labels of one end of a flow; an empty label name means that the source lacks it."""

    namespace: str
    name: str
    kind: str = ""
    zone: str = ""

    @property
    def labels(self) -> list[str]:
        return [label for label in (self.namespace, self.name, self.kind, self.zone) if label]

    def workload_and_zone(self, labels: Labels) -> tuple[WorkloadId, str]:
        """The workload, unknown where the source says so, and its zone."""
        namespace, name, kind, zone = (
            labels.get(label, "") for label in (self.namespace, self.name, self.kind, self.zone)
        )
        known = not {namespace, name} & _UNKNOWN_NAMES
        return WorkloadId(namespace, name, kind) if known else WorkloadId(), zone


_UNKNOWN_NAMES = frozenset({"", "unknown"})
"""What sources write for an end that they could not name (Istio: ``unknown``)."""


@dataclass(frozen=True)
class Source:
    """A set of metrics with the caller and the server of traffic.

    Attributes:
        name: for flags and the configuration.
        title: for people.
        limitations: what this source cannot know, for people.
        client: the end that opens connections; ``server`` the other one.
        counters: selectors of counters of bytes, whose rates add up.
        port: label with the server's port.
        address: label with the server's address, where counters name it by that alone.
        owner_metric: metric, always 1, of the workload that has an address.
        min_range_s: the shortest range of a rate, since Prometheus needs two readings in it. Most projects are scraped every
            15 to 30 s.
        round_cost_metric: metric of the processor's seconds that one reading of the table takes (`traffic_pause_s`); empty if each scrape reads.
    """

    name: str
    title: str
    limitations: str
    client: EndpointLabels
    server: EndpointLabels
    counters: Sequence[str]
    port: str = ""
    address: str = ""
    owner_metric: str = ""
    min_range_s: int = 60
    round_cost_metric: str = ""

    @property
    def presence(self) -> str:
        """An expression that has a value if the source exists; metric names alone may belong to another one."""
        return " or ".join(f"group({counter})" for counter in self.counters)

    def rate(self, counter: str, range_s: int) -> str:
        """The expression of a counter's rate by ends and port."""
        server = [self.address] if self.address else self.server.labels
        by = filter(None, (*self.client.labels, *server, self.port))
        return f"sum by ({', '.join(by)}) (rate({counter}[{range_s}s]))"


SOURCES: Sequence[Source] = (
    # https://istio.io/latest/docs/reference/config/metrics/; a client in the mesh reports as source, one outside it only at
    # the server, as destination with an unknown source. Sizes are of bodies.
    Source(
        "istio",
        "Istio",
        "headers of requests (bodies are counted), clients outside the mesh, zones, kinds of workloads",
        EndpointLabels("source_workload_namespace", "source_workload"),
        EndpointLabels("destination_workload_namespace", "destination_workload"),
        [
            f'istio_{counted}{{reporter="source"}}'
            for counted in (
                "request_bytes_sum",
                "response_bytes_sum",
                "tcp_received_bytes_total",
                "tcp_sent_bytes_total",
            )
        ],
    ),
    # https://linkerd.io/2/reference/proxy-metrics/: the client's proxy, towards the other end.
    Source(
        "linkerd",
        "Linkerd",
        "clients outside of the mesh, workloads that are no Deployment, the client's zone",
        EndpointLabels("namespace", "deployment"),
        EndpointLabels("dst_namespace", "dst_deployment", zone="dst_zone"),
        [f'tcp_{way}_bytes_total{{direction="outbound",dst_deployment!="",peer="dst"}}' for way in ("write", "read")],
    ),
    # agent/traffic/manager.py: the client by name, the server by address, and each server's agent says whose address it is.
    Source(
        "conntrack",
        "netaware's agents (connection tracking)",
        "connections that began before net.netfilter.nf_conntrack_acct was 1; pods in the host's network; calls to"
        " pods with public addresses (some IPv6 clusters); calls that connection tracking does not see (Cilium without kube-proxy, within a bridge without br_netfilter)",
        EndpointLabels("client_namespace", "client_workload", "client_kind", "client_zone"),
        EndpointLabels("server_namespace", "server_workload", "server_kind", "server_zone"),
        ["netaware_traffic_bytes_total"],
        port="port",
        address="server",
        owner_metric="netaware_traffic_server_info",
        # Agents read every 30 s, later on a busy node, and their bytes carry that time: three readings leave two for certain.
        min_range_s=100,
        round_cost_metric="netaware_traffic_round_seconds",
    ),
)


class NoTrafficError(ConfigError):
    """Prometheus has no source of traffic, or not the requested one."""


class Reading(NamedTuple):
    """Flows in a fixed order, the source that they are from, over how many seconds, and remarks on what could not be read."""

    source: Source
    window_s: int
    flows: list[Flow]
    remarks: Sequence[str] = ()


async def read_flows(prometheus: PrometheusClient, name: str, window_s: int) -> Reading:
    """Traffic of the last ``window_s`` seconds, or as much of it as there is.

    Args:
        prometheus: has the metrics.
        name: of the source; empty for the first that is there. Bytes of two are never added: they count the same.
        window_s: range of rates.

    Raises:
        NoTrafficError: there is no source; says which metrics were looked for.
        PrometheusError: Prometheus gives no answer, or too large a one for its limits.
    """
    source = await _choose_source(prometheus, name)
    least_s = await _least_rate_s(prometheus, source)
    remarks: list[str] = []
    window_s = await _known_window_s(prometheus, source, max(window_s, least_s), least_s, remarks=remarks)
    flows = await _sum_flows(prometheus, source, window_s, least_s, remarks=remarks)
    return Reading(source, window_s, flows, tuple(dict.fromkeys(remarks)))


async def _choose_source(prometheus: PrometheusClient, name: str) -> Source:
    wanted = [source for source in SOURCES if name in {"", source.name}]
    for source in wanted:
        if await prometheus.query(source.presence):
            return source
    looked_for = ", ".join(counter for source in wanted for counter in source.counters)
    problem = f"{prometheus.url} has no counter of who talks to whom; looked for {looked_for}"
    raise NoTrafficError("traffic", problem, "install one of the projects that export them")


async def _least_rate_s(prometheus: PrometheusClient, source: Source) -> int:
    """The shortest range of a rate that has two readings of the slowest reader in it; of a shorter one its traffic would be missing."""
    if not source.round_cost_metric:
        return source.min_range_s
    found = await prometheus.query(f"max(max_over_time({source.round_cost_metric}[1h]))")
    pause_s = min(traffic_pause_s(found[0].value if found else 0.0), _LONGEST_PAUSE_S)
    return source.min_range_s + math.ceil(2 * (pause_s - TRAFFIC_ROUND_S))


async def _known_window_s(
    prometheus: PrometheusClient, source: Source, window_s: int, least_s: int, *, remarks: list[str]
) -> int:
    """Seconds of the last ``window_s`` for which Prometheus has this source, and at least what a rate needs.

    `rate` divides by the whole range, so the traffic of a source that is younger than the range would be underestimated. Gaps within
    the range do no harm, because counters continue.
    """
    asked_s = window_s
    while True:
        step_s = max(asked_s // _STEPS, _SHORTEST_STEP_S)
        expression = f"time() - min_over_time((time() * ({source.presence}))[{asked_s}s:{step_s}s])"
        try:
            found = await prometheus.query(expression)
        except PrometheusError:
            # Too many series for a subquery; where there is no answer at all, this raises too.
            await prometheus.query("vector(1)")
            remarks.append(
                "Prometheus did not say since when it has this traffic; if that is shorter, rates are too low"
            )
            return window_s
        known_s = found[0].value if found else 0.0
        if asked_s == window_s and known_s + 2 * step_s > window_s:
            return window_s
        if step_s == _SHORTEST_STEP_S or known_s > _PRECISE_STEPS * step_s:
            return max(round(known_s + step_s / 2), least_s)
        asked_s = round(known_s) + step_s


async def _sum_flows(
    prometheus: PrometheusClient, source: Source, window_s: int, least_s: int, *, remarks: list[str]
) -> list[Flow]:
    sums: dict[tuple[WorkloadId, WorkloadId, str, str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    owners = await _read_owners(prometheus, source, window_s)
    for counter in source.counters:
        means = await prometheus.query(source.rate(counter, window_s))
        peaks = await _read_peaks(prometheus, source, counter, window_s, least_s, remarks=remarks) if means else {}
        for series in means:
            mean = series.value
            if not 0 < mean < math.inf:
                continue
            peak = max(peaks.get(_identity(series), mean), mean)
            client, client_zone = source.client.workload_and_zone(series.labels)
            for labels, share in owners.get(series.labels.get(source.address, ""), [(series.labels, 1.0)]):
                server, server_zone = source.server.workload_and_zone(labels)
                sums_of = sums[client, server, client_zone, server_zone, _port(series.labels.get(source.port, ""))]
                sums_of[0] += mean * share
                sums_of[1] += peak * share
    return [
        Flow(client, server, mean, peak, here, there, port)
        for (client, server, here, there, port), (mean, peak) in sorted(sums.items())
    ]


async def _read_peaks(
    prometheus: PrometheusClient, source: Source, counter: str, window_s: int, least_s: int, *, remarks: list[str]
) -> dict[frozenset[tuple[str, str]], float]:
    """95th percentiles by labels; none where a subquery over many series is too much for Prometheus."""
    step_s = max(window_s // _STEPS, _SHORTEST_STEP_S)
    rate = source.rate(counter, max(2 * step_s, least_s))
    expression = f"quantile_over_time(0.95, ({rate})[{window_s}s:{step_s}s])"
    try:
        return {_identity(series): series.value for series in await prometheus.query(expression)}
    except PrometheusError:
        remarks.append("Prometheus did not compute peaks; means are used instead")
        return {}


def _identity(series: VectorSample) -> frozenset[tuple[str, str]]:
    return frozenset(series.labels.items())


def _port(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) and int(text) < 2**16 else 0


async def _read_owners(
    prometheus: PrometheusClient, source: Source, window_s: int
) -> Mapping[str, Sequence[tuple[Labels, float]]]:
    """Address -> labels of each workload that had it, and its share of the time."""
    if not source.owner_metric:
        return {}
    by = ", ".join((source.address, *source.server.labels))
    found = await prometheus.query(f"sum by ({by}) (count_over_time({source.owner_metric}[{window_s}s]))")
    seen: dict[str, list[VectorSample]] = defaultdict(list)
    for series in found:
        seen[series.labels.get(source.address, "")].append(series)
    return {
        key: [(one.labels, one.value / sum(other.value for other in parts)) for one in parts]
        for key, parts in seen.items()
    }
