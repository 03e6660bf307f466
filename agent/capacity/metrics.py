"""Metrics of the node's capacity, and of the bytes of its uplinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.capacity.node_capacity import CapacitySource, NodeCapacity
from agent.capacity.sysfs import NetDirectory


class CapacityMetrics:
    """A collector of the node's capacity and of its uplinks' bytes; ``current_capacity`` returns the chosen capacity, None before the choice."""

    def __init__(
        self,
        node: str,
        directory: NetDirectory,
        current_capacity: Callable[[], NodeCapacity | None],
        registry: CollectorRegistry,
    ) -> None:
        self._node, self._directory, self._current_capacity = node, directory, current_capacity
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families. Unknown values are absent; bytes also if one of the uplinks cannot be read."""
        node_capacity = self._current_capacity()
        rate_bps = node_capacity.rate_bps if node_capacity is not None else None
        is_known = GaugeMetricFamily(
            "netaware_node_bandwidth_known", "1 if the capacity is known, else 0.", labels=("node",)
        )
        is_known.add_metric((self._node,), float(rate_bps is not None))
        capacity = GaugeMetricFamily(
            "netaware_node_bandwidth_capacity_bytes_per_second",
            f"Capacity to publish, after the reserve, by source: {', '.join(get_args(CapacitySource))}.",
            labels=("node", "source"),
        )
        sent_bytes = CounterMetricFamily(
            "netaware_node_network_transmit_bytes", "Bytes sent by the uplinks.", labels=("node",)
        )
        received_bytes = CounterMetricFamily(
            "netaware_node_network_receive_bytes", "Bytes received by the uplinks.", labels=("node",)
        )
        if node_capacity is not None:
            if rate_bps is not None:
                capacity.add_metric((self._node, node_capacity.source), rate_bps / 8)
            names = node_capacity.counted_devices
            counters = [c for name in names if (c := self._directory.read_counters(name)) is not None]
            if counters and len(counters) == len(names):
                sent_bytes.add_metric((self._node,), sum(c.sent for c in counters))
                received_bytes.add_metric((self._node,), sum(c.received for c in counters))
        yield from (is_known, capacity, sent_bytes, received_bytes)
