"""Reads flows between workloads from Prometheus: metrics of Istio, Linkerd or netaware's agents, chosen by name or presence."""

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
from netperf.contract import MIN_TRAFFIC_PAUSE_S, traffic_pause_s

_SUBQUERY_STEPS = 60
"""Points of a subquery over the window."""
_MIN_STEP_S = 15
"""Finest resolution of a subquery."""
_MIN_STEPS_OF_AGE = 20
"""The age of a source is precise enough if it spans more steps of the subquery than this."""
_PEAK_QUANTILE = 0.95  # ignores short bursts
_MAX_PORT = 65_535
_MAX_AGENT_PAUSE_S = 600.0
"""Limit of the time between two readings of an agent, so that one agent's wrong value cannot lengthen all ranges."""

_UNKNOWN_NAMES = frozenset({"", "unknown"})
"""Label values of an unknown workload; Istio writes ``unknown``."""

Labels = Mapping[str, str]


class EndpointLabels(NamedTuple):
    """Names of the labels that describe one end of a flow; empty if the source has no such label."""

    namespace: str
    name: str
    kind: str = ""
    zone: str = ""

    @property
    def label_names(self) -> list[str]:
        """The label names that the source has."""
        return [label for label in self if label]

    def workload_and_zone(self, labels: Labels) -> tuple[WorkloadId, str]:
        """The workload of a series, empty if unknown, and its zone."""
        namespace, name, kind, zone = (labels.get(label, "") for label in self)
        is_known = not {namespace, name} & _UNKNOWN_NAMES
        return WorkloadId(namespace, name, kind) if is_known else WorkloadId(), zone


@dataclass(frozen=True)
class Source:
    """A set of Prometheus metrics that name client and server of traffic, the server perhaps by its address.

    Attributes:
        name: value of flags and of the configuration.
        title: name in messages.
        limitations: traffic and labels that this source lacks, for messages.
        client: names of labels of the end that opens connections.
        server: names of labels of the other end.
        counters: selectors of byte counters, whose rates are added.
        port: label with the server's port; empty if there is none.
        address: label with the server's address, for counters without the labels of ``server``; else empty.
        owner_metric: metric, always 1, with ``address`` and the labels of ``server``; empty without ``address``.
        min_range_s: shortest range of a rate; contains two scrapes, which most installations make every 15 to 30 s.
        reading_cpu_metric: CPU seconds of an agent's last reading (see `traffic_pause_s`); empty if each scrape reads.
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
    reading_cpu_metric: str = ""

    @property
    def presence_expression(self) -> str:
        """An expression that has a value if Prometheus has this source. Selectors tell sources with equal metric names apart."""
        return " or ".join(f"group({counter})" for counter in self.counters)

    def rate_expression(self, counter: str, range_s: int) -> str:
        """An expression of a counter's rate by client, server and port."""
        server_labels = [self.address] if self.address else self.server.label_names
        grouping = filter(None, (*self.client.label_names, *server_labels, self.port))
        return f"sum by ({', '.join(grouping)}) (rate({counter}[{range_s}s]))"


_ISTIO_COUNTERS = ("request_bytes_sum", "response_bytes_sum", "tcp_received_bytes_total", "tcp_sent_bytes_total")
SOURCES: Sequence[Source] = (
    # https://istio.io/latest/docs/reference/config/metrics/: only clients in the mesh report as source, and sizes are those of bodies.
    Source(
        name="istio",
        title="Istio",
        limitations="headers of requests (bodies are counted), clients outside the mesh, zones, kinds of workloads",
        client=EndpointLabels("source_workload_namespace", "source_workload"),
        server=EndpointLabels("destination_workload_namespace", "destination_workload"),
        counters=[f'istio_{counter}{{reporter="source"}}' for counter in _ISTIO_COUNTERS],
    ),
    # https://linkerd.io/2/reference/proxy-metrics/: reported by the client's proxy.
    Source(
        name="linkerd",
        title="Linkerd",
        limitations="clients outside the mesh, workloads other than Deployments, the client's zone",
        client=EndpointLabels("namespace", "deployment"),
        server=EndpointLabels("dst_namespace", "dst_deployment", zone="dst_zone"),
        counters=[
            f'tcp_{operation}_bytes_total{{direction="outbound",dst_deployment!="",peer="dst"}}'
            for operation in ("write", "read")
        ],
    ),
    # agent/traffic/collector.py: the client's agent knows only the server's address; the agent of the server's node exports its owner.
    Source(
        name="conntrack",
        title="netaware's agents (connection tracking)",
        limitations="connections that began before net.netfilter.nf_conntrack_acct was 1; pods in the host's network; calls to"
        " pods with public addresses (some IPv6 clusters); calls that connection tracking does not see (Cilium without kube-proxy,"
        " within a bridge without br_netfilter)",
        client=EndpointLabels("client_namespace", "client_workload", "client_kind", "client_zone"),
        server=EndpointLabels("server_namespace", "server_workload", "server_kind", "server_zone"),
        counters=["netaware_traffic_bytes_total"],
        port="port",
        address="server",
        owner_metric="netaware_traffic_server_info",
        # An agent reads every 30 s or, on a busy node, less often. Two intervals and 40 s always contain two readings.
        min_range_s=100,
        reading_cpu_metric="netaware_traffic_round_seconds",
    ),
)


class NoTrafficError(ConfigError):
    """Prometheus has no source of traffic, or not the requested one. Users can choose another source."""


class MeasuredFlows(NamedTuple):
    """Flows of one source, the seconds over which their rates were computed, and remarks on incomplete data."""

    source: Source
    window_s: int
    flows: list[Flow]
    remarks: Sequence[str] = ()


async def read_flows(prometheus: PrometheusClient, source_name: str, window_s: int) -> MeasuredFlows:
    """Flows of the last ``window_s`` seconds, or of the part of them for which Prometheus has data; never less than the source needs.

    With an empty ``source_name``, only the first source with data is read, because sources count the same bytes.

    Raises:
        NoTrafficError: there is no source; the message names the metrics.
        PrometheusError: a query failed, or exceeds a limit of Prometheus.
    """
    reader = _SourceReader(prometheus, await _choose_source(prometheus, source_name))
    min_range_s = await reader.read_min_range_s()
    window_s = await reader.limit_window_s(max(window_s, min_range_s), min_range_s)
    flows = await reader.read_flows(window_s, min_range_s)
    return MeasuredFlows(reader.source, window_s, flows, tuple(dict.fromkeys(reader.remarks)))


async def _choose_source(prometheus: PrometheusClient, source_name: str) -> Source:
    candidates = [source for source in SOURCES if source_name in {"", source.name}]
    for source in candidates:
        if await prometheus.query(source.presence_expression):
            return source
    counters = ", ".join(counter for source in candidates for counter in source.counters)
    problem = f"{prometheus.redacted_url} has none of the counters of traffic between workloads: {counters}"
    raise NoTrafficError("traffic", problem, "install one of the projects that export them")


class _SourceReader:
    """Reads the flows of one source; ``remarks`` on incomplete data are for users."""

    def __init__(self, prometheus: PrometheusClient, source: Source) -> None:
        self._prometheus, self.source = prometheus, source
        self.remarks: list[str] = []

    async def read_min_range_s(self) -> int:
        """The shortest range of a rate. With agents it has two readings of the slowest agent; a shorter range would omit its traffic."""
        source = self.source
        if not source.reading_cpu_metric:
            return source.min_range_s
        samples = await self._prometheus.query(f"max(max_over_time({source.reading_cpu_metric}[1h]))")
        pause_s = min(traffic_pause_s(samples[0].value if samples else 0.0), _MAX_AGENT_PAUSE_S)
        return source.min_range_s + math.ceil(2 * (pause_s - MIN_TRAFFIC_PAUSE_S))

    async def limit_window_s(self, window_s: int, min_range_s: int) -> int:
        """The part of the last ``window_s`` seconds for which Prometheus has this source, at least ``min_range_s``.

        PromQL's ``rate`` divides by the whole range, so it is too low for a younger source. Gaps within the range do no harm, because
        counters continue. Each query covers a shorter range in smaller steps, until the source's age is precise.
        """
        range_s = window_s
        while True:
            step_s = max(range_s // _SUBQUERY_STEPS, _MIN_STEP_S)
            presence = self.source.presence_expression
            expression = f"time() - min_over_time((time() * ({presence}))[{range_s}s:{step_s}s])"
            try:
                samples = await self._prometheus.query(expression)
            except PrometheusError:
                # There may be too many series for a subquery; if Prometheus is not reachable, this query raises too.
                await self._prometheus.query("vector(1)")
                self.remarks.append("rates may be too low, because Prometheus did not answer how old this traffic is")
                return window_s
            age_s = samples[0].value if samples else 0.0
            if range_s == window_s and age_s + 2 * step_s > window_s:
                return window_s
            if step_s == _MIN_STEP_S or age_s > _MIN_STEPS_OF_AGE * step_s:
                return max(round(age_s + step_s / 2), min_range_s)
            range_s = round(age_s) + step_s

    async def read_flows(self, window_s: int, min_range_s: int) -> list[Flow]:
        """Flows summed over all counters, sorted by workloads, zones and port."""
        source = self.source
        mean_sums: dict[tuple[WorkloadId, WorkloadId, str, str, int], float] = defaultdict(float)
        peak_sums: dict[tuple[WorkloadId, WorkloadId, str, str, int], float] = defaultdict(float)
        owners = await self._read_owners(window_s)
        for counter in source.counters:
            means = await self._prometheus.query(source.rate_expression(counter, window_s))
            peaks = await self._read_peaks(counter, window_s, min_range_s) if means else {}
            for series in means:
                mean = series.value
                if not 0 < mean < math.inf:
                    continue
                peak = max(peaks.get(frozenset(series.labels.items()), mean), mean)
                client, client_zone = source.client.workload_and_zone(series.labels)
                port = _parse_port(series.labels.get(source.port, ""))
                for labels, share in owners.get(series.labels.get(source.address, ""), [(series.labels, 1.0)]):
                    server, server_zone = source.server.workload_and_zone(labels)
                    key = client, server, client_zone, server_zone, port
                    mean_sums[key] += mean * share
                    peak_sums[key] += peak * share
        return [
            Flow(
                client,
                server,
                mean,
                peak_sums[client, server, client_zone, server_zone, port],
                client_zone,
                server_zone,
                port,
            )
            for (client, server, client_zone, server_zone, port), mean in sorted(mean_sums.items())
        ]

    async def _read_peaks(
        self, counter: str, window_s: int, min_range_s: int
    ) -> dict[frozenset[tuple[str, str]], float]:
        """Labels -> 95th percentile of the rate; empty if the subquery exceeds a limit of Prometheus."""
        step_s = max(window_s // _SUBQUERY_STEPS, _MIN_STEP_S)
        rate = self.source.rate_expression(counter, max(2 * step_s, min_range_s))
        expression = f"quantile_over_time({_PEAK_QUANTILE}, ({rate})[{window_s}s:{step_s}s])"
        try:
            vector = await self._prometheus.query(expression)
        except PrometheusError:
            self.remarks.append("Prometheus did not compute peaks; means are used instead")
            return {}
        return {frozenset(series.labels.items()): series.value for series in vector}

    async def _read_owners(self, window_s: int) -> Mapping[str, Sequence[tuple[Labels, float]]]:
        """Address -> labels of each workload that had it, with its share of the time."""
        source = self.source
        if not source.owner_metric:
            return {}
        grouping = ", ".join((source.address, *source.server.label_names))
        expression = f"sum by ({grouping}) (count_over_time({source.owner_metric}[{window_s}s]))"
        series_by_address: dict[str, list[VectorSample]] = defaultdict(list)
        for series in await self._prometheus.query(expression):
            series_by_address[series.labels.get(source.address, "")].append(series)
        return {
            address: [(series.labels, series.value / sum(other.value for other in group)) for series in group]
            for address, group in series_by_address.items()
        }


def _parse_port(text: str) -> int:
    """A port; 0 if the text is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) and int(text) <= _MAX_PORT else 0
