"""Whose word counts, and what is left after the reserve."""

from __future__ import annotations

import pytest

from agent.capacity.node_bandwidth import HardwareCapacity, choose_bandwidth, remember_peak
from agent.config import AgentConfig, CapacityRule, Reserve
from agent.node import OwnNode
from kubekit.selectors import parse
from kubekit.wire import ObjectMeta

G = 10**9
HARDWARE = HardwareCapacity(10 * G, "eno1 10G by ethtool", ("eno1",))
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
    unknown = choose_bandwidth(node(), config(), NOTHING, None)
    assert (unknown.rate_bps, unknown.source, unknown.explanation) == (None, "unknown", NOTHING.explanation)


@pytest.mark.parametrize("text", ["10m?", "ten", "-5G", "0", "1e30"])
def test_an_annotation_that_is_no_capacity_is_told_and_the_next_source_counts(text: str) -> None:
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


@pytest.mark.parametrize(
    ("type_", "rate_bps", "source"),
    [
        # Burstable types count with their baseline.
        ("t3.medium", 256_000_000, "Amazon EC2 t3.medium"),
        ("p5.48xlarge", 100 * 10**9, "DescribeInstanceTypes"),
        ("Standard_D4s_v5", 12_500_000_000, "learn.microsoft.com"),
    ],
)
def test_a_type_that_its_cloud_describes_is_known_without_a_file_with_date_and_source(
    type_: str, rate_bps: int, source: str
) -> None:
    labels = {"node.kubernetes.io_instance-type": type_}
    node_bandwidth = choose_bandwidth(node(None, **labels), config(), NOTHING, None)
    assert (node_bandwidth.rate_bps, node_bandwidth.source) == (rate_bps, "instance-type")
    assert source in node_bandwidth.explanation
    assert "2026-" in node_bandwidth.explanation
    assert (
        choose_bandwidth(node(None, **{"node.kubernetes.io_instance-type": "k3s"}), config(), NOTHING, None).source
        == "unknown"
    )
