"""UDP sockets with kernel receive timestamps (SO_TIMESTAMPNS, Documentation/networking/timestamping.rst).

The kernel takes the timestamp when a packet arrives; a program on a busy machine reads the packet milliseconds later.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from typing import Any

SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; the socket module does not name it before Python 3.14."""
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_READ_BYTES = 2048  # more than any valid datagram, so that a longer one is not taken for it
MAX_BATCH = 64
"""Maximum number of datagrams to read at a time, so that a flood does not block the event loop."""


def now_ns() -> int:
    """The clock of the kernel's timestamps, nanoseconds since 1970."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def open_udp(address: str, port: int = 0) -> socket.socket:
    """A non-blocking UDP socket that is bound to a literal address, with timestamps if the kernel supports them.

    Raises:
        OSError: the address is not one of this node, or the port is in use.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    udp = socket.socket(family, socket.SOCK_DGRAM)
    try:
        udp.setblocking(False)  # noqa: FBT003  the name of the argument is not part of the socket interface
        with suppress(OSError):  # the function receive() then reads the clock
            udp.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        udp.bind((address, port))
    except OSError:
        udp.close()
        raise
    return udp


def receive(udp: socket.socket) -> tuple[bytes, int, Any]:
    """The next datagram, its time of arrival (nanoseconds since 1970), and its sender.

    Raises:
        BlockingIOError: there is no datagram.
        OSError: for example, there was an ICMP error for an earlier datagram.
    """
    data, ancillary, _, peer = udp.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(value)
            return data, seconds * 10**9 + nanoseconds, peer
    return data, now_ns(), peer
