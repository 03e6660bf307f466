"""Utilisation from counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.capacity.node_bandwidth import NodeBandwidth
from agent.capacity.sysfs import NetDirectory
from agent.capacity.traffic import Counters, Rates, Traffic, rates_between, utilisation


def counters(at_s: float, sent: int, received: int, *devices: str) -> Counters:
    return Counters(at_s, sent, received, devices or ("eno1",))


def test_rates_are_means_over_the_time_between() -> None:
    assert rates_between(counters(10, 1000, 0), counters(20, 3000, 500)) == Rates(200.0, 50.0)


def test_counters_that_went_back_or_changed_devices_say_nothing() -> None:
    assert rates_between(counters(10, 1000, 0), counters(20, 900, 0)) is None
    assert rates_between(counters(10, 1000, 0), counters(20, 2000, 0, "eno2")) is None
    assert rates_between(counters(10, 1000, 0), counters(10, 2000, 0)) is None


def test_utilisation_is_that_of_the_busier_direction_and_never_above_one() -> None:
    assert utilisation(Rates(1e8, 5e8), 10**10) == pytest.approx(0.4)
    assert utilisation(Rates(2e9, 0), 10**10) == 1.0


def test_series_appear_with_the_second_sample_and_need_a_known_capacity(tmp_path: Path) -> None:
    statistics = tmp_path / "class" / "net" / "eno1" / "statistics"
    statistics.mkdir(parents=True)
    offers: list[NodeBandwidth | None] = [None]
    registry = CollectorRegistry()
    traffic = Traffic("n1", NetDirectory(tmp_path), lambda: offers[0], registry)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"node": "n1"})

    def count(sent: int, received: int) -> None:
        (statistics / "tx_bytes").write_text(f"{sent}\n")
        (statistics / "rx_bytes").write_text(f"{received}\n")

    count(0, 0)
    traffic.sample(0.0)
    assert value("netaware_node_bandwidth_known") == 0
    offers[0] = NodeBandwidth(rate_bps=None, gross_bps=None, source="unknown", explanation="", devices=("eno1",))
    traffic.sample(0.0)
    count(1_000_000, 250_000)
    traffic.sample(10.0)
    assert value("netaware_node_network_transmit_bytes_per_second") == 100_000
    assert value("netaware_node_network_receive_bytes_per_second") == 25_000
    assert value("netaware_node_network_utilization_ratio") is None
    offers[0] = NodeBandwidth(rate_bps=900_000, gross_bps=1_000_000, source="flag", explanation="", devices=("eno1",))
    assert value("netaware_node_network_utilization_ratio") == pytest.approx(0.8)
    assert value("netaware_node_bandwidth_known") == 1
    labels = {"node": "n1", "source": "flag"}
    assert registry.get_sample_value("netaware_node_bandwidth_capacity_bytes_per_second", labels) == 112_500
