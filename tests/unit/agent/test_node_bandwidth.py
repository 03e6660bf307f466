"""Whose word counts, and what is left after the reserve."""

from __future__ import annotations

import pytest

from agent.capacity.instances import firmware_type
from agent.capacity.links import Machine
from agent.capacity.node_bandwidth import HardwareCapacity, choose_bandwidth, remember_peak
from agent.config import AgentConfig, CapacityRule, Reserve
from agent.node import OwnNode
from kubekit.selectors import parse
from kubekit.wire import ObjectMeta

G = 10**9
HARDWARE = HardwareCapacity(10 * G, "eno1 10G by sysfs", ("eno1",))
NOTHING = HardwareCapacity(None, "eth0: its speed is unknown", ("eth0",))


def node(annotation: str | None = None, **labels: str) -> OwnNode:
    annotations = {"netaware.io/bandwidth-capacity": annotation} if annotation is not None else None
    return OwnNode(
        metadata=ObjectMeta(
            name="n1", labels={k.replace("_", "/"): v for k, v in labels.items()}, annotations=annotations
        )
    )


def config(**fields: object) -> AgentConfig:
    return AgentConfig(node="n1", **fields)  # type: ignore[arg-type]


RULES = (CapacityRule(parse("pool=fast"), "pool=fast", 40 * G),)


def test_the_order_of_trust() -> None:
    known = config(capacity_bps=3 * G, capacity_rules=RULES, capacity_by_type={"m5.large": 5 * G})
    labels = {"pool": "fast", "node.kubernetes.io_instance-type": "m5.large"}
    for given, conf, measured, expected in (
        (node("2G", **labels), known, 7 * G, (2 * G, "annotation")),
        (node(None, **labels), known, 7 * G, (3 * G, "flag")),
        (
            node(None, **labels),
            config(capacity_rules=RULES, capacity_by_type={"m5.large": 5 * G}),
            7 * G,
            (40 * G, "node-label"),
        ),
        (node(None, **labels), config(capacity_by_type={"m5.large": 5 * G}), 7 * G, (5 * G, "instance-type")),
        (node(None, **labels), config(), 7 * G, (750_000_000, "instance-type")),
        (node(None, pool="fast"), config(), 7 * G, (10 * G, "hardware")),
    ):
        node_bandwidth = choose_bandwidth(given, conf, HARDWARE, measured)
        assert (node_bandwidth.rate_bps, node_bandwidth.source) == expected
    assert choose_bandwidth(node(), config(), NOTHING, 7 * G).source == "measured"
    by_type = config(capacity_by_type={"m5.large": 5 * G})
    assert choose_bandwidth(None, by_type, HARDWARE, None, "m5.large").rate_bps == 5 * G
    assert choose_bandwidth(None, config(), HARDWARE, None, "m5.large").rate_bps == 750_000_000
    unknown = choose_bandwidth(node(), config(), NOTHING, None)
    assert (unknown.rate_bps, unknown.source, unknown.explanation) == (None, "unknown", NOTHING.explanation)


@pytest.mark.parametrize("text", ["10m?", "ten", "-5G", "0", "1e30"])
def test_an_annotation_that_is_no_capacity_is_reported_and_the_next_source_counts(text: str) -> None:
    node_bandwidth = choose_bandwidth(node(text), config(), HARDWARE, None)
    assert node_bandwidth.source == "hardware"
    assert len(node_bandwidth.warnings) == 1
    assert "netaware.io/bandwidth-capacity" in node_bandwidth.warnings[0]


def test_the_reserve_is_a_share_or_an_amount() -> None:
    amount = choose_bandwidth(node(), config(reserve=Reserve(rate_bps=G)), HARDWARE, None)
    assert amount.rate_bps == 9 * G
    node_bandwidth = choose_bandwidth(node(), config(reserve=Reserve(ratio=0.1)), HARDWARE, None)
    assert (node_bandwidth.rate_bps, node_bandwidth.gross_bps) == (9 * G, 10 * G)
    assert "reserved" in node_bandwidth.explanation


def test_a_reserve_that_leaves_nothing_offers_nothing_rather_than_zero() -> None:
    node_bandwidth = choose_bandwidth(node(), config(reserve=Reserve(rate_bps=20 * G)), HARDWARE, None)
    assert node_bandwidth.rate_bps is None
    assert node_bandwidth.warnings == ("--reserve: nothing is left of 10000000000 bit/s",)


def test_noise_in_measured_throughput_does_not_move_the_offer() -> None:
    peak = None
    for throughput in (9.412e9, 9.39e9, 9.499e9, 9.31e9):
        peak = remember_peak(peak, throughput)
    assert peak == 9_400_000_000
    assert remember_peak(peak, 9.55e9) == 9_500_000_000


def with_type(type_: str) -> OwnNode:
    return node(None, **{"node.kubernetes.io_instance-type": type_})


@pytest.mark.parametrize(
    ("type_", "gigabits", "source"),
    [
        # Burstable types count with their baseline.
        ("t3.medium", 0.256, "Amazon EC2 t3.medium"),
        ("m5.large", 0.75, "2026-"),
        ("p5.48xlarge", 100, "DescribeInstanceTypes"),
        ("n2-standard-2", 10, "2026-"),
        ("n2-highmem-16", 32, "2026-"),
        ("c3-standard-8-lssd", 23, "2026-"),
        ("c3-standard-192-metal", 100, "2026-"),
        ("e2-micro", 1, "2026-"),
        ("a2-highgpu-8g", 100, "2026-"),
        ("t2d-standard-60", 32, "2026-"),
        ("Standard_D2s_v5", 12.5, "learn.microsoft.com"),
        ("Standard_DS3_v2", 3, ", 2024-07-29)"),
        ("Standard_D4s_v3", 2, ", 2024-09-24)"),
        ("Standard_D64as_v5", 32, ", 2026-03-10)"),
        ("Standard_D64ds_v5", 30, ", 2024-07-29)"),
        ("Standard_E112ias_v5", 50, ", 2026-03-10)"),
        ("Standard_F72s_v2", 30, ", 2024-07-29)"),
        ("Standard_D192s_v6", 82, ", 2024-07-29)"),
    ],
)
def test_a_type_that_its_cloud_describes_is_known_without_a_file_with_date_and_source(
    type_: str, gigabits: float, source: str
) -> None:
    found = choose_bandwidth(with_type(type_), config(), NOTHING, None)
    assert (found.rate_bps, found.source) == (gigabits * G, "instance-type")
    assert source in found.explanation


@pytest.mark.parametrize(
    "type_",
    ["n2-custom-8-32768", "n2-standard-7", "n2--8", "-*-8", "n9-standard-8", "a-b-c-d-e", "Standard_D192ds_v6", "k3s"],
)
def test_a_type_that_the_table_does_not_know_is_unknown_and_one_of_the_firmware_is_named(type_: str) -> None:
    assert choose_bandwidth(with_type(type_), config(), NOTHING, None).source == "unknown"
    found = choose_bandwidth(node(), config(), NOTHING, None, type_)
    assert (found.rate_bps, f"{type_} is not in the table" in found.explanation) == (None, True)


@pytest.mark.parametrize(
    ("vendor", "product", "hypervisor", "type_"),
    [
        ("Amazon EC2", "m5.large", "the processor says so", "m5.large"),
        ("Amazon EC2", "m5.metal", "", ""),
        ("Amazon EC2", "HVM domU", "Xen", ""),
        ("Google", "Google Compute Engine", "the processor says so", ""),
        ("", "", "", ""),
    ],
)
def test_firmware_that_names_the_type_is_believed(vendor: str, product: str, hypervisor: str, type_: str) -> None:
    assert firmware_type(Machine(vendor=vendor, product=product, hypervisor=hypervisor)) == type_
