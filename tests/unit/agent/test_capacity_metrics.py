"""Metrics of a node show the traffic of its uplinks and its capacity."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from agent.capacity.metrics import CapacityMetrics
from agent.capacity.node_capacity import NodeCapacity
from agent.capacity.sysfs import NetDirectory

UPLINKS = ("eno1", "eno2")


def write_statistics(sysfs: Path, device: str, sent_bytes: int, received_bytes: int) -> None:
    statistics = sysfs / "class" / "net" / device / "statistics"
    statistics.mkdir(parents=True)
    (statistics / "tx_bytes").write_text(f"{sent_bytes}\n")
    (statistics / "rx_bytes").write_text(f"{received_bytes}\n")


def test_counters_add_up_over_the_uplinks_and_a_capacity_is_shown_once_it_is_known(tmp_path: Path) -> None:
    registry, node_capacity = CollectorRegistry(), None
    CapacityMetrics("n1", NetDirectory(tmp_path), lambda: node_capacity, registry)

    def read_value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"netaware_node_{name}", {"node": "n1", **labels})

    assert read_value("bandwidth_known") == 0
    assert read_value("network_transmit_bytes_total") is None

    node_capacity = NodeCapacity(rate_bps=None, source="unknown", explanation="", counted_devices=UPLINKS)
    write_statistics(tmp_path, "eno1", sent_bytes=10, received_bytes=20)
    assert read_value("network_transmit_bytes_total") is None, "of two devices one was not read"
    write_statistics(tmp_path, "eno2", sent_bytes=11, received_bytes=21)
    assert read_value("network_transmit_bytes_total") == 10 + 11
    assert read_value("network_receive_bytes_total") == 20 + 21

    node_capacity = NodeCapacity(rate_bps=900_000, source="flag", explanation="", counted_devices=UPLINKS)
    assert read_value("bandwidth_known") == 1
    assert read_value("bandwidth_capacity_bytes_per_second", source="flag") == 900_000 / 8
