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

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.netlink import KernelError
from agent.traffic.conntrack import ConntrackState, dump_table, listen_for_ends, parse_connections, read_conntrack_state
from agent.traffic.edges import EdgeBytes, EdgeTotals, WorkloadReference
from kubekit import logs
from kubekit.addresses import parse_address
from kubekit.owners import find_workload
from kubekit.reflector import Reflector
from kubekit.wire import Pod
from netperf.contract import MIN_TRAFFIC_PAUSE_S, traffic_pause_s

log = logs.get("agent.traffic")

MAX_TOTALS_AGE_S = 300.0
"""Totals that were read longer ago are not exported, because Prometheus refuses samples with old timestamps."""
_CLIENT_LABELS = ("client_namespace", "client_kind", "client_workload", "client_zone")
_SERVER_LABELS = ("server_namespace", "server_kind", "server_workload", "server_zone")


def find_workloads(pods: Iterable[Pod]) -> dict[bytes, WorkloadReference]:
    """Find the workloads of unfinished pods that have a network of their own, by address."""
    workload_by_address: dict[bytes, WorkloadReference] = {}
    for pod in pods:
        if pod.spec.host_network or pod.is_finished:
            continue
        kind, name = find_workload(pod.metadata) or ("Pod", pod.metadata.name)
        workload = WorkloadReference(pod.metadata.namespace, kind, name)
        for text in {pod.status.pod_ip, *(pod_ip.ip for pod_ip in pod.status.pod_ips or ())}:
            address = parse_address(text)
            if address is not None:  # The pod may have no address yet.
                workload_by_address[address.packed] = workload
    return workload_by_address


class TrafficCollector:
    """Reads one node's connection tracking into `EdgeTotals`, and collects metrics from them.

    Samples carry the time at which the table was read, because a scrape comes up to a round later, which would distort rates.

    Args:
        current_zone: returns this node's zone; empty if unknown.

    Attributes:
        edges: the totals.
        round_cpu_s: processor time of counting the table in the last round.
        overflow_count: number of times that the kernel dropped events.
        state: settings and counters of connection tracking in the last round.
    """

    def __init__(
        self, current_zone: Callable[[], str], proc: Path, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.edges = EdgeTotals()
        self.round_cpu_s, self.overflow_count = 0.0, 0
        self._current_zone, self._proc, self._wall_clock = current_zone, proc, wall_clock
        self.state = ConntrackState()

    def tasks(self, pods: Reflector[Pod]) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Tasks to run, by name; the caller runs the store of this node's pods."""
        return {"traffic-events": self._listen_forever(), "traffic-rounds": self._read_table_forever(pods)}

    async def _listen_forever(self) -> None:
        while True:
            started_at_s = time.monotonic()
            try:
                await listen_for_ends(self.add_events)
            except KernelError as error:
                if time.monotonic() - started_at_s > MIN_TRAFFIC_PAUSE_S:
                    log.log_change("events", "", "connection tracking events were read since the last failure")
                log.log_change("events", str(error), "cannot listen to connection tracking events", error=error)
            await asyncio.sleep(MIN_TRAFFIC_PAUSE_S)

    async def _read_table_forever(self, pods: Reflector[Pod]) -> None:
        await pods.synced.wait()
        while True:
            try:
                await self.read_table(find_workloads(pods), time.monotonic(), self._wall_clock())
            except KernelError as error:
                log.log_change("table", str(error), "cannot read connection tracking", error=error)
            else:
                problem = self.state.problem
                log.log_change("table", problem, problem or "connection tracking is read")
            await asyncio.sleep(traffic_pause_s(self.round_cpu_s))

    def add_events(self, data: bytes | None) -> None:
        """Add a datagram of events about ended connections; None if the kernel dropped events."""
        if data is None:
            self.overflow_count += 1
        for connection in parse_connections(data or b""):
            self.edges.add_ended(connection)

    async def read_table(
        self, workload_by_address: Mapping[bytes, WorkloadReference], now_s: float, read_at_s: float
    ) -> None:
        """Read the whole table and the kernel's settings once; ``read_at_s`` is ``now_s`` in seconds since the epoch.

        Raises:
            KernelError: the table cannot be read.
        """
        self.state = read_conntrack_state(self._proc)
        self.edges.set_workloads(workload_by_address, now_s)
        self.edges.begin_round(now_s, read_at_s)
        cpu_s = 0.0
        async for data in dump_table():
            started_at_s = time.thread_time()
            for connection in parse_connections(data):
                self.edges.add_live(connection)
            cpu_s += time.thread_time() - started_at_s
        self.edges.end_round()
        self.round_cpu_s = cpu_s

    def collect(self) -> Iterator[Metric]:
        """The metric families of this node."""
        zone = self._current_zone()
        read_at_s, totals = self.edges.last_round
        if self._wall_clock() - read_at_s <= MAX_TOTALS_AGE_S:
            yield _make_byte_counters(zone, read_at_s, totals)
        info = GaugeMetricFamily(
            "netaware_traffic_server_info",
            "Always 1; workload of an address of this node that answers calls. Join it with netaware_traffic_bytes_total on `server`.",
            labels=("server", *_SERVER_LABELS),
        )
        for address, workload in self.edges.responding_workloads():
            info.add_metric(
                (str(ipaddress.ip_address(address)), workload.namespace, workload.kind, workload.name, zone), 1.0
            )
        yield info
        yield from self._collect_state()

    def _collect_state(self) -> Iterator[Metric]:
        """The metric families of connection tracking itself."""
        yield GaugeMetricFamily(
            "netaware_traffic_counting",
            "1 if the kernel counts bytes of new connections, else 0.",
            value=float(bool(self.state.has_accounting)),
        )
        yield GaugeMetricFamily(
            "netaware_traffic_uncounted_connections",
            "Live connections of pods that began before the kernel counted bytes.",
            value=self.edges.uncounted_connections,
        )
        untracked = CounterMetricFamily(
            "netaware_traffic_untracked_connections",
            "Connections that are not counted because the table was full: refused, or removed early.",
            labels=("reason",),
        )
        for reason, count in (("refused", self.state.drop_count), ("early_dropped", self.state.early_drop_count)):
            if count is not None:
                untracked.add_metric((reason,), count)
        yield untracked
        yield CounterMetricFamily(
            "netaware_traffic_lost_messages",
            "Times that the kernel dropped events of ended connections.",
            value=self.overflow_count,
        )
        yield GaugeMetricFamily(
            "netaware_traffic_round_seconds",
            "Processor time of counting the connections of the table once.",
            value=self.round_cpu_s,
        )


def _make_byte_counters(zone: str, read_at_s: float, totals: Iterable[EdgeBytes]) -> Metric:
    family = CounterMetricFamily(
        "netaware_traffic_bytes",
        "Bytes, with IP headers, between a workload's pods on this node and an address that they call (docs/traffic.md).",
        labels=(*_CLIENT_LABELS, "server", "port", "direction"),
    )
    for edge, request_bytes, response_bytes in totals:
        labels = (edge.client.namespace, edge.client.kind, edge.client.name, zone, edge.server, str(edge.port))
        family.add_metric((*labels, "request"), request_bytes, timestamp=read_at_s)
        family.add_metric((*labels, "response"), response_bytes, timestamp=read_at_s)
    return family
