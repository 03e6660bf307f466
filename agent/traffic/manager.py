"""Counts bytes between pods and exports them; off unless ``--traffic conntrack``.

The agent of the client's node exports the client's workload and the server's address. The agent of the server's node exports which
workload has that address (``netaware_traffic_server_info``), and the reader joins both.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.config import AgentConfig
from agent.netlink import KernelError
from agent.traffic.conntrack import TableState, dump, listen, read_entries, read_table_state
from agent.traffic.edges import Edge, EdgeTotals, Workload
from kubekit import logs
from kubekit.addresses import parse_address
from kubekit.owners import owner_of
from kubekit.reflector import Reflector
from kubekit.wire import Pod
from netperf.contract import MIN_TRAFFIC_PAUSE_S, traffic_pause_s

log = logs.get("agent.traffic")

MAX_READING_AGE_S = 300.0
"""An older reading is not exported, because Prometheus refuses samples with old timestamps."""
_CLIENT_LABELS = ("client_namespace", "client_kind", "client_workload", "client_zone")
_SERVER_LABELS = ("server_namespace", "server_kind", "server_workload", "server_zone")


class TrafficManager:
    """Counts traffic between pods of one node.

    Args:
        pods: store of this node's pods, run by the caller.
        zone: returns this node's current zone.
    """

    def __init__(
        self, pods: Reflector[Pod], config: AgentConfig, zone: Callable[[], str], registry: CollectorRegistry
    ) -> None:
        self._pods = pods
        self.collector = TrafficCollector(zone, config.proc)
        registry.register(self.collector)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Tasks to run, by name."""
        return {"traffic-events": self._listen(), "traffic-rounds": self._run()}

    async def _listen(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await listen(self.collector.add_ended, self.collector.on_overflow)
            except KernelError as error:
                if time.monotonic() - began_s > MIN_TRAFFIC_PAUSE_S:
                    log.log_change("events", "", "connection tracking events were read meanwhile")
                log.log_change("events", str(error), "cannot listen to connection tracking events", error=error)
            await asyncio.sleep(MIN_TRAFFIC_PAUSE_S)

    async def _run(self) -> None:
        await self._pods.synced.wait()
        while True:
            try:
                await self.collector.read_table(workloads_by_address(self._pods), time.monotonic(), time.time())
            except KernelError as error:
                log.log_change("table", str(error), "cannot read connection tracking", error=error)
            else:
                problem = self.collector.table.problem
                log.log_change("table", problem, problem or "connection tracking is read")
            await asyncio.sleep(traffic_pause_s(self.collector.cost_s))


def workloads_by_address(pods: Iterable[Pod]) -> dict[bytes, Workload]:
    """Address -> workload, of running pods that have a network of their own."""
    workloads: dict[bytes, Workload] = {}
    for pod in pods:
        if pod.spec.host_network or pod.is_finished:
            continue
        workload = Workload(pod.metadata.namespace, *(owner_of(pod.metadata) or ("Pod", pod.metadata.name)))
        for text in {pod.status.pod_ip, *(pod_ip.ip for pod_ip in pod.status.pod_ips or ())}:
            address = parse_address(text)
            if address is not None:  # The pod may have no address yet.
                workloads[address.packed] = workload
    return workloads


class TrafficCollector:
    """Reads the kernel's table into `EdgeTotals`, and collects metrics from them.

    Samples carry the time at which the table was read, because a scrape comes up to a round later, which would distort rates.

    Attributes:
        edges: the totals.
        table: state of the kernel's table at the last reading.
        cost_s: processor time that the last round took.
        overflows: how often the kernel dropped events.
    """

    def __init__(self, zone: Callable[[], str], proc: Path, clock: Callable[[], float] = time.time) -> None:
        self.edges = EdgeTotals()
        self.cost_s, self.overflows = 0.0, 0
        self._zone, self._proc, self._clock = zone, proc, clock
        self.table = TableState()

    def add_ended(self, data: bytes) -> None:
        """Add a datagram of events of ended connections."""
        for entry in read_entries(data):
            self.edges.add_ended(entry)

    def on_overflow(self) -> None:
        """Count a loss of events."""
        self.overflows += 1

    async def read_table(self, workloads_by_address: Mapping[bytes, Workload], now_s: float, read_at_s: float) -> None:
        """Read the whole table once; ``read_at_s`` is now in seconds since the epoch.

        Raises:
            KernelError: the table cannot be read.
        """
        self.table = read_table_state(self._proc)
        self.edges.set_workloads(workloads_by_address, now_s)
        self.edges.begin_round(now_s, read_at_s)
        cost_s = 0.0
        async for data in dump():
            began_s = time.thread_time()
            for entry in read_entries(data):
                self.edges.add_live(entry)
            cost_s += time.thread_time() - began_s
        self.edges.end_round()
        self.cost_s = cost_s

    def collect(self) -> Iterator[Metric]:
        """The metric families of this node."""
        zone = self._zone()
        read_at_s, totals = self.edges.reading
        if self._clock() - read_at_s <= MAX_READING_AGE_S:
            yield _byte_counters(zone, read_at_s, totals)
        info = GaugeMetricFamily(
            "netaware_traffic_server_info",
            "Workload of an address of this node that answers calls; always 1. Joins netaware_traffic_bytes_total on `server`.",
            labels=("server", *_SERVER_LABELS),
        )
        for address, workload in self.edges.responding_servers():
            info.add_metric(
                (str(ipaddress.ip_address(address)), workload.namespace, workload.kind, workload.name, zone), 1.0
            )
        yield info
        yield from self._table_metrics()

    def _table_metrics(self) -> Iterator[Metric]:
        table = self.table
        yield GaugeMetricFamily(
            "netaware_traffic_counting",
            "1 when the kernel counts bytes of connections that begin now, else 0.",
            value=float(bool(table.accounting)),
        )
        yield GaugeMetricFamily(
            "netaware_traffic_uncounted_connections",
            "Live connections of pods without byte counters, because they began before accounting was enabled.",
            value=self.edges.uncounted,
        )
        untracked = CounterMetricFamily(
            "netaware_traffic_untracked_connections",
            "Connections that are not counted because the table was full: refused, or removed early.",
            labels=("reason",),
        )
        for reason, count in (("refused", table.dropped), ("early_dropped", table.early_dropped)):
            if count is not None:
                untracked.add_metric((reason,), count)
        yield untracked
        yield CounterMetricFamily(
            "netaware_traffic_lost_messages",
            "Times that the kernel dropped events of ended connections.",
            value=self.overflows,
        )
        yield GaugeMetricFamily(
            "netaware_traffic_round_seconds", "Processor time of reading the table once.", value=self.cost_s
        )


def _byte_counters(zone: str, read_at_s: float, totals: Iterable[tuple[Edge, int, int]]) -> Metric:
    family = CounterMetricFamily(
        "netaware_traffic_bytes",
        "Bytes between a workload's pods on this node and an address that they call, IP headers included; `outside` is"
        " every public address, an empty server all edges beyond the 2,000 of a node. With the time at which they were read.",
        labels=(*_CLIENT_LABELS, "server", "port", "direction"),
    )
    for edge, request, response in totals:
        labels = (edge.client.namespace, edge.client.kind, edge.client.name, zone, edge.server, str(edge.port))
        family.add_metric((*labels, "request"), request, timestamp=read_at_s)
        family.add_metric((*labels, "response"), response, timestamp=read_at_s)
    return family
