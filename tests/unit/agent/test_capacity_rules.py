"""Which capacity follows from a node's links.

The recordings are snapshots in the reader's own format. ``virtio``, ``lab_node`` and ``container_on_veth`` are as read on
a machine; those of hardware that no test machine has were composed from what its drivers are documented to report.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.capacity.links import Link, LinkSnapshot, Machine, Route
from agent.capacity.node_bandwidth import HardwareCapacity
from agent.capacity.rules import find_capacity
from agent.capacity.sysfs import read_machine

RECORDINGS = msgspec.json.decode(
    (Path(__file__).parent / "recordings" / "links.json").read_bytes(), type=dict[str, LinkSnapshot]
)
G = 10**9


@pytest.mark.parametrize(
    ("name", "rate_bps", "devices"),
    [
        ("bare_nic", 10 * G, ("eno1",)),
        ("bond_active_backup", 10 * G, ("eno1",)),
        ("bond_802_3ad", 50 * G, ("eno1", "eno2")),
        ("bond_balance_rr_one_slave_down", 10 * G, ("eno1",)),
        ("bond_broadcast", 1 * G, ("eno1", "eno2")),
        ("vlan_on_bond", 50 * G, ("eno1", "eno2")),
        ("bridge_on_nic", 1 * G, ("eno1", "eno2")),  # the slower of two ports
        ("macvlan_on_nic", 10 * G, ("eno1",)),
        ("two_uplinks_together", 20 * G, ("eno1", "eno2")),
        ("two_uplinks_one_waits", 10 * G, ("eno1",)),
        ("only_psutil_knows", 5 * G // 2, ("en0",)),
    ],
)
def test_capacity_is_that_of_the_physical_devices_below_the_default_route(
    name: str, rate_bps: int, devices: tuple[str, ...]
) -> None:
    found = find_capacity(RECORDINGS[name])
    assert (found.rate_bps, found.devices) == (rate_bps, devices), found.explanation


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("virtio", "its speed is unknown (sysfs says -1)"),
        ("azure_accelerated", "Hyper-V names the host's port"),
        ("azure_mana", "Azure's ports are faster"),
        ("vmware", "vmxnet3 says 10 Gbit/s whatever is below"),
        ("lab_node", "TUN or TAP device has no speed"),
        ("container_on_veth", "veth pair says 10 Gbit/s"),
        ("no_uplink", "there is no default route"),
        ("bond_with_unknown_slave", "eth0 (virtio_net): its speed is unknown"),
        ("loop_of_vlans", "form a loop"),
        ("open_vswitch", "kind openvswitch"),
        ("wireguard_default", "kind wireguard"),
        ("vf_in_a_machine", "virtual function"),
    ],
)
def test_a_speed_that_cannot_be_believed_is_no_capacity_and_the_reason_is_given(name: str, why: str) -> None:
    found = find_capacity(RECORDINGS[name])
    assert found.rate_bps is None
    assert why in found.explanation


def test_counters_are_read_from_the_device_even_where_its_speed_is_unknown() -> None:
    assert find_capacity(RECORDINGS["virtio"]).devices == ("eth0",)
    assert find_capacity(RECORDINGS["azure_accelerated"]).devices == ("enP1s1",)


def snapshot(*links: Link, routes: tuple[Route, ...] = (Route(device=2),)) -> LinkSnapshot:
    return LinkSnapshot(links=links, routes=routes)


def nic(index: int, name: str, mbps: int | None, *, master: int | None = None, up: bool = True) -> Link:
    return Link(index=index, name=name, physical=True, driver="ixgbe", sysfs_mbps=mbps, master=master, up=up)


def bond(mode: int, *, active: int | None = None) -> Link:
    return Link(index=2, name="bond0", kind="bond", bond_mode=mode, active_slave=active)


def test_a_failover_of_an_active_backup_bond_changes_the_capacity() -> None:
    slaves = nic(3, "a", 10_000, master=2), nic(4, "b", 1_000, master=2)
    assert find_capacity(snapshot(bond(1, active=3), *slaves)).rate_bps == 10 * G
    assert find_capacity(snapshot(bond(1, active=4), *slaves)).rate_bps == 1 * G
    assert find_capacity(snapshot(bond(1), *slaves)) == HardwareCapacity(
        None, "bond0 (active-backup) has no active slave", ("a", "b")
    )


def test_only_ports_of_the_active_aggregator_of_an_lacp_bond_carry_traffic() -> None:
    lacp = msgspec.structs.replace(bond(4), aggregator=1)
    ports = [
        msgspec.structs.replace(nic(index, name, 25_000, master=2), aggregator=aggregator)
        for index, name, aggregator in ((3, "a", 1), (4, "b", 1), (5, "c", 2))
    ]
    found = find_capacity(snapshot(lacp, *ports))
    assert (found.rate_bps, found.devices) == (50 * G, ("a", "b"))
    # Kernels that do not say count every port, as before.
    assert find_capacity(snapshot(bond(4), *(nic(i, str(i), 25_000, master=2) for i in (3, 4)))).rate_bps == 50 * G


def test_inside_a_virtual_machine_a_ports_speed_is_not_the_guests() -> None:
    guest = Machine(vendor="Amazon EC2", product="m5.large", hypervisor="the processor says so")
    function = msgspec.structs.replace(nic(2, "ens5", 100_000), driver="mlx5_core")
    found = find_capacity(LinkSnapshot(links=(function,), routes=(Route(device=2),), machine=guest))
    assert (found.rate_bps, found.devices) == (None, ("ens5",))
    assert "inside a virtual machine" in found.explanation


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "virtual"),
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
    cpuinfo: str, vendor: str, product: str, virtual: bool, tmp_path: Path
) -> None:
    firmware = tmp_path / "class" / "dmi" / "id"
    firmware.mkdir(parents=True)
    (firmware / "sys_vendor").write_text(vendor + "\n")
    (firmware / "product_name").write_text(product + "\n")
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert bool(read_machine(tmp_path, tmp_path).hypervisor) == virtual


def test_a_link_that_is_down_has_no_capacity() -> None:
    assert find_capacity(snapshot(nic(2, "eno1", 10_000, up=False))).explanation == "eno1 is down"


def test_of_two_uplinks_the_one_that_is_down_does_not_count() -> None:
    routes = Route(device=2), Route(device=3)
    found = find_capacity(snapshot(nic(2, "a", 10_000, up=False), nic(3, "b", 1_000), routes=routes))
    assert found == HardwareCapacity(1 * G, "b 1G by sysfs; standby: a", ("b",))


def test_of_two_default_routes_of_one_metric_the_kernel_uses_the_first_and_of_a_multipath_one_all_hops() -> None:
    links = nic(2, "a", 10_000), nic(3, "b", 1_000)
    assert find_capacity(snapshot(*links, routes=(Route(device=2), Route(device=3)))).rate_bps == 10 * G
    hops = Route(device=2, multipath=True), Route(device=3, multipath=True)
    assert find_capacity(snapshot(*links, routes=hops)).rate_bps == 11 * G


def test_balance_tlb_receives_on_one_device_only() -> None:
    slaves = nic(3, "a", 10_000, master=2), nic(4, "b", 10_000, master=2)
    assert find_capacity(snapshot(bond(5), *slaves)).rate_bps == 10 * G
    assert find_capacity(snapshot(bond(6), *slaves)).rate_bps == 20 * G


@pytest.mark.parametrize(
    ("root", "mbps", "rate_bps"), [("tbf", 500, G // 2), ("htb", None, None), ("fq", None, 10 * G)]
)
def test_a_queueing_discipline_that_limits_the_uplink_counts(root: str, mbps: int | None, rate_bps: int | None) -> None:
    shaped = msgspec.structs.replace(nic(2, "a", 10_000), root=root, root_mbps=mbps)
    assert find_capacity(snapshot(shaped)).rate_bps == rate_bps


def test_a_vlan_whose_device_is_in_another_namespace_is_unknown() -> None:
    vlan = Link(index=2, name="eth0.5", kind="vlan", parent=9, parent_elsewhere=True)
    assert find_capacity(snapshot(vlan)).explanation == "eth0.5: the device below is in another network namespace"


def test_a_bridge_without_a_port_that_leads_out_is_unknown() -> None:
    bridge = Link(index=2, name="br0", kind="bridge", sysfs_mbps=10_000)
    port = Link(index=3, name="veth1", kind="veth", master=2)
    assert find_capacity(snapshot(bridge, port)).explanation == "br0: none of its 1 ports leads out of this machine"


def test_uplinks_that_share_only_some_of_their_devices_are_not_added() -> None:
    shared = nic(3, "a", 10_000, master=2), nic(4, "b", 10_000, master=2)
    vlan = Link(index=5, name="a.7", kind="vlan", parent=3)
    hops = Route(device=2, multipath=True), Route(device=5, multipath=True)
    found = find_capacity(snapshot(bond(4), *shared, vlan, routes=hops))
    # The VLAN's device is part of the bond, so it is counted there and adds nothing.
    assert found.rate_bps == 20 * G
    found = find_capacity(snapshot(bond(4), *shared, vlan, routes=hops[::-1]))
    assert found.rate_bps is None


def test_where_the_two_families_use_different_uplinks_the_smaller_counts() -> None:
    routes = Route(device=2), Route(device=3, family=6, metric=1024)
    found = find_capacity(snapshot(nic(2, "a", 10_000), nic(3, "b", 1_000), routes=routes))
    assert (found.rate_bps, found.devices) == (1 * G, ("b",))


def test_absurd_speeds_are_refused() -> None:
    assert find_capacity(snapshot(nic(2, "eno1", 4_294_967_295))).rate_bps is None
