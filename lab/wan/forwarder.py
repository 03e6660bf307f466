"""Forwards packets between the nodes' TUN devices when they are due.

For exact delays, the forwarder waits with select(), whose timeout has microseconds (that of epoll has milliseconds), for the epoll
descriptor of all devices, and requests the smallest timer slack and a real-time priority.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from lab import namespaces
from lab.wan.delays import DelayQueue
from lab.wan.plan import WanLink, WanPlan
from lab.wan.server import ControlServer

# linux/if_tun.h, prctl.h, sockios.h and ethtool.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_PR_SET_TIMERSLACK = 29
_SIOCETHTOOL, _ETHTOOL_SSET, _DUPLEX_FULL = 0x8946, 2, 1
_READ_BYTES = 2048  # More than the MTU of the devices (1500).
_MAX_READS = 64  # In a row from one device, so that due packets and other devices need not wait.
_IDLE_S = 60.0  # Without packets nothing is due, so any value works.
_libc = ctypes.CDLL(None, use_errno=True)


class Forwarder:
    """Forwards packets by a plan. The constructor raises OSError if a device cannot be opened."""

    def __init__(self, plan: WanPlan) -> None:
        links = {direction: link.to_direction() for link in plan.links for direction in link.directions}
        self._queue = DelayQueue([node.zone for node in plan.nodes], links, Random(plan.seed))
        self._devices = [open_device(node.netns, plan.device, node.nic_bps) for node in plan.nodes]
        self._node_of_device = {fd: index for index, fd in enumerate(self._devices)}
        self._routes = Routes([[node.address, *filter(None, [node.pod_range])] for node in plan.nodes])
        self._poll = select.epoll()
        for fd in self._devices:
            self._poll.register(fd, select.EPOLLIN)

    def set_link(self, link: WanLink) -> None:
        """Replace a link; packets under way keep their delay."""
        for origin, destination in link.directions:
            self._queue.set_link(origin, destination, link.to_direction())

    def run(self, control: ControlServer) -> None:
        """Forward until the process is stopped."""
        self._poll.register(control.fileno(), select.EPOLLIN)
        queue, clock, poll = self._queue, time.monotonic, self._poll
        while True:
            self._write_packets(queue.pop_due(clock()))
            due_s = queue.next_due_s()
            wait_s = _IDLE_S if due_s is None else max(0.0, due_s - clock())
            readable, _, _ = select.select([poll.fileno()], [], [], wait_s)
            if readable:
                for fd, _ in poll.poll(0):
                    if fd in self._node_of_device:
                        self._read_packets(fd)
                    else:
                        control.serve_client()

    def _read_packets(self, fd: int) -> None:
        source, now_s = self._node_of_device[fd], time.monotonic()
        for _ in range(_MAX_READS):
            try:
                packet = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # The device was removed. epoll would report it without end.
                self._poll.unregister(fd)
                return
            target = self._routes.find_node(packet)
            if target is not None:
                self._queue.enqueue(now_s, source, target, packet)

    def _write_packets(self, packets: list[tuple[int, bytes]]) -> None:
        for target, packet in packets:
            # The packet is lost, as on a real network, while the device's queue is full or the device is down.
            with suppress(OSError):
                os.write(self._devices[target], packet)


class Routes:
    """Finds the node that a packet is for.

    Args:
        ranges: for each node, its address and the ranges of its pods in CIDR notation; none overlap.
    """

    def __init__(self, ranges: Sequence[Sequence[str]]) -> None:
        # Number of host bits -> network part of an address -> index of the node.
        self._nodes_by_prefix: dict[int, dict[int, int]] = {}
        for index, texts in enumerate(ranges):
            for network in map(ipaddress.IPv4Network, texts):
                host_bits = network.max_prefixlen - network.prefixlen
                self._nodes_by_prefix.setdefault(host_bits, {})[int(network.network_address) >> host_bits] = index

    def find_node(self, packet: bytes) -> int | None:
        """Return the index of the node that an IPv4 packet is for; None if the packet is for no node."""
        if packet[0] >> 4 != 4:
            return None
        address = int.from_bytes(packet[16:20], "big")
        matches = (nodes.get(address >> host_bits) for host_bits, nodes in self._nodes_by_prefix.items())
        return next((node for node in matches if node is not None), None)


def open_device(netns: str, device: str, nic_bps: int) -> int:
    """Open the TUN device of a namespace and set its speed; return a descriptor that is valid outside the namespace.

    Raises OSError if the namespace or the device does not exist, or if this process lacks privileges.
    """
    with namespaces.enter(netns):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _set_speed(device, nic_bps // 10**6)
        return fd


def _set_speed(device: str, speed_mbps: int) -> None:
    """Set the speed that the device reports, by ETHTOOL_SSET with struct ethtool_cmd, which has the speed in two halves."""
    low, high = speed_mbps & 0xFFFF, speed_mbps >> 16
    command = struct.pack("=IIIHBBBBBBIIHBBIII", _ETHTOOL_SSET, 0, 0, low, _DUPLEX_FULL, *[0] * 7, high, *[0] * 5)
    buffer = ctypes.create_string_buffer(command)
    request = struct.pack("16sP", device.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCETHTOOL, request.ljust(40, b"\0"))
        except OSError as error:
            # Kernels before 5.1 refuse; agents then do not know the capacity.
            print(f"{device}: speed not set: {error.strerror}", file=sys.stderr)


def request_exact_timing() -> None:
    """Request the smallest timer slack and a real-time priority; print a note if the kernel refuses the priority."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        print(f"no real-time priority ({error.strerror}): delays are less exact on a busy machine", file=sys.stderr)
