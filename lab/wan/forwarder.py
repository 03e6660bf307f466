"""The process that carries packets between the nodes' TUN devices: ``python -m lab.wan PLAN SOCKET``.

Accuracy comes from three things: select() waits in microseconds where epoll rounds to milliseconds, the timer slack is
set to its minimum, and a real-time priority, where allowed, lets it run the moment a packet is due even on a busy machine.
It sleeps whenever no packet is under way.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from lab import namespaces
from lab.wan.delays import DelayQueue
from lab.wan.plan import Answer, Command, WanLink, WanPlan

# linux/if_tun.h, prctl.h and sockios.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_PR_SET_TIMERSLACK = 29
_SIOCETHTOOL = 0x8946
_READ_BYTES = 2048
_BATCH = 64
# A command is one small object, sent at once.
_COMMAND_BYTES = 4096
_IDLE_S = 60.0
_CONTROL_TIMEOUT_S = 0.2
_libc = ctypes.CDLL(None, use_errno=True)


class Forwarder:
    """Devices, packets under way, and the control socket, in one loop."""

    def __init__(self, plan: WanPlan, control: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._control = clock, control
        self._links = {(link.origin, link.destination): link for link in plan.links}
        both = {(a, b): link.one_way() for (x, y), link in self._links.items() for a, b in ((x, y), (y, x))}
        self._queue = DelayQueue([node.site for node in plan.nodes], both, Random(plan.seed))
        self._devices = [open_device(node.netns, plan.device, node.nic_bps) for node in plan.nodes]
        self._node_of_device = {fd: index for index, fd in enumerate(self._devices)}
        self._node_of_address = {socket.inet_aton(node.address): index for index, node in enumerate(plan.nodes)}
        self._poll = select.epoll()
        for fd in (*self._devices, control.fileno()):
            self._poll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        """Forward until the process is told to end."""
        queue, clock, poll = self._queue, self._clock, self._poll
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
                        self._serve()

    def _collect(self, fd: int) -> None:
        source, now_s = self._node_of_device[fd], self._clock()
        for _ in range(_BATCH):
            try:
                packet = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            # Bytes 16 to 19 of an IPv4 header are the destination; what is not for a node has no way to go.
            target = self._node_of_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is not None:
                self._queue.accept(now_s, source, target, packet)

    def _deliver(self, due: list[tuple[int, bytes]]) -> None:
        for target, packet in due:
            try:
                os.write(self._devices[target], packet)
            except OSError:
                # A full queue or a device that is down drops the packet, as a real card would.
                self._queue.counters.dropped += 1

    def _serve(self) -> None:
        connection, _ = self._control.accept()
        with connection:
            # A client that connects and says nothing must not stop the traffic for long.
            connection.settimeout(_CONTROL_TIMEOUT_S)
            try:
                answer = self._answer(msgspec.json.decode(connection.recv(_COMMAND_BYTES), type=Command))
            except (OSError, msgspec.DecodeError) as error:
                answer = Answer(error=str(error))
            try:
                connection.sendall(msgspec.json.encode(answer))
            except OSError as error:
                print(f"control: client left: {error}", file=sys.stderr, flush=True)

    def _answer(self, command: Command) -> Answer:
        if command.op == "links":
            return Answer(links=list(self._links.values()))
        if command.op == "counters":
            c = self._queue.counters
            answer = Answer(forwarded=c.forwarded, lost=c.lost, dropped=c.dropped, late_us=c.late_s * 1e6)
            c.late_s = 0.0
            return answer
        if command.op == "set" and command.link is not None:
            return self._change(command.link)
        return Answer(error=f"unknown command {command.op!r}")

    def _change(self, link: WanLink) -> Answer:
        key = link.origin, link.destination
        if key not in self._links:
            return Answer(error=f"there is no link between {link.origin} and {link.destination}")
        self._links[key] = link
        self._queue.set_link(link.origin, link.destination, link.one_way())
        self._queue.set_link(link.destination, link.origin, link.one_way())
        return Answer(links=[link])


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


def be_punctual() -> None:
    """Ask the kernel for exact timers and to be run first; what it refuses costs accuracy, nothing else."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        print(f"no real-time priority ({error.strerror}): delays are less exact on a busy machine", file=sys.stderr)


def listen(path: Path) -> socket.socket:
    """The control socket. A relative path, since the whole path of a socket may not exceed 107 bytes."""
    path.unlink(missing_ok=True)
    os.chdir(path.parent)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(path.name)
    control.listen(8)
    return control


def main(argv: list[str]) -> int:
    """Run until SIGTERM; 2 on wrong usage."""
    if len(argv) != 2:
        print("usage: python -m lab.wan PLAN.json CONTROL.sock", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plan = msgspec.json.decode(Path(argv[0]).read_bytes(), type=WanPlan)
    socket_path = Path(argv[1]).absolute()
    draft = socket_path.with_suffix(".draft")
    control = listen(draft)
    forwarder = Forwarder(plan, control)
    be_punctual()
    # Whoever finds the socket finds a network that carries packets.
    draft.rename(socket_path)
    forwarder.run()
    return 0
