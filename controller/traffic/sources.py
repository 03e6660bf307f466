"""Readers of traffic from Prometheus, one per project, with the names that the project documents.

Each reader says what its source cannot know. A source is chosen by what Prometheus has, or by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.prometheus import PrometheusClient, PrometheusError, Series
from controller.traffic.flows import Flow, WorkloadId
from kubekit.errors import ConfigError
from netperf.contract import TRAFFIC_ROUND_S, traffic_pause_s

_STEPS = 60
"""Points of the window over which the peak is taken."""

_FINEST_STEP_S, _SURE_STEPS = 15, 20
_LONGEST_PAUSE_S = 600.0
"""Between two readings, whatever one agent says: it must not make everybody's rates ones over years."""

_INSTANCE = "instance"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class End:
    """Which labels name one end of a flow; an empty label name means that the source does not tell."""

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
        return WorkloadId(namespace, name, _kind(labels.get(self.kind, "")) if self.kind else "")

    def read_zone(self, labels: Labels) -> str:
        return labels.get(self.zone, "") if self.zone else ""


_NOBODY = frozenset({"", "unknown"})
"""What sources write for an end that they could not name (Istio: ``unknown``)."""
_KINDS = {
    kind.lower(): kind for kind in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod", "ReplicaSet")
}


def _kind(text: str) -> str:
    return _KINDS.get(text.lower(), text)


@dataclass(frozen=True)
class Counter:
    """One counter of a source.

    Attributes:
        metric: its name in Prometheus.
        source: the end that the counter's source labels name.
        destination: the other end.
        matchers: what series must carry, as in ``{...}``.
        requests: whether it counts requests instead of bytes.
        asked: whether bytes counted here go from the source's end to the destination's (True), back (False), or as the
            label ``direction_label`` says (None).
        direction_label: a label that is ``request`` or ``response``; bytes of a response go from server to client.
        port: label with the server's port.
        address: label with the destination's address, where only the source's `Directory` knows whose that is.
        both_nodes: whether the nodes of both ends count the same bytes, each in a series with its own ``instance``.
    """

    metric: str
    source: End
    destination: End
    matchers: str = ""
    requests: bool = False
    asked: bool | None = True
    direction_label: str = ""
    port: str = ""
    address: str = ""
    both_nodes: bool = False

    def rate(self, range_s: int) -> str:
        """The expression of the rate by ends, direction and port."""
        by = [*self.source.labels, *([self.address] if self.address else self.destination.labels)]
        by += [label for label in (self.direction_label, self.port, _INSTANCE if self.both_nodes else "") if label]
        selector = f"{self.metric}{{{self.matchers}}}" if self.matchers else self.metric
        return f"sum by ({', '.join(by)}) (rate({selector}[{range_s}s]))"


@dataclass(frozen=True)
class Directory:
    """A series of its own that says whose an address is, for counters that name an end by address alone.

    Attributes:
        metric: always 1, as long as the address is that workload's.
        address: label with the address, of the same name in the counters.
        end: labels of the workload.
    """

    metric: str
    address: str
    end: End


@dataclass(frozen=True)
class Source:
    """A project that knows who talks to whom.

    Attributes:
        name: for flags and the configuration.
        title: for people.
        counters: what is read.
        blind: what this source cannot know, for people.
        directory: whose the addresses in counters are, where these name none.
        least_rate_s: the shortest range of a rate, since Prometheus needs two readings in it. Most projects are scraped every
            15 to 30 s.
        rounds: metric of the processor's seconds that a reading takes (`traffic_pause_s`); empty where each scrape is one.
    """

    name: str
    title: str
    counters: Sequence[Counter]
    limitations: str
    directory: Directory | None = None
    least_rate_s: int = 60
    rounds: str = ""

    @property
    def metrics(self) -> list[str]:
        """Names by which Prometheus shows that this source is there."""
        return sorted({counter.metric for counter in self.counters})

    @property
    def presence(self) -> str:
        """An expression that has a value where the source is; names alone may be somebody else's."""
        selectors = (f"{c.metric}{{{c.matchers}}}" if c.matchers else c.metric for c in self.counters)
        return " or ".join(f"group({selector})" for selector in selectors)


def _ebpf(prefix: str, name: str, title: str) -> Source:
    # https://opentelemetry.io/docs/zero-code/obi/network/ and its attribute table; Beyla writes the same under its own prefix.
    source = End("k8s_src_namespace", "k8s_src_owner_name", "k8s_src_owner_type", "src_zone")
    destination = End("k8s_dst_namespace", "k8s_dst_owner_name", "k8s_dst_owner_type", "dst_zone")
    counter = Counter(
        f"{prefix}_network_flow_bytes_total",
        source,
        destination,
        asked=None,
        direction_label="direction",
        port="server_port",
        both_nodes=True,
    )
    limitations = (
        "who asks whom unless the attribute `direction` is selected (then it is guessed: who is behind a Service answers, else "
        "who sends more); zones unless `src.zone` and `dst.zone` are; that two nodes counted the same bytes, unless zones show "
        "it (rates within a zone may be up to twice as high); requests"
    )
    return Source(name, title, (counter,), limitations)


def _istio() -> Source:
    # https://istio.io/latest/docs/reference/config/metrics/; a client in the mesh reports as source, one outside it only at
    # the server, as destination with an unknown source. Sizes are of bodies; TCP "sent" is what the server sent.
    source = End("source_workload_namespace", "source_workload")
    destination = End("destination_workload_namespace", "destination_workload")
    reporter = 'reporter="source"'
    counters = (
        Counter("istio_requests_total", source, destination, reporter, requests=True),
        Counter("istio_request_bytes_sum", source, destination, reporter, asked=True),
        Counter("istio_response_bytes_sum", source, destination, reporter, asked=False),
        Counter("istio_tcp_received_bytes_total", source, destination, reporter, asked=True),
        Counter("istio_tcp_sent_bytes_total", source, destination, reporter, asked=False),
    )
    limitations = "headers of requests (bodies are counted), clients outside the mesh, zones, kinds of workloads"
    return Source("istio", "Istio", counters, limitations)


def _netobserv() -> Source:
    # https://github.com/netobserv/network-observability-operator/blob/main/docs/Metrics.md: what leaves a pod is egress on its
    # node, what reaches one ingress on its own; egress alone counts every byte once.
    source = End("SrcK8S_Namespace", "SrcK8S_OwnerName", "SrcK8S_OwnerType", "SrcK8S_Zone")
    destination = End("DstK8S_Namespace", "DstK8S_OwnerName", "DstK8S_OwnerType", "DstK8S_Zone")
    counters = (Counter("netobserv_workload_egress_bytes_total", source, destination, asked=None),)
    limitations = (
        "who asks whom (guessed: who is behind a Service answers, else who sends more); zones unless the feature and the labels"
        " are on; what sampling left out; requests"
    )
    return Source("netobserv", "NetObserv", counters, limitations)


def _retina() -> Source:
    # https://retina.sh/docs/Metrics/modes/advanced, remote context; a gauge that only grows. Both nodes count: egress alone.
    source = End("source_namespace", "source_workload_name", "source_workload_kind", "source_zone")
    destination = End(
        "destination_namespace", "destination_workload_name", "destination_workload_kind", "destination_zone"
    )
    counter = Counter(
        "networkobservability_adv_forward_bytes", source, destination, 'direction=~"(?i)egress"', asked=None
    )
    limitations = (
        "who asks whom (guessed: who is behind a Service answers, else who sends more); ends in local context (it must be"
        " remote); requests"
    )
    return Source("retina", "Retina", (counter,), limitations)


def _caretta() -> Source:
    # https://github.com/groundcover-com/caretta: bytes that one side sent, told by role 1 (client) or 2 (server); a gauge that
    # only grows. Either side counts what it sent itself.
    client = End("client_namespace", "client_name", "client_kind")
    server = End("server_namespace", "server_name", "server_kind")
    counters = tuple(
        Counter("caretta_links_observed", client, server, f'role="{role}"', asked=asked, port="server_port")
        for role, asked in (("1", True), ("2", False))
    )
    limitations = "zones; which of its workloads a Service means when it selects several; anything but TCP; requests"
    return Source("caretta", "Caretta", counters, limitations)


def _linkerd() -> Source:
    # https://linkerd.io/2/reference/proxy-metrics/: the client's proxy, towards the other end.
    client = End("namespace", "deployment")
    server = End("dst_namespace", "dst_deployment", zone="dst_zone")
    outbound = 'direction="outbound",dst_deployment!=""'
    peer = f'{outbound},peer="dst"'
    counters = (
        Counter("tcp_write_bytes_total", client, server, peer, asked=True),
        Counter("tcp_read_bytes_total", client, server, peer, asked=False),
        Counter("request_total", client, server, outbound, requests=True),
    )
    return Source(
        "linkerd",
        "Linkerd",
        counters,
        "clients outside of the mesh, workloads that are no Deployment, the client's zone",
    )


def _agent() -> Source:
    # agent/traffic/supervisor.py: the client by name, the server by address, and each server's agent says whose address it is.
    client = End("client_namespace", "client_workload", "client_kind", "client_zone")
    server = End("server_namespace", "server_workload", "server_kind", "server_zone")
    counters = tuple(
        Counter(_AGENT_BYTES, client, server, f'direction="{direction}"', asked=asked, port="port", address="server")
        for direction, asked in (("request", True), ("response", False))
    )
    limitations = (
        "requests; connections that began before net.netfilter.nf_conntrack_acct was 1; pods in the host's network; calls that"
        " connection tracking does not see (Cilium without kube-proxy, within a bridge without br_netfilter)"
    )
    directory = Directory("netaware_traffic_server_info", "server", server)
    # Agents read every 30 s, later on a busy node, and their bytes carry that time: three readings leave two for certain.
    return Source(
        "conntrack",
        "netaware's agents (connection tracking)",
        counters,
        limitations,
        directory,
        least_rate_s=100,
        rounds="netaware_traffic_round_seconds",
    )


_AGENT_BYTES = "netaware_traffic_bytes_total"
SOURCES: Sequence[Source] = (
    _ebpf("obi", "obi", "OpenTelemetry eBPF Instrumentation"),
    _ebpf("beyla", "beyla", "Grafana Beyla"),
    _istio(),
    _netobserv(),
    _retina(),
    _linkerd(),
    _caretta(),
    _agent(),
)


class NoTrafficError(ConfigError):
    """Prometheus knows no source of traffic, or not the one that was asked for."""


@dataclass
class _Sums:
    """Rates of one client, server, zones and port while a source's counters are added up, bytes or requests per second."""

    request: float = 0.0
    response: float = 0.0
    peak: float = 0.0
    requests: float | None = None
    direction_known: bool = True


_Key = tuple[WorkloadId, WorkloadId, str, str, int]


@dataclass
class _Table:
    """What was read so far, and bytes whose direction the source does not tell."""

    sums: dict[_Key, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    undirected: dict[_Key, tuple[float, float]] = field(default_factory=dict)

    def take(self, counter: Counter, means: Iterable[Series], peaks: Iterable[Series]) -> None:
        """Add one counter's series."""
        if counter.both_nodes:
            means, peaks = _seen_once(counter, means), _seen_once(counter, peaks)
        peak_of = {_identity(series.labels): series.value for series in peaks}
        for series in means:
            labels, mean = series.labels, series.value
            if not 0 < mean < math.inf:
                continue
            peak = max(peak_of.get(_identity(labels), mean), mean)
            source, destination = counter.source.read(labels), counter.destination.read(labels)
            zones = counter.source.read_zone(labels), counter.destination.read_zone(labels)
            port = _port(labels.get(counter.port, "")) if counter.port else 0
            direction = labels.get(counter.direction_label, "") if counter.direction_label else ""
            if counter.asked is None and direction == "response":
                self._add((destination, source, zones[1], zones[0], port), response=mean, peak=peak)
            elif counter.asked is None and direction != "request":
                key = (source, destination, *zones, port)
                before = self.undirected.get(key, (0.0, 0.0))
                self.undirected[key] = before[0] + mean, before[1] + peak
            elif counter.requests:
                sums = self.sums[source, destination, *zones, port]
                sums.requests = (sums.requests or 0.0) + mean
            elif counter.asked is False:
                self._add((source, destination, *zones, port), response=mean, peak=peak)
            else:
                self._add((source, destination, *zones, port), request=mean, peak=peak)

    def _add(self, key: _Key, *, request: float = 0.0, response: float = 0.0, peak: float = 0.0) -> None:
        sums = self.sums[key]
        sums.request += request
        sums.response += response
        sums.peak += peak

    def guess_directions(self, served: frozenset[tuple[str, str]]) -> None:
        """Decide who asked where the source only told who sent: see `Source.limitations`.

        ``served`` holds (namespace, name) of workloads that a Service selects.
        """
        done: set[_Key] = set()
        for key, (mean, peak) in sorted(self.undirected.items(), reverse=True):
            if key in done:
                continue
            source, destination, source_zone, destination_zone, port = key
            back_key = (destination, source, destination_zone, source_zone, port)
            back, back_peak = self.undirected.get(back_key, (0.0, 0.0))
            done |= {key, back_key}
            first = (source.namespace, source.name) in served
            second = (destination.namespace, destination.name) in served
            source_answers = first if first != second else mean > back
            ours = back_key if source_answers else key
            request, response = (back, mean) if source_answers else (mean, back)
            self._add(ours, request=request, response=response, peak=peak + back_peak)
            self.sums[ours].direction_known = False
        self.undirected.clear()

    def flows(self) -> list[Flow]:
        """What was read, in a fixed order."""
        return [
            Flow(
                client,
                server,
                sums.request,
                sums.response,
                sums.peak,
                sums.requests,
                client_zone,
                server_zone,
                port,
                sums.direction_known,
            )
            for (client, server, client_zone, server_zone, port), sums in sorted(
                self.sums.items(), key=lambda kv: kv[0]
            )
        ]


def _seen_once(counter: Counter, found: Iterable[Series]) -> list[Series]:
    """Series without ``instance``. What crosses zones was counted by the nodes of both ends: half of it, if two told."""
    seen: dict[frozenset[tuple[str, str]], list[Series]] = defaultdict(list)
    for series in found:
        seen[_identity({k: v for k, v in series.labels.items() if k != _INSTANCE})].append(series)
    merged = []
    for identity, parts in seen.items():
        labels = dict(identity)
        here, there = counter.source.read_zone(labels), counter.destination.read_zone(labels)
        twice = bool(here and there and here != there and len(parts) > 1)
        total = sum(part.value for part in parts) / (2 if twice else 1)
        merged.append(Series(labels, ((parts[0].points[-1][0], total),)))
    return merged


def _identity(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def _port(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) and int(text) < 2**16 else 0


async def find_sources(prometheus: PrometheusClient) -> list[Source]:
    """The sources whose counters Prometheus has, best first.

    Raises:
        PrometheusError: Prometheus gives no answer.
    """
    names = "|".join(metric for source in SOURCES for metric in source.metrics)
    found = await prometheus.query(f'count by (__name__) ({{__name__=~"{names}"}})')
    there = {series.labels.get("__name__", "") for series in found}
    candidates = [source for source in SOURCES if there.intersection(source.metrics)]
    return [source for source in candidates if await prometheus.query(source.presence)]


async def choose_among(prometheus: PrometheusClient, name: str = "") -> list[Source]:
    """The source of that name alone, or all that are there, best first. Bytes of two are never added: they count the same.

    Raises:
        NoTrafficError: there is none; says which metrics were looked for.
        PrometheusError: Prometheus gives no answer.
    """
    names = [source.name for source in SOURCES]
    if name and name not in names:
        raise NoTrafficError("--source", f"{name!r} is unknown", f"write one of {', '.join(names)}")
    found = [source for source in await find_sources(prometheus) if name in {"", source.name}]
    if not found:
        wanted = [source for source in SOURCES if name in {"", source.name}]
        metrics = ", ".join(metric for source in wanted for metric in source.metrics)
        problem = f"{prometheus.url} has no counter of who talks to whom; looked for {metrics}"
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
    """How many of the last ``window_s`` seconds Prometheus has this source for, and at least what a rate of it needs.

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
            await prometheus.query("time()")
            return window_s
        known_s = found[0].value if found else 0.0
        if asked_s == window_s and known_s + 2 * step_s > window_s:
            return window_s
        if step_s == _FINEST_STEP_S or known_s > _SURE_STEPS * step_s:
            return max(round(known_s + step_s / 2), least_s)
        asked_s = round(known_s) + step_s


async def read_flows(
    prometheus: PrometheusClient, source: Source, window_s: int, served: frozenset[tuple[str, str]] = frozenset()
) -> list[Flow]:
    """Flows over the last ``window_s`` seconds; ``served`` as for `_Table.guess_directions`.

    Raises:
        PrometheusError: Prometheus gives no answer, or too large a one for its limits.
    """
    table = _Table()
    owners = await _read_owners(prometheus, source.directory, window_s)
    step_s = max(window_s // _STEPS, _FINEST_STEP_S)
    range_s = max(2 * step_s, await _least_rate_s(prometheus, source))
    for counter in source.counters:
        means = await prometheus.query(counter.rate(window_s))
        peaks: list[Series] = []
        if means and not counter.requests:
            try:
                peaks = await prometheus.query(
                    f"quantile_over_time(0.95, ({counter.rate(range_s)})[{window_s}s:{step_s}s])"
                )
            except PrometheusError:
                # A subquery over many series may be too much for Prometheus; the mean is then the best peak there is.
                peaks = []
        if source.directory is not None:
            means, peaks = (_name_owners(series, source.directory, owners) for series in (means, peaks))
        table.take(counter, means, peaks)
    table.guess_directions(served)
    return table.flows()


_Owners = Mapping[str, Sequence[tuple[Labels, float]]]
"""Address -> labels of each workload that had it, and its share of the time."""


async def _read_owners(prometheus: PrometheusClient, directory: Directory | None, window_s: int) -> _Owners:
    if directory is None:
        return {}
    by = ", ".join((directory.address, *directory.end.labels))
    found = await prometheus.query(f"sum by ({by}) (count_over_time({directory.metric}[{window_s}s]))")
    seen: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for series in found:
        seen[series.labels.get(directory.address, "")].append((series.labels, series.value))
    return {
        address: [(labels, value / sum(v for _, v in owners)) for labels, value in owners]
        for address, owners in seen.items()
    }


def _name_owners(found: Iterable[Series], directory: Directory, owners: _Owners) -> list[Series]:
    """Series with the labels of the address's workload. Of an address that went from one to another each gets its time's share."""
    named: list[Series] = []
    for series in found:
        address = series.labels.get(directory.address, "")
        for labels, share in owners.get(address, [({}, 1.0)]):
            points = tuple((at_s, value * share) for at_s, value in series.points)
            named.append(Series({**series.labels, **labels}, points))
    return named
