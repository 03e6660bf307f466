"""Metrics of the node's capacity, and of the bytes of its uplinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.capacity.node_bandwidth import CapacitySource, NodeBandwidth
from agent.capacity.sysfs import NetDirectory


class UplinkMetrics:
    """A collector for one node; ``current_bandwidth`` returns the latest choice, None before the first."""

    def __init__(
        self,
        node: str,
        directory: NetDirectory,
        current_bandwidth: Callable[[], NodeBandwidth | None],
        registry: CollectorRegistry,
    ) -> None:
        self._node, self._directory, self._current_bandwidth = node, directory, current_bandwidth
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The metric families of this node; unknown values are absent, and all bytes if one device cannot be read."""
        node_bandwidth = self._current_bandwidth()
        rate_bps = node_bandwidth.rate_bps if node_bandwidth is not None else None
        known = GaugeMetricFamily(
            "netaware_node_bandwidth_known", "1 if the capacity is known, else 0.", labels=("node",)
        )
        known.add_metric((self._node,), float(rate_bps is not None))
        capacity = GaugeMetricFamily(
            "netaware_node_bandwidth_capacity_bytes_per_second",
            f"Capacity to publish, after the reserve, by source: {', '.join(get_args(CapacitySource))}.",
            labels=("node", "source"),
        )
        sent = CounterMetricFamily(
            "netaware_node_network_transmit_bytes", "Bytes sent by the uplinks.", labels=("node",)
        )
        received = CounterMetricFamily(
            "netaware_node_network_receive_bytes", "Bytes received by the uplinks.", labels=("node",)
        )
        if node_bandwidth is not None:
            if rate_bps is not None:
                capacity.add_metric((self._node, node_bandwidth.source), rate_bps / 8)
            counters = [self._directory.read_counters(name) for name in node_bandwidth.counted_devices]
            readable = [device for device in counters if device is not None]
            if readable and len(readable) == len(counters):
                sent.add_metric((self._node,), sum(device.sent for device in readable))
                received.add_metric((self._node,), sum(device.received for device in readable))
        yield from (known, capacity, sent, received)
