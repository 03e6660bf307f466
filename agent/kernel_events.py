"""Tells when the kernel changed links, routes or traffic control: a netlink socket of which only the message types are read.

Decoding every message would cost more than it tells, since a change is answered by a full read anyway. A burst of changes
overruns the socket (ENOBUFS, netlink(7)); what was lost is unknown then, so that counts as a change of everything.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable

from kubekit import logs

log = logs.get("agent.kernel")

LINK, TC, IPV4_ROUTE, IPV6_ROUTE = 0x1, 0x8, 0x40, 0x400
"""Multicast groups, RTMGRP_* in linux/rtnetlink.h."""

_HEADER = struct.Struct("=IHHII")
_LINK_TYPES = range(16, 20)
_ROUTE_TYPES = range(24, 28)
_TC_TYPES = range(36, 48)
_BUFFER_BYTES = 1 << 20
_MOST_READS = 64

Listener = Callable[[], None]


class KernelEvents:
    """Calls listeners when something of their kind changed.

    Attributes:
        overruns: how often the socket lost messages.
    """

    def __init__(self) -> None:
        self.overruns = 0
        self._links: list[Listener] = []
        self._shaping: list[Listener] = []

    def on_links(self, listener: Listener) -> None:
        """Tell about links and routes."""
        self._links.append(listener)

    def on_shaping(self, listener: Listener) -> None:
        """Tell about queueing disciplines and filters, and about links, which carry them."""
        self._shaping.append(listener)

    async def run(self) -> None:
        """Listen until cancelled. A kernel that lets nobody listen is polled by the others all the same."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE) as netlink:
            netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            try:
                netlink.bind((0, LINK | TC | IPV4_ROUTE | IPV6_ROUTE))
            except OSError as error:
                log.warning("cannot listen to the kernel, changes are seen by polling", error=error.strerror)
                await ended
            loop.add_reader(netlink, self._read, netlink, ended)
            try:
                await ended
            finally:
                loop.remove_reader(netlink)

    def _read(self, netlink: socket.socket, ended: asyncio.Future[None]) -> None:
        links = shaping = False
        for _ in range(_MOST_READS):
            try:
                data = netlink.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    if not ended.done():
                        ended.set_exception(error)
                    return
                self.overruns += 1
                links = shaping = True
                continue
            for kind in message_types(data):
                links = links or kind in _LINK_TYPES or kind in _ROUTE_TYPES
                shaping = shaping or kind in _LINK_TYPES or kind in _TC_TYPES
        for listener in (*(self._links if links else ()), *(self._shaping if shaping else ())):
            listener()


def message_types(data: bytes) -> list[int]:
    """The types of the netlink messages in a datagram (nlmsghdr, netlink(7)); a truncated one ends the list."""
    types: list[int] = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            break
        types.append(kind)
        offset += (length + 3) & ~3
    return types
