"""Metrics of the node's capacity, and the counters of its physical uplinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.capacity.node_bandwidth import NodeBandwidth
from agent.capacity.sysfs import NetDirectory


class UplinkMetrics:
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
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The families of this node; what is unknown is absent."""
        node_bandwidth = self._node_bandwidth()
        rate_bps = node_bandwidth.rate_bps if node_bandwidth is not None else None
        known = GaugeMetricFamily(
            "netaware_node_bandwidth_known", "1 when the capacity is known and published, else 0.", labels=("node",)
        )
        known.add_metric((self._node,), float(rate_bps is not None))
        capacity = GaugeMetricFamily(
            "netaware_node_bandwidth_capacity_bytes_per_second",
            "Published capacity after the reserve, and its source.",
            labels=("node", "source"),
        )
        sent = CounterMetricFamily("netaware_node_network_transmit_bytes", "Sent by the uplinks.", labels=("node",))
        received = CounterMetricFamily(
            "netaware_node_network_receive_bytes", "Received by the uplinks.", labels=("node",)
        )
        if node_bandwidth is not None:
            if rate_bps is not None:
                capacity.add_metric((self._node, node_bandwidth.source), rate_bps / 8)
            counters = [self._directory.counters(name) for name in node_bandwidth.devices]
            read = [one for one in counters if one is not None]
            if read and len(read) == len(counters):
                for family, column in zip((sent, received), zip(*read, strict=True), strict=True):
                    family.add_metric((self._node,), sum(column))
        yield from (known, capacity, sent, received)
