"""Creates and removes a lab's network devices.

Each node has a namespace, a veth pair to a management bridge, from which it reaches the API server, and a TUN device to the emulated
wide-area network.

Names and addresses derive from the lab's slot, a number. The bridge reserves the slot, because the kernel refuses a second bridge of the
same name. The bridge's alias is the lab's state directory, so that no lab removes the devices of another. Addresses of nodes are from the
range for benchmarks (RFC 2544), which no real host has; those of pods are from carriers' shared range (RFC 6598), which few hosts have.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lab import namespaces
from lab.errors import LabError, UnsupportedError
from lab.realnode import cgroups
from lab.topology import REAL_KUBELET, LabNode

WAN_DEVICE, MANAGEMENT_DEVICE = "wan0", "mgmt0"
_SLOTS = 250
_FIRST_HOST = 10  # Last byte of the first node's addresses; the gateway has 1.
_PREFIX_LENGTH = 24
# Pods of real nodes: each slot has 2^14 of the 2^22 addresses of 100.64.0.0/10, and each node 2^6 of its slot's.
_POD_BASE, _SLOT_BITS, _POD_BITS = ipaddress.IPv4Address("100.64.0.0"), 14, 6
# A node's addresses without those of the network, the bridge and broadcast.
MAX_PODS_PER_NODE = 2**_POD_BITS - 3
_MTU = 1500
_TUN = Path("/dev/net/tun")
_LOCK_NAME = "\0netaware-lab-slots"
_LOCK_TIMEOUT_S, _POLL_S = 10.0, 0.02
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


@dataclass(frozen=True)
class NodeNetwork:
    """The network of a node.

    Attributes:
        netns: name of its network namespace under /run/netns.
        address: its address in the wide-area network; the Node's InternalIP.
        management_address: its address on the bridge, at which the host reaches it without delay.
        pod_range: addresses of its pods, in CIDR notation; empty without a real kubelet.
    """

    node: LabNode
    netns: str
    address: str
    management_address: str
    pod_range: str = ""


@dataclass(frozen=True)
class LabNetwork:
    """The network of a lab.

    Attributes:
        gateway: address of the bridge on the host, at which the API server listens.
        node_networks: networks of the nodes, in the order of the topology.
    """

    slot: int
    gateway: str
    node_networks: tuple[NodeNetwork, ...]


def bridge_name(slot: int) -> str:
    return f"nalab{slot}"


def _host_device_prefix(slot: int) -> str:
    return f"nav{slot}-"


def _netns_prefix(slot: int) -> str:
    return f"netaware-{slot}-"


def plan_network(slot: int, nodes: Sequence[LabNode]) -> LabNetwork:
    """Return names and addresses of a slot's network: management 198.18.slot.0/24, wide-area 198.19.slot.0/24."""
    planned = (
        NodeNetwork(
            node,
            f"{_netns_prefix(slot)}{node.name}",
            f"198.19.{slot}.{i}",
            f"198.18.{slot}.{i}",
            f"{_POD_BASE + (slot << _SLOT_BITS) + (i << _POD_BITS)}/{32 - _POD_BITS}"
            if node.kubelet == REAL_KUBELET
            else "",
        )
        for i, node in enumerate(nodes, _FIRST_HOST)
    )
    return LabNetwork(slot, f"198.18.{slot}.1", tuple(planned))


def pod_range_of_slot(slot: int) -> str:
    """Return the range of all pod addresses of a slot, in CIDR notation."""
    return f"{_POD_BASE + (slot << _SLOT_BITS)}/{32 - _SLOT_BITS}"


def find_missing_privilege() -> str:
    """Return the first privilege that this process lacks to create namespaces and TUN devices; empty if it lacks none."""
    required = 1 << _CAP_NET_ADMIN | 1 << _CAP_SYS_ADMIN
    if _read_effective_capabilities() & required != required:
        return "the right to create network namespaces (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN)"
    return "" if can_open_tun() else f"access to {_TUN}, which this user or container does not have"


def can_open_tun() -> bool:
    """Whether this process may create TUN devices."""
    return os.access(_TUN, os.R_OK | os.W_OK)


def require_privileges() -> None:
    """Raise UnsupportedError if this process cannot create namespaces and TUN devices."""
    if privilege := find_missing_privilege():
        raise UnsupportedError(f"nodes need {privilege}; `--topology none` still runs the control plane alone")


def _read_effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def create_network(nodes: Sequence[LabNode], state_dir: Path) -> LabNetwork:
    """Reserve a free slot, write it into the lab's state directory, and create its devices. Blocks for about 25 ms per node.

    Raises:
        UnsupportedError: this process lacks privileges.
        LabError: no slot is free, or the kernel refused; created devices are removed.
    """
    require_privileges()
    try:
        with IPRoute() as host_netlink:
            # In the new network namespace of a lab without root, loopback is down.
            host_netlink.link("set", index=find_device_index(host_netlink, "lo"), state="up")
            network = plan_network(_reserve_slot(host_netlink, state_dir), nodes)
            bridge = find_device_index(host_netlink, bridge_name(network.slot))
            host_netlink.addr("add", index=bridge, address=network.gateway, prefixlen=_PREFIX_LENGTH)
            host_netlink.link("set", index=bridge, state="up")
            for number, node_network in enumerate(network.node_networks):
                _create_node(host_netlink, bridge, f"{_host_device_prefix(network.slot)}{number}", node_network)
                _create_wan_device(node_network)
            _route_pods(host_netlink, network)
    except (NetlinkError, OSError) as error:
        remove_network(state_dir)
        raise LabError(f"cannot create the nodes' network: {error}") from error
    return network


def _create_node(host_netlink: IPRoute, bridge: int, host_device: str, network: NodeNetwork) -> None:
    namespaces.create(network.netns)
    peer = {"ifname": MANAGEMENT_DEVICE, "net_ns_fd": network.netns}
    host_netlink.link("add", ifname=host_device, kind="veth", peer=peer)
    host_netlink.link("set", index=find_device_index(host_netlink, host_device), master=bridge, state="up")
    with namespaces.enter(network.netns), IPRoute() as node_netlink:
        node_netlink.link("set", index=find_device_index(node_netlink, "lo"), state="up")
        management = find_device_index(node_netlink, MANAGEMENT_DEVICE)
        node_netlink.addr("add", index=management, address=network.management_address, prefixlen=_PREFIX_LENGTH)
        node_netlink.link("set", index=management, state="up")


def _create_wan_device(network: NodeNetwork) -> None:
    with namespaces.enter(network.netns), IPRoute() as node_netlink:
        node_netlink.link("add", ifname=WAN_DEVICE, kind="tuntap", mode="tun")
        wan = find_device_index(node_netlink, WAN_DEVICE)
        node_netlink.addr("add", index=wan, address=network.address, prefixlen=_PREFIX_LENGTH)
        node_netlink.link("set", index=wan, mtu=_MTU, state="up")
        # The agent takes the device of the default route for the node's uplink.
        node_netlink.route("add", dst="0.0.0.0/0", oif=wan)


def _route_pods(host_netlink: IPRoute, network: LabNetwork) -> None:
    """Add routes to the pods of real nodes: over the wide-area network from other nodes, and over the bridge from the host."""
    real_networks = [node_network for node_network in network.node_networks if node_network.pod_range]
    bridge = find_device_index(host_netlink, bridge_name(network.slot))
    for real_network in real_networks:
        for destination in (f"{real_network.address}/32", real_network.pod_range):
            host_netlink.route("add", dst=destination, gateway=real_network.management_address, oif=bridge)
    for node_network in network.node_networks if real_networks else ():
        with namespaces.enter(node_network.netns), IPRoute() as node_netlink:
            wan = find_device_index(node_netlink, WAN_DEVICE)
            for other in real_networks:
                if other is not node_network:
                    node_netlink.route("add", dst=other.pod_range, gateway=other.address, oif=wan)


def _reserve_slot(host_netlink: IPRoute, state_dir: Path) -> int:
    """Write the first free slot into the state directory, then create its bridge.

    In this order, `remove_network` finds the bridge of a lab that was killed in between.
    """
    with _lock_slots():
        device_names = {link.get_attr("IFLA_IFNAME") for link in host_netlink.get_links()}
        slot = next((n for n in range(_SLOTS) if bridge_name(n) not in device_names), None)
        if slot is None:
            raise LabError(f"other labs use all {_SLOTS} slots; see `ip link show type bridge`")
        _slot_file(state_dir).write_text(f"{slot} {_network_namespace_id()}")
        host_netlink.link("add", ifname=bridge_name(slot), kind="bridge")
        host_netlink.link(
            "set", index=find_device_index(host_netlink, bridge_name(slot)), ifalias=_bridge_alias(state_dir)
        )
        return slot


def remove_network(state_dir: Path) -> None:
    """Remove all devices of the lab with this state directory.

    Processes inside the namespaces must have ended; otherwise the namespaces remain, without a name. Raises LabError if another lab
    changes slots for too long.
    """
    try:
        slot, namespace_id = (int(word) for word in _slot_file(state_dir).read_text().split())
    except (OSError, ValueError):
        return
    if namespace_id != _network_namespace_id():
        # The lab ran in a user namespace, and its devices ended with that. Devices of these names belong to another lab.
        return
    with _lock_slots(), IPRoute() as host_netlink:
        bridges = host_netlink.link_lookup(ifname=bridge_name(slot))
        if bridges:
            alias = host_netlink.get_links(bridges[0])[0].get_attr("IFLA_IFALIAS") or ""
            # No alias: the lab was killed just after it created the bridge. Another alias: the bridge of another lab.
            if alias not in {"", _bridge_alias(state_dir)}:
                return
        cgroups.remove(f"{_netns_prefix(slot)}*")
        for name in namespaces.list_names():
            if name.startswith(_netns_prefix(slot)):
                namespaces.remove(name)
        # The kernel would remove the veth pairs of a namespace later, when the next lab may need their names.
        for link in host_netlink.get_links():
            if str(link.get_attr("IFLA_IFNAME")).startswith(_host_device_prefix(slot)):
                with contextlib.suppress(NetlinkError):
                    host_netlink.link("del", index=link["index"])
        if bridges:
            host_netlink.link("del", index=bridges[0])
    _slot_file(state_dir).unlink(missing_ok=True)


def _slot_file(state_dir: Path) -> Path:
    return state_dir / "network-slot"


def _network_namespace_id() -> int:
    """Return the inode of this process's network namespace."""
    return Path("/proc/self/ns/net").stat().st_ino


def _bridge_alias(state_dir: Path) -> str:
    # The kernel keeps 255 bytes of an alias; paths differ at their ends.
    return str(state_dir)[-255:]


def find_device_index(netlink: IPRoute, name: str) -> int:
    """Return the index of the device of this name. Raises OSError if it does not exist."""
    indexes = netlink.link_lookup(ifname=name)
    if not indexes:
        raise OSError(f"there is no device {name}")
    return int(indexes[0])


@contextlib.contextmanager
def _lock_slots() -> Iterator[None]:
    """Let one lab at a time change slots. The lock is an abstract socket, which the kernel frees when its owner ends."""
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        while True:
            try:
                lock.bind(_LOCK_NAME)
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise LabError(f"another lab has been changing network slots for {_LOCK_TIMEOUT_S:.0f} s") from None
                time.sleep(_POLL_S)
        yield
