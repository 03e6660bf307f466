"""Instance types: what a node's label or its firmware says, and what the table knows of it."""

from __future__ import annotations

import pytest

from agent.capacity.instances import find_instance, firmware_type
from agent.capacity.links import Machine
from agent.capacity.node_bandwidth import HardwareCapacity, choose_bandwidth
from agent.config import AgentConfig
from agent.node import OwnNode
from kubekit.wire import ObjectMeta


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


def test_a_type_that_the_table_does_not_know_is_named() -> None:
    node = OwnNode(metadata=ObjectMeta(name="n1"))
    node_bandwidth = choose_bandwidth(
        node, AgentConfig(node="n1"), HardwareCapacity(None, "a guest"), None, "z9.future"
    )
    assert (node_bandwidth.rate_bps, "z9.future is not in the table" in node_bandwidth.explanation) == (None, True)


@pytest.mark.parametrize(
    ("type_", "gigabits"),
    [
        ("n2-standard-2", 10),
        ("n2-highmem-16", 32),
        ("c3-standard-8-lssd", 23),
        ("c3-standard-192-metal", 100),
        ("e2-micro", 1),
        ("a2-highgpu-8g", 100),
        ("t2d-standard-60", 32),
        ("m5.large", 0.75),
        ("Standard_D2s_v5", 12.5),
    ],
)
def test_the_table_knows_types_of_three_clouds(type_: str, gigabits: float) -> None:
    found = find_instance(type_)
    assert found is not None
    assert found.rate_bps == gigabits * 10**9


@pytest.mark.parametrize("type_", ["n2-custom-8-32768", "n2-standard-7", "n2--8", "-*-8", "n9-standard-8", "a-b-c-d-e"])
def test_what_the_table_does_not_know_is_unknown(type_: str) -> None:
    assert find_instance(type_) is None


@pytest.mark.parametrize(
    ("type_", "mbps", "date"),
    [
        ("Standard_DS3_v2", 3_000, "2024-07-29"),
        ("Standard_D4s_v3", 2_000, "2024-09-24"),
        ("Standard_D64as_v5", 32_000, "2026-03-10"),
        ("Standard_D64ds_v5", 30_000, "2024-07-29"),
        ("Standard_E112ias_v5", 50_000, "2026-03-10"),
        ("Standard_F72s_v2", 30_000, "2024-07-29"),
        ("Standard_D192s_v6", 82_000, "2024-07-29"),
    ],
)
def test_azures_sizes_have_what_its_pages_say(type_: str, mbps: int, date: str) -> None:
    found = find_instance(type_)
    assert found is not None
    assert (found.rate_bps, found.explanation.endswith(f", {date})")) == (mbps * 1_000_000, True)
    assert find_instance("Standard_D192ds_v6") is None, "a size that a series does not have is not made up"
