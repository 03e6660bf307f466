"""The lab's network devices: one namespace per node, a management bridge to the API server, a TUN device to the WAN.

Every name derives from a slot number that one lab holds at a time. The slot is the bridge: the kernel refuses a second one
of the same name, and its alias says which lab owns it, so that labs of different users and state directories never take or
remove each other's devices. Nodes' addresses come from the ranges reserved for benchmarks (RFC 2544), which no real host has,
and pods' from the range shared by carriers (RFC 6598), which few have.
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
from lab.topology import REAL, LabNode

WAN_DEVICE, MANAGEMENT_DEVICE = "wan0", "mgmt0"
_SLOTS = 250
_FIRST_HOST = 10
# Pods of real nodes: of 100.64.0.0/10 every slot has 2^14 addresses, and every node 2^6 of these.
_POD_BASE, _SLOT_BITS, POD_BITS = ipaddress.IPv4Address("100.64.0.0"), 14, 6
_MTU = 1500
_TUN = Path("/dev/net/tun")
_MUTEX = "\0netaware-lab-slots"
_MUTEX_TIMEOUT_S = 10.0
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


@dataclass(frozen=True)
class NodeNetwork:
    """The network side of one node.

    Attributes:
        node: as the topology has it.
        netns: name of its namespace under /run/netns.
        address: its address in the wide-area network; the Node's InternalIP.
        management_address: its address on the bridge, by which the host reaches it without delay.
        pod_ranges: addresses of its pods in CIDR notation, when its kubelet is real.
    """

    node: LabNode
    netns: str
    address: str
    management_address: str
    pod_ranges: tuple[str, ...] = ()

    @property
    def pod_addresses(self) -> int:
        """Number of addresses for pods, less those of network, bridge and broadcast."""
        return int(2**POD_BITS - 3)


@dataclass(frozen=True)
class LabNetwork:
    """All devices of one lab.

    Attributes:
        slot: the number that this lab holds.
        gateway: address of the bridge on the host, where the API server listens.
        nodes: in the order of the topology.
    """

    slot: int
    gateway: str
    nodes: tuple[NodeNetwork, ...]


def bridge_name(slot: int) -> str:
    """Name of a slot's bridge."""
    return f"nalab{slot}"


def plan_network(slot: int, nodes: Sequence[LabNode]) -> LabNetwork:
    """Names and addresses that follow from a slot: management 198.18.slot.0/24, wide-area 198.19.slot.0/24."""
    planned = (
        NodeNetwork(
            node,
            f"netaware-{slot}-{node.name}",
            f"198.19.{slot}.{i}",
            f"198.18.{slot}.{i}",
            (f"{_POD_BASE + (slot << _SLOT_BITS) + (i << POD_BITS)}/{32 - POD_BITS}",) if node.kubelet == REAL else (),
        )
        for i, node in enumerate(nodes, _FIRST_HOST)
    )
    return LabNetwork(slot, f"198.18.{slot}.1", tuple(planned))


def pod_ranges(slot: int) -> tuple[str, ...]:
    """Addresses of all pods of a slot."""
    return (f"{_POD_BASE + (slot << _SLOT_BITS)}/{32 - _SLOT_BITS}",)


def missing_privileges() -> list[str]:
    """Privileges that this process lacks to create namespaces and TUN devices; empty if none."""
    missing = []
    effective = _effective_capabilities()
    if not effective >> _CAP_NET_ADMIN & 1 or not effective >> _CAP_SYS_ADMIN & 1:
        missing.append("the right to make network namespaces (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN)")
    elif not tun_is_accessible():
        missing.append(f"access to {_TUN}, which this user or container does not have")
    return missing


def tun_is_accessible() -> bool:
    """Whether this process may open the device that makes TUN devices."""
    return os.access(_TUN, os.R_OK | os.W_OK)


def require_privileges() -> None:
    """Raise UnsupportedError, saying what is missing and what still works, unless namespaces and TUN devices can be made."""
    missing = missing_privileges()
    if missing:
        msg = f"nodes need {missing[0]}; without it `--topology none` still runs the control plane alone"
        raise UnsupportedError(msg)


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def create_network(nodes: Sequence[LabNode], state_dir: Path) -> LabNetwork:
    """Take a free slot and make its devices. Blocks for about 25 ms per node: call it in a thread.

    Args:
        nodes: the nodes to be.
        state_dir: of the lab; remembers the slot.

    Raises:
        UnsupportedError: this process may not.
        LabError: no slot is free, or the kernel refused; what was made is removed again.
    """
    require_privileges()
    try:
        with IPRoute() as host:
            # Loopback is down in a network namespace that is new, as it is for a lab without root.
            host.link("set", index=index_of(host, "lo"), state="up")
            network = plan_network(_take_slot(host, state_dir), nodes)
            bridge = index_of(host, bridge_name(network.slot))
            host.addr("add", index=bridge, address=network.gateway, prefixlen=24)
            host.link("set", index=bridge, state="up")
            for number, node in enumerate(network.nodes):
                _create_node(host, bridge, f"nav{network.slot}-{number}", node)
                _create_wan_device(node)
            _route_pods(host, network)
    except (NetlinkError, OSError) as error:
        remove_network(state_dir)
        raise LabError(f"cannot make the nodes' network: {error}") from error
    return network


def _create_node(host: IPRoute, bridge: int, host_device: str, node: NodeNetwork) -> None:
    namespaces.create(node.netns)
    host.link("add", ifname=host_device, kind="veth", peer={"ifname": MANAGEMENT_DEVICE, "net_ns_fd": node.netns})
    host.link("set", index=index_of(host, host_device), master=bridge, state="up")
    with namespaces.entered(node.netns), IPRoute() as inside:
        inside.link("set", index=index_of(inside, "lo"), state="up")
        management = index_of(inside, MANAGEMENT_DEVICE)
        inside.addr("add", index=management, address=node.management_address, prefixlen=24)
        inside.link("set", index=management, state="up")


def _create_wan_device(node: NodeNetwork) -> None:
    with namespaces.entered(node.netns), IPRoute() as inside:
        inside.link("add", ifname=WAN_DEVICE, kind="tuntap", mode="tun")
        wan = index_of(inside, WAN_DEVICE)
        inside.addr("add", index=wan, address=node.address, prefixlen=24)
        inside.link("set", index=wan, mtu=_MTU, state="up")
        # A node's default route leads to the wide-area network, as on a real node; nothing answers beyond the lab.
        inside.route("add", dst="0.0.0.0/0", oif=wan)


def _route_pods(host: IPRoute, network: LabNetwork) -> None:
    """Pods of real nodes are reached from other nodes by the wide-area network, from the host (the API server) without delay."""
    real = [node for node in network.nodes if node.pod_ranges]
    bridge = index_of(host, bridge_name(network.slot))
    for node in real:
        for destination in (f"{node.address}/32", node.pod_ranges[0]):
            host.route("add", dst=destination, gateway=node.management_address, oif=bridge)
    for node in network.nodes if real else ():
        with namespaces.entered(node.netns), IPRoute() as inside:
            wan = index_of(inside, WAN_DEVICE)
            for other in real:
                if other is not node:
                    inside.route("add", dst=other.pod_ranges[0], gateway=other.address, oif=wan)


def _take_slot(host: IPRoute, state_dir: Path) -> int:
    """Make the bridge of the first free slot and note the slot in the state directory before it exists."""
    with _machine_wide_mutex():
        taken = {link.get_attr("IFLA_IFNAME") for link in host.get_links()}
        slot = next((n for n in range(_SLOTS) if bridge_name(n) not in taken), None)
        if slot is None:
            raise LabError(f"all {_SLOTS} slots are taken by other labs; see `ip link show type bridge`")
        _slot_file(state_dir).write_text(f"{slot} {_own_network()}")
        host.link("add", ifname=bridge_name(slot), kind="bridge")
        host.link("set", index=index_of(host, bridge_name(slot)), ifalias=_alias(state_dir))
        return slot


def remove_network(state_dir: Path) -> None:
    """Remove every device of the lab at ``state_dir``, also of one that was killed; nothing of any other lab.

    Processes inside the namespaces must have ended, or the namespaces live on without a name.
    """
    try:
        slot, network = (int(word) for word in _slot_file(state_dir).read_text().split())
    except (OSError, ValueError):
        return
    if network != _own_network():
        # The lab lived in a user namespace and took its devices with it; the same names here belong to others.
        return
    with _machine_wide_mutex(), IPRoute() as host:
        found = host.link_lookup(ifname=bridge_name(slot))
        if found:
            alias = host.get_links(found[0])[0].get_attr("IFLA_IFALIAS") or ""
            # A bridge without an alias was made a moment before its lab was killed; another alias is another lab.
            if alias not in {"", _alias(state_dir)}:
                return
        prefix = f"netaware-{slot}-"
        cgroups.remove(f"{prefix}*")
        for name in [name for name in namespaces.names() if name.startswith(prefix)]:
            namespaces.remove(name)
        # Removing a namespace removes its end of a veth only after a while; the next lab must not meet the name.
        for link in host.get_links():
            if str(link.get_attr("IFLA_IFNAME")).startswith(f"nav{slot}-"):
                with contextlib.suppress(NetlinkError):
                    host.link("del", index=link["index"])
        if found:
            host.link("del", index=found[0])
    _slot_file(state_dir).unlink(missing_ok=True)


def _slot_file(state_dir: Path) -> Path:
    return state_dir / "network-slot"


def _own_network() -> int:
    """Identity of the network namespace that this process is in."""
    return Path("/proc/self/ns/net").stat().st_ino


def _alias(state_dir: Path) -> str:
    # The kernel keeps 255 bytes of an alias; the end of a path distinguishes labs better than its beginning.
    return str(state_dir)[-255:]


def index_of(routes: IPRoute, name: str) -> int:
    """The number of a device by its name. Raises OSError when there is none."""
    found = routes.link_lookup(ifname=name)
    if not found:
        raise OSError(f"device {name} is gone")
    return int(found[0])


@contextlib.contextmanager
def _machine_wide_mutex() -> Iterator[None]:
    """One lab at a time changes slots. An abstract socket: no file to leave behind, free again when its holder dies."""
    deadline = time.monotonic() + _MUTEX_TIMEOUT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mutex:
        while True:
            try:
                mutex.bind(_MUTEX)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise LabError("another lab has been changing network slots for 10 s") from None
                time.sleep(0.02)
        yield
