"""Counters of the uplinks, and the capacity."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from agent.capacity.metrics import CapacityMetrics
from agent.capacity.node_capacity import NodeCapacity
from agent.capacity.sysfs import NetDirectory


def test_counters_add_up_over_the_uplinks_and_a_capacity_is_shown_once_it_is_known(tmp_path: Path) -> None:
    devices, registry = ("eno1", "eno2"), CollectorRegistry()
    choices: list[NodeCapacity | None] = [None]
    CapacityMetrics("n1", NetDirectory(tmp_path), lambda: choices[0], registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"netaware_node_{name}", {"node": "n1", **labels})

    assert (value("bandwidth_known"), value("network_transmit_bytes_total")) == (0, None)
    choices[0] = NodeCapacity(rate_bps=None, source="unknown", explanation="", counted_devices=devices)
    for number, device in enumerate(devices):
        assert value("network_transmit_bytes_total") is None, "of two devices one was not read"
        statistics = tmp_path / "class" / "net" / device / "statistics"
        statistics.mkdir(parents=True)
        (statistics / "tx_bytes").write_text(f"{number + 10}\n")
        (statistics / "rx_bytes").write_text(f"{number + 20}\n")
    assert (value("network_transmit_bytes_total"), value("network_receive_bytes_total")) == (21, 41)
    choices[0] = NodeCapacity(rate_bps=900_000, source="flag", explanation="", counted_devices=devices)
    assert value("bandwidth_known") == 1
    assert value("bandwidth_capacity_bytes_per_second", source="flag") == 112_500
