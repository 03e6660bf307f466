"""Metrics of the node's capacity and utilization, from counters of the physical uplinks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.capacity.node_bandwidth import NodeBandwidth
from agent.capacity.sysfs import NetDirectory

SAMPLE_S = 15.0
_SAMPLES = 3
"""Rates are means over the last two periods: smooth enough to act on, fresh enough to mean now."""


class Counters(msgspec.Struct, frozen=True):
    """Bytes sent and received by the uplinks together, at a monotonic time in seconds."""

    at_s: float
    sent_bytes: int
    received_bytes: int
    devices: tuple[str, ...]


def utilization(old: Counters, new: Counters, capacity_bps: int) -> float | None:
    """The mean rate of the busier direction over the capacity, 0..1, since links are full duplex.

    None where the devices changed or a counter went back, as when a driver was loaded again.
    """
    seconds = new.at_s - old.at_s
    sent, received = new.sent_bytes - old.sent_bytes, new.received_bytes - old.received_bytes
    if old.devices != new.devices or seconds <= 0 or sent < 0 or received < 0:
        return None
    return min(1.0, 8 * max(sent, received) / seconds / capacity_bps)


class UplinkUtilization:
    """A collector for one node.

    Args:
        node: its name, the label of every series.
        directory: where the counters are.
        node_bandwidth: the capacity now, None before the first.
        registry: where to register.
    """

    def __init__(
        self,
        node: str,
        directory: NetDirectory,
        node_bandwidth: Callable[[], NodeBandwidth | None],
        registry: CollectorRegistry,
    ) -> None:
        self._node, self._directory, self._node_bandwidth = node, directory, node_bandwidth
        self._samples: deque[Counters] = deque(maxlen=_SAMPLES)
        registry.register(self)

    async def run(self) -> None:
        """Read counters until cancelled."""
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(SAMPLE_S if self._samples else 1.0)

    def sample(self, now_s: float) -> None:
        """Read the counters of the uplinks once."""
        node_bandwidth = self._node_bandwidth()
        if node_bandwidth is None or not node_bandwidth.devices:
            return
        read = [counters for name in node_bandwidth.devices if (counters := self._directory.counters(name)) is not None]
        if len(read) == len(node_bandwidth.devices):
            sent, received = (sum(column) for column in zip(*read, strict=True))
            self._samples.append(Counters(now_s, sent, received, node_bandwidth.devices))

    def collect(self) -> Iterator[Metric]:
        """The families of this node; what is unknown is absent."""
        node_bandwidth = self._node_bandwidth()
        known = _gauge("netaware_node_bandwidth_known", "1 when the capacity is known and published, else 0.")
        known.add_metric(
            (self._node,), 1.0 if node_bandwidth is not None and node_bandwidth.rate_bps is not None else 0.0
        )
        yield known
        capacity = GaugeMetricFamily(
            "netaware_node_bandwidth_capacity_bytes_per_second",
            "Published capacity after the reserve, and its source.",
            labels=("node", "source"),
        )
        if node_bandwidth is not None and node_bandwidth.rate_bps is not None:
            capacity.add_metric((self._node, node_bandwidth.source), node_bandwidth.rate_bps / 8)
        yield capacity
        sent = CounterMetricFamily("netaware_node_network_transmit_bytes", "Sent by the uplinks.", labels=("node",))
        received = CounterMetricFamily(
            "netaware_node_network_receive_bytes", "Received by the uplinks.", labels=("node",)
        )
        used = _gauge("netaware_node_network_utilization_ratio", "Busier direction over the capacity of the uplinks.")
        if self._samples:
            sent.add_metric((self._node,), self._samples[-1].sent_bytes)
            received.add_metric((self._node,), self._samples[-1].received_bytes)
        if node_bandwidth is not None and node_bandwidth.gross_bps and self._samples:
            ratio = utilization(self._samples[0], self._samples[-1], node_bandwidth.gross_bps)
            if ratio is not None:
                used.add_metric((self._node,), ratio)
        yield from (sent, received, used)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=("node",))
