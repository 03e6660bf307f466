"""Readers of traffic from Prometheus, one per project, with the names that the project documents.

Each reader lists what its source lacks. A source is chosen by the metrics that Prometheus has, or by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from controller.prometheus import PrometheusClient, PrometheusError, Series
from controller.traffic.flows import Flow, WorkloadId
from kubekit.errors import ConfigError
from netperf.contract import TRAFFIC_ROUND_S, traffic_pause_s

_STEPS = 60
"""Points of the window over which the peak is taken."""

_FINEST_STEP_S, _SURE_STEPS = 15, 20
_LONGEST_PAUSE_S = 600.0
"""Longest time between two readings, so that one agent's value cannot stretch all rates."""

_INSTANCE = "instance"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class End:
    """Labels of one end of a flow; an empty label name means that the source lacks it."""

    namespace: str
    name: str
    kind: str = ""
    zone: str = ""

    @property
    def labels(self) -> list[str]:
        return [label for label in (self.namespace, self.name, self.kind, self.zone) if label]

    def read(self, labels: Labels) -> WorkloadId:
        namespace, name = labels.get(self.namespace, ""), labels.get(self.name, "")
        if namespace in _NOBODY or name in _NOBODY:
            return WorkloadId()
        kind = labels.get(self.kind, "") if self.kind else ""
        return WorkloadId(namespace, name, _KINDS.get(kind.lower(), kind))

    def read_zone(self, labels: Labels) -> str:
        return labels.get(self.zone, "") if self.zone else ""


_NOBODY = frozenset({"", "unknown"})
"""What sources write for an end that they could not name (Istio: ``unknown``)."""
_KINDS = {k.lower(): k for k in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod", "ReplicaSet")}


@dataclass(frozen=True)
class SourceMetric:
    """A counter in Prometheus that a source exports.

    Attributes:
        metric: its name in Prometheus.
        counts: requests, or bytes of requests or of responses.
        matchers: what series must carry, as in ``{...}``.
    """

    metric: str
    counts: Literal["requests", "request-bytes", "response-bytes"]
    matchers: str = ""

    @property
    def selector(self) -> str:
        """Its series."""
        return f"{self.metric}{{{self.matchers}}}" if self.matchers else self.metric


@dataclass(frozen=True)
class Source:
    """A project that knows who talks to whom.

    Attributes:
        name: for flags and the configuration.
        title: for people.
        limitations: what this source cannot know, for people.
        client: the end that labels name first; ``server`` the other one.
        counters: what is read.
        port: label with the server's port.
        names_sender_first: whether the first end is who sent the bytes: of a response, the server.
        both_nodes: whether the nodes of both ends count the same bytes, each in a series with its own ``instance``.
        address: label with the server's address, where counters name it by that alone.
        owners: metric, always 1, that says whose an address is.
        least_rate_s: the shortest range of a rate, since Prometheus needs two readings in it. Most projects are scraped every
            15 to 30 s.
        rounds: metric of the processor's seconds that a reading takes (`traffic_pause_s`); empty where each scrape is one.
    """

    name: str
    title: str
    limitations: str
    client: End
    server: End
    counters: Sequence[SourceMetric]
    port: str = ""
    names_sender_first: bool = False
    both_nodes: bool = False
    address: str = ""
    owners: str = ""
    least_rate_s: int = 60
    rounds: str = ""

    @property
    def metrics(self) -> list[str]:
        """Metrics whose presence shows that this source exists."""
        return sorted({counter.metric for counter in self.counters})

    @property
    def presence(self) -> str:
        """An expression that has a value if the source exists; metric names alone may belong to another one."""
        return " or ".join(f"group({counter.selector})" for counter in self.counters)

    def rate(self, counter: SourceMetric, range_s: int) -> str:
        """The expression of a counter's rate by ends and port."""
        by = [*self.client.labels, *([self.address] if self.address else self.server.labels), self.port]
        by.append(_INSTANCE if self.both_nodes else "")
        return f"sum by ({', '.join(filter(None, by))}) (rate({counter.selector}[{range_s}s]))"


def _ends(template: str, client: str, server: str) -> tuple[End, End]:
    """Both ends, by a template of their labels: namespace, name, kind and zone, as far as there are any."""
    first, second = (End(*template.replace("*", end).split()) for end in (client, server))
    return first, second


_EBPF_LIMITATIONS = """\
anything unless the attribute `direction` is selected; zones unless `src.zone` and `dst.zone` are; that two nodes counted the \
same bytes, unless zones show it (rates within a zone may be up to twice as high); requests"""
_LINKERD = 'direction="outbound",dst_deployment!=""'

SOURCES: Sequence[Source] = (
    # https://opentelemetry.io/docs/zero-code/obi/network/ and its attribute table; Beyla writes the same under its own prefix.
    *(
        Source(
            name,
            title,
            _EBPF_LIMITATIONS,
            *_ends("k8s_*_namespace k8s_*_owner_name k8s_*_owner_type *_zone", "src", "dst"),
            [
                SourceMetric(f"{name}_network_flow_bytes_total", "request-bytes", 'direction="request"'),
                SourceMetric(f"{name}_network_flow_bytes_total", "response-bytes", 'direction="response"'),
            ],
            port="server_port",
            names_sender_first=True,
            both_nodes=True,
        )
        for name, title in (("obi", "OpenTelemetry eBPF Instrumentation"), ("beyla", "Grafana Beyla"))
    ),
    # https://istio.io/latest/docs/reference/config/metrics/; a client in the mesh reports as source, one outside it only at
    # the server, as destination with an unknown source. Sizes are of bodies; TCP "sent" is what the server sent.
    Source(
        "istio",
        "Istio",
        "headers of requests (bodies are counted), clients outside the mesh, zones, kinds of workloads",
        *_ends("*_workload_namespace *_workload", "source", "destination"),
        [
            SourceMetric("istio_requests_total", "requests", 'reporter="source"'),
            SourceMetric("istio_request_bytes_sum", "request-bytes", 'reporter="source"'),
            SourceMetric("istio_response_bytes_sum", "response-bytes", 'reporter="source"'),
            SourceMetric("istio_tcp_received_bytes_total", "request-bytes", 'reporter="source"'),
            SourceMetric("istio_tcp_sent_bytes_total", "response-bytes", 'reporter="source"'),
        ],
    ),
    # https://linkerd.io/2/reference/proxy-metrics/: the client's proxy, towards the other end.
    Source(
        "linkerd",
        "Linkerd",
        "clients outside of the mesh, workloads that are no Deployment, the client's zone",
        End("namespace", "deployment"),
        End("dst_namespace", "dst_deployment", zone="dst_zone"),
        [
            SourceMetric("tcp_write_bytes_total", "request-bytes", f'{_LINKERD},peer="dst"'),
            SourceMetric("tcp_read_bytes_total", "response-bytes", f'{_LINKERD},peer="dst"'),
            SourceMetric("request_total", "requests", _LINKERD),
        ],
    ),
    # agent/traffic/manager.py: the client by name, the server by address, and each server's agent says whose address it is.
    Source(
        "conntrack",
        "netaware's agents (connection tracking)",
        "requests; connections that began before net.netfilter.nf_conntrack_acct was 1; pods in the host's network; calls that"
        " connection tracking does not see (Cilium without kube-proxy, within a bridge without br_netfilter)",
        *_ends("*_namespace *_workload *_kind *_zone", "client", "server"),
        [
            SourceMetric("netaware_traffic_bytes_total", "request-bytes", 'direction="request"'),
            SourceMetric("netaware_traffic_bytes_total", "response-bytes", 'direction="response"'),
        ],
        port="port",
        address="server",
        owners="netaware_traffic_server_info",
        # Agents read every 30 s, later on a busy node, and their bytes carry that time: three readings leave two for certain.
        least_rate_s=100,
        rounds="netaware_traffic_round_seconds",
    ),
)


class NoTrafficError(ConfigError):
    """Prometheus has no source of traffic, or not the requested one."""


@dataclass
class _Rates:
    """Rates of one client, server, zones and port while a source's counters are added up, bytes or requests per second."""

    request: float = 0.0
    response: float = 0.0
    peak: float = 0.0
    requests: float | None = None


_Key = tuple[WorkloadId, WorkloadId, str, str, int]


def _add(
    sums: dict[_Key, _Rates], source: Source, counter: SourceMetric, means: Iterable[Series], peaks: Iterable[Series]
) -> None:
    """Add one counter's series."""
    if source.both_nodes:
        means, peaks = _seen_once(source, means), _seen_once(source, peaks)
    peak_of = {_identity(series.labels): series.value for series in peaks}
    for series in means:
        labels, mean = series.labels, series.value
        if not 0 < mean < math.inf:
            continue
        first, second = ((end.read(labels), end.read_zone(labels)) for end in (source.client, source.server))
        if source.names_sender_first and counter.counts == "response-bytes":
            first, second = second, first
        port = _port(labels.get(source.port, "")) if source.port else 0
        rates = sums[first[0], second[0], first[1], second[1], port]
        if counter.counts == "requests":
            rates.requests = (rates.requests or 0.0) + mean
            continue
        rates.peak += max(peak_of.get(_identity(labels), mean), mean)
        if counter.counts == "request-bytes":
            rates.request += mean
        else:
            rates.response += mean


def _seen_once(source: Source, found: Iterable[Series]) -> list[Series]:
    """Series without ``instance``. What crosses zones was counted by the nodes of both ends: half of it, if two told."""
    seen: dict[frozenset[tuple[str, str]], list[Series]] = defaultdict(list)
    for series in found:
        seen[_identity({k: v for k, v in series.labels.items() if k != _INSTANCE})].append(series)
    merged = []
    for identity, parts in seen.items():
        labels = dict(identity)
        here, there = source.client.read_zone(labels), source.server.read_zone(labels)
        twice = bool(here and there and here != there and len(parts) > 1)
        total = sum(part.value for part in parts) / (2 if twice else 1)
        merged.append(Series(labels, total))
    return merged


def _identity(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def _port(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) and int(text) < 2**16 else 0


async def choose_among(prometheus: PrometheusClient, name: str = "") -> list[Source]:
    """The source of that name alone, or all that are there, best first. Bytes of two are never added: they count the same.

    Raises:
        NoTrafficError: there is none; says which metrics were looked for.
        PrometheusError: Prometheus gives no answer.
    """
    names = [source.name for source in SOURCES]
    if name and name not in names:
        raise NoTrafficError("--source", f"{name!r} is unknown", f"write one of {', '.join(names)}")
    wanted = [source for source in SOURCES if name in {"", source.name}]
    metrics = [metric for source in wanted for metric in source.metrics]
    series = await prometheus.query(f'count by (__name__) ({{__name__=~"{"|".join(metrics)}"}})')
    known = {found.labels.get("__name__", "") for found in series}
    candidates = [source for source in wanted if known.intersection(source.metrics)]
    found = [source for source in candidates if await prometheus.query(source.presence)]
    if not found:
        problem = f"{prometheus.url} has no counter of who talks to whom; looked for {', '.join(metrics)}"
        raise NoTrafficError("traffic", problem, "install one of the projects that export them")
    return found


async def _least_rate_s(prometheus: PrometheusClient, source: Source) -> int:
    """The shortest range of a rate that has two readings of the slowest reader in it; of a shorter one its traffic would be missing."""
    if not source.rounds:
        return source.least_rate_s
    found = await prometheus.query(f"max(max_over_time({source.rounds}[1h]))")
    pause_s = min(traffic_pause_s(found[0].value if found else 0.0), _LONGEST_PAUSE_S)
    return source.least_rate_s + math.ceil(2 * (pause_s - TRAFFIC_ROUND_S))


async def known_window(prometheus: PrometheusClient, source: Source, window_s: int) -> int:
    """Seconds of the last ``window_s`` for which Prometheus has this source, and at least what a rate needs.

    A rate over a time that it has only the end of is too low by the part that is missing, and nothing shows it: bills of an hour
    were a sixth ten minutes after the source was installed. What is missing in between is no matter, since counters go on.

    Raises:
        PrometheusError: Prometheus gives no answer.
    """
    least_s = await _least_rate_s(prometheus, source)
    asked_s = window_s = max(window_s, least_s)
    while True:
        step_s = max(asked_s // _STEPS, _FINEST_STEP_S)
        expression = f"time() - min_over_time((time() * ({source.presence}))[{asked_s}s:{step_s}s])"
        try:
            found = await prometheus.query(expression)
        except PrometheusError:
            # Too many series for a subquery; where there is no answer at all, this raises too.
            await prometheus.query("vector(1)")
            return window_s
        known_s = found[0].value if found else 0.0
        if asked_s == window_s and known_s + 2 * step_s > window_s:
            return window_s
        if step_s == _FINEST_STEP_S or known_s > _SURE_STEPS * step_s:
            return max(round(known_s + step_s / 2), least_s)
        asked_s = round(known_s) + step_s


async def read_flows(prometheus: PrometheusClient, source: Source, window_s: int) -> list[Flow]:
    """Flows over the last ``window_s`` seconds, in a fixed order.

    Raises:
        PrometheusError: Prometheus gives no answer, or too large a one for its limits.
    """
    sums: dict[_Key, _Rates] = defaultdict(_Rates)
    owners = await _read_owners(prometheus, source, window_s)
    step_s = max(window_s // _STEPS, _FINEST_STEP_S)
    range_s = max(2 * step_s, await _least_rate_s(prometheus, source))
    for counter in source.counters:
        means = await prometheus.query(source.rate(counter, window_s))
        peaks: list[Series] = []
        if means and counter.counts != "requests":
            try:
                peaks = await prometheus.query(
                    f"quantile_over_time(0.95, ({source.rate(counter, range_s)})[{window_s}s:{step_s}s])"
                )
            except PrometheusError:
                # A subquery over many series may be too much for Prometheus; the mean is then the best peak there is.
                peaks = []
        if source.owners:
            means, peaks = (_name_owners(series, source.address, owners) for series in (means, peaks))
        _add(sums, source, counter, means, peaks)
    return [
        Flow(client, server, s.request, s.response, s.peak, s.requests, here, there, port)
        for (client, server, here, there, port), s in sorted(sums.items(), key=lambda item: item[0])
    ]


_Owners = Mapping[str, Sequence[tuple[Labels, float]]]
"""Address -> labels of each workload that had it, and its share of the time."""


async def _read_owners(prometheus: PrometheusClient, source: Source, window_s: int) -> _Owners:
    if not source.owners:
        return {}
    by = ", ".join((source.address, *source.server.labels))
    found = await prometheus.query(f"sum by ({by}) (count_over_time({source.owners}[{window_s}s]))")
    seen: dict[str, list[Series]] = defaultdict(list)
    for series in found:
        seen[series.labels.get(source.address, "")].append(series)
    return {
        key: [(one.labels, one.value / sum(other.value for other in parts)) for one in parts]
        for key, parts in seen.items()
    }


def _name_owners(found: Iterable[Series], address: str, owners: _Owners) -> list[Series]:
    """Series with the labels of the address's workload. Of an address that went from one to another each gets its time's share."""
    return [
        Series({**series.labels, **labels}, series.value * share)
        for series in found
        for labels, share in owners.get(series.labels.get(address, ""), [({}, 1.0)])
    ]
