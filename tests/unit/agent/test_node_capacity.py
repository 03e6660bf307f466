"""Precedence of the sources of a capacity, and the reserve."""

from __future__ import annotations

import pytest

from agent.capacity.instances import find_firmware_instance_type
from agent.capacity.links import Machine
from agent.capacity.node_capacity import HardwareCapacity, choose_capacity, update_peak_bps
from agent.config import AgentConfig, CapacityRule, Reserve
from agent.node import OwnNode
from kubekit.selectors import parse_selector
from kubekit.wire import ObjectMeta

G = 10**9
HARDWARE = HardwareCapacity(10 * G, "eno1 10G by sysfs", ("eno1",))
UNKNOWN = HardwareCapacity(None, "eth0: its speed is unknown", ("eth0",))


def make_node(annotation: str | None = None, **labels: str) -> OwnNode:
    annotations = {"netaware.io/bandwidth-capacity": annotation} if annotation is not None else None
    named = {name.replace("_", "/"): value for name, value in labels.items()}
    return OwnNode(metadata=ObjectMeta(name="n1", labels=named, annotations=annotations))


def make_config(**fields: object) -> AgentConfig:
    return AgentConfig(node_name="n1", **fields)  # type: ignore[arg-type]


RULES = (CapacityRule(parse_selector("pool=fast"), "pool=fast", 40 * G),)
LABELS = {"pool": "fast", "node.kubernetes.io_instance-type": "m5.large"}
BY_TYPE = {"m5.large": 5 * G}
ALL_SOURCES: dict[str, object] = {"capacity_bps": 3 * G, "capacity_rules": RULES, "capacity_by_type": BY_TYPE}


@pytest.mark.parametrize(
    ("node", "fields", "hardware", "firmware", "expected"),
    [
        (make_node("2G", **LABELS), ALL_SOURCES, HARDWARE, "", (2 * G, "annotation")),
        (make_node(**LABELS), ALL_SOURCES, HARDWARE, "", (3 * G, "flag")),
        (make_node(**LABELS), ALL_SOURCES | {"capacity_bps": None}, HARDWARE, "", (40 * G, "node-label")),
        (make_node(**LABELS), {"capacity_by_type": BY_TYPE}, HARDWARE, "", (5 * G, "instance-type")),
        (make_node(**LABELS), {}, HARDWARE, "", (750_000_000, "instance-type")),
        (make_node(pool="fast"), {}, HARDWARE, "", (10 * G, "hardware")),
        (make_node(), {}, UNKNOWN, "", (7 * G, "measured")),
        (None, {"capacity_by_type": BY_TYPE}, HARDWARE, "m5.large", (5 * G, "instance-type")),
        (None, {}, HARDWARE, "m5.large", (750_000_000, "instance-type")),
    ],
)
def test_the_first_source_by_precedence_counts(
    node: OwnNode | None,
    fields: dict[str, object],
    hardware: HardwareCapacity,
    firmware: str,
    expected: tuple[int, str],
) -> None:
    node_capacity = choose_capacity(node, make_config(**fields), hardware, 7 * G, firmware)
    assert (node_capacity.rate_bps, node_capacity.source) == expected


@pytest.mark.parametrize("text", ["10m?", "ten", "-5G", "0", "1e30"])
def test_an_invalid_annotation_is_reported_and_the_next_source_counts(text: str) -> None:
    node_capacity = choose_capacity(make_node(text), make_config(), HARDWARE, None)
    assert node_capacity.source == "hardware"
    assert len(node_capacity.warnings) == 1
    assert "netaware.io/bandwidth-capacity" in node_capacity.warnings[0]


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
    assert (node_capacity.rate_bps, node_capacity.warnings) == (rate_bps, warnings)
    assert ("are reserved" in node_capacity.explanation) == (rate_bps is not None)


def test_noise_in_measured_throughput_does_not_change_the_capacity() -> None:
    peak = None
    for throughput in (9.412e9, 9.39e9, 9.499e9, 9.31e9):
        peak = update_peak_bps(peak, throughput)
    assert (peak, update_peak_bps(peak, 9.55e9)) == (9_400_000_000, 9_500_000_000)


def node_of_type(type_: str) -> OwnNode:
    return make_node(None, **{"node.kubernetes.io_instance-type": type_})


@pytest.mark.parametrize(
    ("type_", "gigabits", "source"),
    [
        # Burstable types count with their baseline.
        ("t3.medium", 0.256, "Amazon EC2 t3.medium"),
        ("p5.48xlarge", 100, "DescribeInstanceTypes"),
        ("n2-highmem-16", 32, "2026-"),
        ("c3-standard-8-lssd", 23, "2026-"),
        ("e2-micro", 1, "2026-"),
        ("Standard_D2s_v5", 12.5, "learn.microsoft.com"),
        ("Standard_DS3_v2", 3, ", 2024-07-29)"),
        ("Standard_D4s_v3", 2, ", 2024-09-24)"),
        ("Standard_D64as_v5", 32, ", 2026-03-10)"),
    ],
)
def test_a_type_in_the_table_has_a_capacity_with_date_and_source(type_: str, gigabits: float, source: str) -> None:
    node_capacity = choose_capacity(node_of_type(type_), make_config(), UNKNOWN, None)
    assert (node_capacity.rate_bps, node_capacity.source) == (gigabits * G, "instance-type")
    assert source in node_capacity.explanation


@pytest.mark.parametrize("type_", ["n2-custom-8-32768", "n2-standard-7", "n2--8", "-*-8", "a-b-c-d-e", "k3s"])
def test_an_unknown_type_has_no_capacity_and_is_named(type_: str) -> None:
    for node_, firmware in ((node_of_type(type_), ""), (make_node(), type_)):
        node_capacity = choose_capacity(node_, make_config(), UNKNOWN, None, firmware)
        assert node_capacity.source == "unknown"
        assert f"{type_} is not in the table" in node_capacity.explanation


def test_firmware_names_the_instance_type_of_amazons_virtual_machines() -> None:
    for vendor, product, hypervisor, type_ in (
        ("Amazon EC2", "m5.large", "the processor says so", "m5.large"),
        ("Amazon EC2", "m5.metal", "", ""),
        ("Amazon EC2", "HVM domU", "Xen", ""),
        ("Google", "Google Compute Engine", "the processor says so", ""),
    ):
        machine = Machine(vendor=vendor, product=product, hypervisor_evidence=hypervisor)
        assert find_firmware_instance_type(machine) == type_
