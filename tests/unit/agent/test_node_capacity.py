"""A node's capacity comes from the first source by precedence, less the reserve, and is exported with its traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.capacity.instances import find_firmware_instance_type
from agent.capacity.links import Machine
from agent.capacity.metrics import CapacityMetrics
from agent.capacity.node_capacity import HardwareCapacity, NodeCapacity, choose_capacity, update_peak_bps
from agent.capacity.sysfs import NetDirectory
from agent.config import AgentConfig, CapacityRule, Reserve
from agent.node import OwnNode
from kubekit.selectors import parse_selector
from kubekit.wire import ObjectMeta

G = 10**9
HARDWARE = HardwareCapacity(10 * G, "eno1 10G by sysfs", ("eno1",))
UNKNOWN = HardwareCapacity(None, "eth0: its speed is unknown", ("eth0",))
TYPE_LABEL = "node.kubernetes.io/instance-type"
LABELS = {"pool": "fast", TYPE_LABEL: "m5.large"}
BY_TYPE: dict[str, object] = {"capacity_by_type": {"m5.large": 5 * G}}
BY_LABEL = {"capacity_rules": (CapacityRule(parse_selector("pool=fast"), "pool=fast", 40 * G),), **BY_TYPE}
MEASURED_PEAK_BPS = 7 * G
UPLINKS = ("eno1", "eno2")


def make_node(labels: dict[str, str] | None = None, *, annotation: str | None = None) -> OwnNode:
    annotations = {"netaware.io/bandwidth-capacity": annotation} if annotation is not None else None
    return OwnNode(metadata=ObjectMeta(name="n1", labels=labels or {}, annotations=annotations))


def make_config(**fields: object) -> AgentConfig:
    return AgentConfig(node_name="n1", **fields)  # type: ignore[arg-type]


def write_statistics(sysfs: Path, device: str, sent_bytes: int, received_bytes: int) -> None:
    statistics = sysfs / "class" / "net" / device / "statistics"
    statistics.mkdir(parents=True)
    (statistics / "tx_bytes").write_text(f"{sent_bytes}\n")
    (statistics / "rx_bytes").write_text(f"{received_bytes}\n")


@pytest.mark.parametrize(
    ("node", "fields", "hardware", "firmware_type", "rate_bps", "source"),
    [
        (make_node(LABELS, annotation="2G"), {"capacity_bps": 3 * G, **BY_LABEL}, HARDWARE, "", 2 * G, "annotation"),
        (make_node(LABELS), {"capacity_bps": 3 * G, **BY_LABEL}, HARDWARE, "", 3 * G, "flag"),
        (make_node(LABELS), BY_LABEL, HARDWARE, "", 40 * G, "node-label"),
        (make_node(LABELS), BY_TYPE, HARDWARE, "", 5 * G, "instance-type"),
        (make_node(LABELS), {}, HARDWARE, "", 750_000_000, "instance-type"),  # of the built-in table
        (make_node({"pool": "fast"}), {}, HARDWARE, "", 10 * G, "hardware"),
        (make_node(), {}, UNKNOWN, "", MEASURED_PEAK_BPS, "measured"),
        (None, BY_TYPE, HARDWARE, "m5.large", 5 * G, "instance-type"),
        (None, {}, HARDWARE, "m5.large", 750_000_000, "instance-type"),
    ],
)
def test_the_first_source_by_precedence_counts(
    node: OwnNode | None,
    fields: dict[str, object],
    hardware: HardwareCapacity,
    firmware_type: str,
    rate_bps: int,
    source: str,
) -> None:
    node_capacity = choose_capacity(node, make_config(**fields), hardware, MEASURED_PEAK_BPS, firmware_type)
    assert node_capacity.rate_bps == rate_bps
    assert node_capacity.source == source


@pytest.mark.parametrize("annotation", ["10m?", "ten", "-5G", "0", "1e30"])
def test_an_invalid_annotation_is_reported_and_the_next_source_counts(annotation: str) -> None:
    node_capacity = choose_capacity(make_node(annotation=annotation), make_config(), HARDWARE, None)
    assert node_capacity.source == "hardware"
    (warning,) = node_capacity.warnings
    assert "netaware.io/bandwidth-capacity" in warning


@pytest.mark.parametrize(
    ("reserve", "rate_bps", "warnings"),
    [
        (Reserve(rate_bps=G), 9 * G, ()),
        (Reserve(ratio=0.1), 9 * G, ()),
        # Nothing is published rather than 0.
        (Reserve(rate_bps=20 * G), None, ("--reserve: nothing is left of 10000000000 bit/s",)),
    ],
)
def test_the_reserve_is_subtracted(reserve: Reserve, rate_bps: int | None, warnings: tuple[str, ...]) -> None:
    node_capacity = choose_capacity(make_node(), make_config(reserve=reserve), HARDWARE, None)
    assert node_capacity.rate_bps == rate_bps
    assert node_capacity.warnings == warnings
    assert ("are reserved" in node_capacity.explanation) == (rate_bps is not None)


def test_noise_in_measured_throughput_does_not_change_the_capacity() -> None:
    peak_bps = None
    for throughput_bps in (9.412e9, 9.39e9, 9.499e9, 9.31e9):
        peak_bps = update_peak_bps(peak_bps, throughput_bps)
    assert peak_bps == 9_400_000_000
    assert update_peak_bps(peak_bps, 9.55e9) == 9_500_000_000


@pytest.mark.parametrize(
    ("instance_type", "rate_gbps", "source"),
    [
        # Burstable types count with their baseline.
        ("t3.medium", 0.256, "Amazon EC2 t3.medium"),
        ("n2-highmem-16", 32, "2026-"),
        ("c3-standard-8-lssd", 23, "2026-"),
        ("Standard_D2s_v5", 12.5, "learn.microsoft.com"),
        ("Standard_DS3_v2", 3, ", 2024-07-29)"),
        ("Standard_D64as_v5", 32, ", 2026-03-10)"),
    ],
)
def test_a_type_in_the_table_has_a_capacity_with_date_and_source(
    instance_type: str, rate_gbps: float, source: str
) -> None:
    node_capacity = choose_capacity(make_node({TYPE_LABEL: instance_type}), make_config(), UNKNOWN, None)
    assert node_capacity.rate_bps == rate_gbps * G
    assert node_capacity.source == "instance-type"
    assert source in node_capacity.explanation


@pytest.mark.parametrize("instance_type", ["n2-custom-8-32768", "n2-standard-7", "n2--8", "-*-8", "a-b-c-d-e", "k3s"])
def test_an_unknown_type_has_no_capacity_and_is_named(instance_type: str) -> None:
    for node, firmware_type in ((make_node({TYPE_LABEL: instance_type}), ""), (make_node(), instance_type)):
        node_capacity = choose_capacity(node, make_config(), UNKNOWN, None, firmware_type)
        assert node_capacity.source == "unknown"
        assert f"{instance_type} is not in the table" in node_capacity.explanation


def test_firmware_names_the_instance_type_of_amazons_virtual_machines() -> None:
    for vendor, product, hypervisor_evidence, instance_type in (
        ("Amazon EC2", "m5.large", "the processor says so", "m5.large"),
        ("Amazon EC2", "m5.metal", "", ""),
        ("Amazon EC2", "HVM domU", "Xen", ""),
        ("Google", "Google Compute Engine", "the processor says so", ""),
    ):
        machine = Machine(vendor=vendor, product=product, hypervisor_evidence=hypervisor_evidence)
        assert find_firmware_instance_type(machine) == instance_type


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
