"""A node's capacity is that of the physical devices below its default routes, or unknown with a reason.

The recordings are snapshots in the reader's own format. ``virtio`` and ``lab_node`` are as read on a machine; those of
hardware that no test machine has were composed from what its drivers are documented to report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.capacity.links import BOND_MODES, Link, LinkSnapshot, Machine, Route
from agent.capacity.rules import find_capacity
from agent.capacity.sysfs import read_machine

RECORDINGS = msgspec.json.decode(
    (Path(__file__).parent / "recordings" / "links.json").read_bytes(), type=dict[str, LinkSnapshot]
)
G = 10**9


def make_nic(index: int, name: str, mbps: int | None, **fields: Any) -> Link:
    return Link(index=index, name=name, is_physical=True, driver="ixgbe", sysfs_mbps=mbps, **fields)


def make_bond(mode: str, **fields: Any) -> Link:
    return Link(index=2, name="bond0", kind="bond", bond_mode=BOND_MODES.index(mode), **fields)


def make_vlan(index: int, parent_index: int, **fields: Any) -> Link:
    return Link(index=index, name=f"v{index}", kind="vlan", parent_index=parent_index, **fields)


def make_routes(*devices: int, multipath: bool = False) -> tuple[Route, ...]:
    return tuple(Route(device_index=device, is_multipath=multipath) for device in devices)


ROUTE = make_routes(2)
GUEST = Machine(vendor="Amazon EC2", product="m5.large", hypervisor_evidence="the processor says so")
FAST, SLOW = make_nic(3, "a", 10_000, master_index=2), make_nic(4, "b", 1_000, master_index=2)
EQUAL = FAST, make_nic(4, "b", 10_000, master_index=2)
UPLINKS = make_nic(2, "a", 10_000), make_nic(3, "b", 1_000)
LACP_PORTS = [make_nic(3 + i, "abc"[i], 25_000, master_index=2, slave_aggregator=(1, 1, 2)[i]) for i in range(3)]
BOND_WITH_VLAN = make_bond("802.3ad"), *EQUAL, make_vlan(5, parent_index=3)
BRIDGE_OF_PODS = (
    Link(index=2, name="br0", kind="bridge", sysfs_mbps=10),
    Link(index=3, name="v", kind="veth", master_index=2),
)


@pytest.mark.parametrize(
    ("recording", "rate_bps", "devices"),
    [
        ("bare_nic", 10 * G, ("eno1",)),
        ("bond_balance_rr_one_slave_down", 10 * G, ("eno1",)),
        ("bond_broadcast", 1 * G, ("eno1", "eno2")),
        ("vlan_on_bond", 50 * G, ("eno1", "eno2")),
        ("bridge_on_nic", 1 * G, ("eno1", "eno2")),  # the slower of two ports
        ("macvlan_on_nic", 10 * G, ("eno1",)),
        ("two_uplinks_one_waits", 10 * G, ("eno1",)),
        ("only_psutil_knows", 5 * G // 2, ("en0",)),
        # Counters are read also where the speed is unknown.
        ("virtio", None, ("eth0",)),
        ("azure_accelerated", None, ("enP1s1",)),
    ],
)
def test_capacity_is_that_of_the_physical_devices_below_the_default_route(
    recording: str, rate_bps: int | None, devices: tuple[str, ...]
) -> None:
    capacity = find_capacity(RECORDINGS[recording])
    assert capacity.rate_bps == rate_bps, capacity.explanation
    assert capacity.counted_devices == devices


@pytest.mark.parametrize(
    ("recording", "reason"),
    [
        ("virtio", "its speed is unknown (sysfs reports -1)"),
        ("azure_accelerated", "Hyper-V reports the speed of the host's port"),
        ("azure_mana", "Azure's ports are faster"),
        ("vmware", "vmxnet3 reports 10 Gbit/s on any port"),
        ("lab_node", "kind tun"),
        ("no_uplink", "there is no default route"),
        ("bond_with_unknown_slave", "eth0 (virtio_net): its speed is unknown"),
        ("loop_of_vlans", "is below 8 other devices"),
        ("open_vswitch", "kind openvswitch"),
        ("vf_in_a_machine", "virtual function"),
    ],
)
def test_an_unreliable_speed_is_no_capacity_and_the_reason_is_given(recording: str, reason: str) -> None:
    capacity = find_capacity(RECORDINGS[recording])
    assert capacity.rate_bps is None
    assert reason in capacity.explanation


@pytest.mark.parametrize(
    ("links", "default_routes", "expected"),
    [
        pytest.param((make_bond("active-backup", active_slave_index=4), FAST, SLOW), ROUTE, G, id="after a failover"),
        pytest.param((make_bond("active-backup"), FAST, SLOW), ROUTE, "has no active slave", id="no active slave"),
        pytest.param((make_bond("802.3ad", active_aggregator=1), *LACP_PORTS), ROUTE, 50 * G, id="one aggregator"),
        pytest.param((make_bond("802.3ad"), *LACP_PORTS), ROUTE, 75 * G, id="LACP without a named aggregator"),
        pytest.param((make_bond("balance-tlb"), *EQUAL), ROUTE, 10 * G, id="balance-tlb receives on one device only"),
        pytest.param((make_bond("balance-alb"), *EQUAL), ROUTE, 20 * G, id="balance-alb receives on all devices"),
        pytest.param((make_nic(2, "a", 10_000, is_up=False),), ROUTE, "a is down", id="a device that is down"),
        pytest.param((make_nic(2, "a", 10_000, is_up=False), UPLINKS[1]), make_routes(2, 3), G, id="first uplink down"),
        pytest.param(UPLINKS, make_routes(2, 3), 10 * G, id="the first of two routes with one metric"),
        pytest.param(UPLINKS, make_routes(2, 3, multipath=True), 11 * G, id="all hops of a multipath route"),
        pytest.param(UPLINKS, (*ROUTE, Route(device_index=3, family=6)), G, id="the smaller of two families' uplinks"),
        pytest.param((make_nic(2, "a", 10_000, root_qdisc="tbf", root_qdisc_mbps=500),), ROUTE, G // 2, id="tbf"),
        pytest.param((make_nic(2, "a", 10_000, root_qdisc="htb"),), ROUTE, "htb may limit it", id="shaped by an htb"),
        pytest.param((make_nic(2, "a", 10_000, root_qdisc="fq"),), ROUTE, 10 * G, id="fq does not shape"),
        pytest.param(
            (make_vlan(2, 9, is_parent_elsewhere=True),), ROUTE, "in another network", id="VLAN of another namespace"
        ),
        pytest.param(BRIDGE_OF_PODS, ROUTE, "br0: no port that is up leads out", id="a bridge of pods only"),
        pytest.param(BOND_WITH_VLAN, make_routes(2, 5, multipath=True), 20 * G, id="VLAN on a counted slave"),
        pytest.param(BOND_WITH_VLAN, make_routes(5, 2, multipath=True), "shares some", id="partly shared devices"),
        pytest.param((make_nic(2, "a", 2**32 - 1),), ROUTE, "its speed is unknown", id="an absurd speed"),
    ],
)
def test_bonds_routes_and_shapers_give_a_capacity_or_a_reason(
    links: tuple[Link, ...], default_routes: tuple[Route, ...], expected: int | str
) -> None:
    capacity = find_capacity(LinkSnapshot(links=links, routes=default_routes))
    if isinstance(expected, int):
        assert capacity.rate_bps == expected, capacity.explanation
    else:
        assert capacity.rate_bps is None
        assert expected in capacity.explanation


def test_a_port_speed_inside_a_virtual_machine_is_not_the_guests() -> None:
    capacity = find_capacity(LinkSnapshot(links=(make_nic(2, "ens5", 100_000),), routes=ROUTE, machine=GUEST))
    assert capacity.rate_bps is None
    assert capacity.counted_devices == ("ens5",)
    assert "inside a virtual machine" in capacity.explanation


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "is_virtual"),
    [
        ("flags\t\t: fpu vme hypervisor lahf_lm\n\nprocessor : 1\n", "Dell Inc.", "PowerEdge R650", True),
        ("flags\t\t: fpu vme lahf_lm\n", "Dell Inc.", "PowerEdge R650", False),
        ("Features\t: fp asimd\n", "Amazon EC2", "c7g.large", True),
        ("Features\t: fp asimd\n", "Amazon EC2", "c7g.metal", False),
        ("Features\t: fp asimd\n", "Microsoft Corporation", "Virtual Machine", True),
        ("Features\t: fp asimd\n", "", "", False),
    ],
)
def test_a_hypervisor_is_known_by_the_processor_or_the_firmware(
    cpuinfo: str, vendor: str, product: str, is_virtual: bool, tmp_path: Path
) -> None:
    firmware = tmp_path / "class" / "dmi" / "id"
    firmware.mkdir(parents=True)
    (firmware / "sys_vendor").write_text(vendor + "\n")
    (firmware / "product_name").write_text(product + "\n")
    (firmware / "chassis_asset_tag").write_bytes(b"\xff\n")  # no UTF-8
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    machine = read_machine(tmp_path, tmp_path)
    assert bool(machine.hypervisor_evidence) is is_virtual
    assert machine.asset_tag == "\ufffd"
