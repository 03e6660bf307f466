"""Utilization from counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.capacity.node_bandwidth import NodeBandwidth
from agent.capacity.sysfs import NetDirectory
from agent.capacity.utilization import UplinkUtilization


def test_series_appear_with_the_second_sample_and_need_a_known_capacity(tmp_path: Path) -> None:
    statistics = tmp_path / "class" / "net" / "eno1" / "statistics"
    statistics.mkdir(parents=True)
    offers: list[NodeBandwidth | None] = [None]
    registry = CollectorRegistry()
    utilization = UplinkUtilization("n1", NetDirectory(tmp_path), lambda: offers[0], registry)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"node": "n1"})

    def count(sent: int, received: int) -> None:
        (statistics / "tx_bytes").write_text(f"{sent}\n")
        (statistics / "rx_bytes").write_text(f"{received}\n")

    count(1, 1)
    utilization.sample(0.0)
    assert value("netaware_node_bandwidth_known") == 0
    offers[0] = NodeBandwidth(rate_bps=None, gross_bps=None, source="unknown", explanation="", devices=("eno1",))
    utilization.sample(0.0)
    count(1_000_001, 250_001)
    utilization.sample(10.0)
    assert value("netaware_node_network_transmit_bytes_total") == 1_000_001
    assert value("netaware_node_network_receive_bytes_total") == 250_001
    assert value("netaware_node_network_utilization_ratio") is None
    offers[0] = NodeBandwidth(rate_bps=900_000, gross_bps=1_000_000, source="flag", explanation="", devices=("eno1",))
    assert value("netaware_node_network_utilization_ratio") == pytest.approx(0.8)  # of the busier direction
    offers[0] = NodeBandwidth(rate_bps=900_000, gross_bps=500_000, source="flag", explanation="", devices=("eno1",))
    assert value("netaware_node_network_utilization_ratio") == 1.0
    assert value("netaware_node_bandwidth_known") == 1
    labels = {"node": "n1", "source": "flag"}
    assert registry.get_sample_value("netaware_node_bandwidth_capacity_bytes_per_second", labels) == 112_500
    # Counters that went back, as when a driver is loaded again, or other devices say nothing.
    count(0, 0)
    utilization.sample(20.0)
    assert value("netaware_node_network_utilization_ratio") is None
    assert value("netaware_node_network_transmit_bytes_total") == 0
