"""Opens netlink sockets, listens to multicast groups, and splits datagrams into messages.

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
"""Start of the body of NLMSG_ERROR and NLMSG_DONE: a negative errno, or 0."""
_MAX_DATAGRAM_BYTES = 1 << 16  # twice the kernel's largest
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; the socket module does not name it
_BATCH_SIZE = 64
"""Number of datagrams that are read before other tasks may run."""


class KernelError(KubekitError):
    """The kernel refused a request or did not answer in time, or the request could not be sent."""


def open_socket(protocol: int, groups: int = 0, *, buffer_bytes: int = 0) -> socket.socket:
    """Open a socket that does not block.

    Args:
        protocol: NETLINK_*.
        groups: mask of the multicast groups to join.
        buffer_bytes: size of the receive buffer, without CAP_NET_ADMIN at most net.core.rmem_max; 0 for the default.

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


async def listen(protocol: int, groups: int, buffer_bytes: int, on_datagram: Callable[[bytes | None], None]) -> None:
    """Call ``on_datagram`` with each datagram of multicast groups until cancelled, and with None after the kernel dropped some.

    The arguments are those of `open_socket`.

    Raises:
        OSError: the socket is not permitted, or cannot be used any more.
    """
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[None] = loop.create_future()

    def read_datagrams() -> None:
        for _ in range(_BATCH_SIZE):
            try:
                datagram: bytes | None = netlink.recv(_MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    if not failure.done():
                        failure.set_exception(error)
                    return
                datagram = None
            on_datagram(datagram)

    with open_socket(protocol, groups, buffer_bytes=buffer_bytes) as netlink:
        loop.add_reader(netlink, read_datagrams)
        try:
            await failure
        finally:
            loop.remove_reader(netlink)


def iter_messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the type of each message in a datagram, and where its body begins and ends. Stops at the first invalid message."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _, _, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield kind, offset + HEADER.size, min(offset + length, len(data))
        offset += align(length)


def align(length: int) -> int:
    """Round up to a multiple of four: NLMSG_ALIGN, NLA_ALIGN and RTNH_ALIGN."""
    return (length + 3) & ~3
