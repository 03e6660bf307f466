"""The emulated network in user space: carries packets between the nodes' TUN devices when they are due.

Accuracy comes from three things: select() waits in microseconds where epoll rounds to milliseconds, the timer slack is
set to its minimum, and a real-time priority, where allowed, lets it run the moment a packet is due even on a busy machine.
It sleeps whenever no packet is under way.
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
from random import Random

from lab import namespaces
from lab.wan.delays import DelayQueue
from lab.wan.plan import Answer, WanLink, WanPlan
from lab.wan.server import Control

# linux/if_tun.h, prctl.h and sockios.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_PR_SET_TIMERSLACK = 29
_SIOCETHTOOL = 0x8946
_READ_BYTES = 2048
_BATCH = 64
_IDLE_S = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


class Forwarder:
    """Devices and packets under way, in one loop. Raises OSError when a device cannot be opened."""

    def __init__(self, plan: WanPlan) -> None:
        links = {direction: link.one_way() for link in plan.links for direction in link.directions}
        self._queue = DelayQueue([node.site for node in plan.nodes], links, Random(plan.seed))
        self._devices = [open_device(node.netns, plan.device, node.nic_bps) for node in plan.nodes]
        self._node_of_device = {fd: index for index, fd in enumerate(self._devices)}
        self._routes = Routes([(node.address, *node.routed_ranges) for node in plan.nodes])
        self._poll = select.epoll()
        for fd in self._devices:
            self._poll.register(fd, select.EPOLLIN)

    def change(self, link: WanLink) -> None:
        """Replace a link; packets under way keep their time."""
        for origin, destination in link.directions:
            self._queue.set_link(origin, destination, link.one_way())

    def counters(self) -> Answer:
        """Packets since the start, and the worst lateness since the last call."""
        counters = self._queue.counters
        late_us, counters.late_s = counters.late_s * 1e6, 0.0
        return Answer(forwarded=counters.forwarded, lost=counters.lost, dropped=counters.dropped, late_us=late_us)

    def run(self, control: Control) -> None:
        """Forward until the process is stopped."""
        self._poll.register(control.fileno(), select.EPOLLIN)
        queue, clock, poll = self._queue, time.monotonic, self._poll
        while True:
            self._deliver(queue.release(clock()))
            due_s = queue.next_due_s()
            wait_s = _IDLE_S if due_s is None else max(0.0, due_s - clock())
            # Waiting on the epoll descriptor with select() keeps microseconds and works for any number of devices.
            readable, _, _ = select.select([poll.fileno()], [], [], wait_s)
            if readable:
                for fd, _ in poll.poll(0):
                    if fd in self._node_of_device:
                        self._collect(fd)
                    else:
                        control.serve()

    def _collect(self, fd: int) -> None:
        source, now_s = self._node_of_device[fd], time.monotonic()
        for _ in range(_BATCH):
            try:
                packet = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            # What is not for a node or its pods has no way to go.
            target = self._routes.find(packet)
            if target is not None:
                self._queue.accept(now_s, source, target, packet)

    def _deliver(self, due: list[tuple[int, bytes]]) -> None:
        for target, packet in due:
            try:
                os.write(self._devices[target], packet)
            except OSError:
                # A full queue or a device that is down drops the packet, as a real card would.
                self._queue.counters.dropped += 1


class Routes:
    """Finds the node that a packet is for.

    Args:
        ranges: of each node by its index: its addresses and those that are reached through it, single or in CIDR notation.
    """

    def __init__(self, ranges: Sequence[Sequence[str]]) -> None:
        # By number of bits that are left out at the end: the rest of the address gives the node.
        self._nodes: dict[int, dict[int, int]] = {0: {}}
        for index, texts in enumerate(ranges):
            for network in map(ipaddress.IPv4Network, texts):
                left_out = network.max_prefixlen - network.prefixlen
                self._nodes.setdefault(left_out, {})[int(network.network_address) >> left_out] = index

    def find(self, packet: bytes) -> int | None:
        """The index of the node that an IPv4 packet is for; ``None`` if it has no receiver."""
        if packet[0] >> 4 != 4:
            return None
        address = int.from_bytes(packet[16:20], "big")
        found = (nodes.get(address >> left_out) for left_out, nodes in self._nodes.items())
        return next((node for node in found if node is not None), None)


def open_device(netns: str, device: str, nic_bps: int) -> int:
    """Open the TUN device of a namespace; the descriptor keeps working after this process left the namespace.

    The device is told to report ``nic_bps`` as its speed, so that programs that read a card's speed find the topology's.

    Raises:
        OSError: the namespace or the device is not there, or this process may not.
    """
    with namespaces.entered(netns):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _set_speed(device, nic_bps // 10**6)
        return fd


def _set_speed(device: str, speed_mbps: int) -> None:
    """ETHTOOL_SSET of ethtool(8)'s ioctl, whose struct ethtool_cmd carries the speed in two halves."""
    command = struct.pack("=IIIHBBBBBBIIHBBIII", 2, 0, 0, speed_mbps & 0xFFFF, 1, *[0] * 7, speed_mbps >> 16, *[0] * 5)
    buffer = ctypes.create_string_buffer(command)
    request = struct.pack("16sP", device.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request.ljust(40, b"\0"))
        except OSError as error:
            # Kernels before 5.1 cannot; the card then reports the driver's own idea.
            print(f"{device}: speed not set: {error.strerror}", file=sys.stderr)


def set_exact_timing() -> None:
    """Ask the kernel for exact timers and high priority; a refusal costs only accuracy."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        print(f"no real-time priority ({error.strerror}): delays are less exact on a busy machine", file=sys.stderr)
