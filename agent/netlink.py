"""Netlink event sockets, and errors of kernel requests.

A reader that cannot keep up loses messages, and gets the error ENOBUFS (netlink(7)).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterator

from kubekit.errors import KubekitError

HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, port."""
_READ_BYTES = 1 << 16
_MAX_READS = 64


class KernelError(KubekitError):
    """The kernel refused a request, or could not be asked.

    Attributes:
        code: errno, or 0.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def open_netlink(protocol: int, groups: int = 0) -> socket.socket:
    """A socket that does not block, subscribed to groups.

    Raises:
        OSError: it is not permitted.
    """
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    netlink = socket.socket(socket.AF_NETLINK, kind, protocol)
    try:
        netlink.bind((0, groups))
    except OSError:
        netlink.close()
        raise
    return netlink


async def call_when_readable(netlink: socket.socket, read: Callable[[socket.socket], None]) -> None:
    """Call ``read`` whenever the socket is readable, until cancelled.

    Raises:
        OSError: ``read`` raised it.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        try:
            read(netlink)
        except OSError as error:
            if not failed.done():
                failed.set_exception(error)

    loop.add_reader(netlink, ready)
    try:
        await failed
    finally:
        loop.remove_reader(netlink)


def each_datagram(netlink: socket.socket) -> Iterator[bytes | None]:
    """Datagrams that have arrived, a bounded number; None if the kernel dropped some.

    Raises:
        OSError: the socket cannot be used any more.
    """
    for _ in range(_MAX_READS):
        try:
            yield netlink.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            yield None


def each_message(data: bytes) -> Iterator[tuple[int, int, int]]:
    """For each message in a datagram: its type, and the offsets where its body begins and ends. Stops at the first invalid message."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _, _, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield kind, offset + HEADER.size, min(offset + length, len(data))
        offset += (length + 3) & ~3
