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
ATTRIBUTE = struct.Struct("=HH")
"""struct nlattr: length, type."""
ERRNO = struct.Struct("=i")
"""Begin of the body of NLMSG_ERROR and NLMSG_DONE: a negative errno, or 0."""
_READ_BYTES = 1 << 16
_SO_RCVBUFFORCE = 33
_MAX_READS = 64


class KernelError(KubekitError):
    """The kernel refused a request, or the request could not be sent.

    Attributes:
        code: errno; 0 if there is none.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def open_socket(protocol: int, groups: int = 0, *, buffer_bytes: int = 0) -> socket.socket:
    """Open a socket that does not block, subscribed to a mask of multicast groups.

    ``buffer_bytes`` is the size of its receive buffer, without CAP_NET_ADMIN at most net.core.rmem_max; 0 for the default.

    Raises:
        OSError: the socket is not permitted.
    """
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    netlink = socket.socket(socket.AF_NETLINK, kind, protocol)
    try:
        if buffer_bytes:
            try:
                netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
            except PermissionError:
                netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        netlink.bind((0, groups))
    except OSError:
        netlink.close()
        raise
    return netlink


async def read_forever(netlink: socket.socket, read: Callable[[socket.socket], None]) -> None:
    """Call ``read`` whenever the socket is readable, until cancelled.

    Raises:
        OSError: ``read`` raised it.
    """
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        try:
            read(netlink)
        except OSError as error:
            if not failure.done():
                failure.set_exception(error)

    loop.add_reader(netlink, on_readable)
    try:
        await failure
    finally:
        loop.remove_reader(netlink)


def each_datagram(netlink: socket.socket) -> Iterator[bytes | None]:
    """Yields the datagrams that have arrived, at most `_MAX_READS`; None in place of datagrams that the kernel dropped.

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
    """Yields type, begin and end of the body of each message in a datagram. Stops at the first invalid message."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _, _, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield kind, offset + HEADER.size, min(offset + length, len(data))
        offset += aligned(length)


def aligned(length: int) -> int:
    """The length rounded up to a multiple of four: NLMSG_ALIGN, NLA_ALIGN and RTNH_ALIGN."""
    return (length + 3) & ~3
