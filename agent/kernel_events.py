"""Waits for netlink events about links, routes and traffic control; reads only the message types.

Messages are not decoded, because a change causes a full read anyway. A burst may overrun the socket, which counts as a change of
everything.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import Callable

from pyroute2.netlink.rtnl import (
    RTM_DELROUTE,
    RTM_NEWROUTE,
    RTMGRP_IPV4_ROUTE,
    RTMGRP_IPV6_ROUTE,
    RTMGRP_LINK,
    RTMGRP_TC,
)

from agent.netlink import HEADER, each_datagram, each_message, follow, open_netlink
from kubekit import logs

log = logs.get("agent.kernel")

_GROUPS = RTMGRP_LINK | RTMGRP_TC | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE
_LINK_TYPES = range(16, 20)
_ROUTE_TYPES = range(24, 28)
_TC_TYPES = range(36, 48)
_SO_ATTACH_FILTER = 26
_BUFFER_BYTES = 1 << 20

Listener = Callable[[], None]


class KernelEvents:
    """Calls listeners when something of their kind changed.

    Attributes:
        overruns: how often the socket lost messages.
    """

    def __init__(self) -> None:
        self.overruns = 0
        self._links: list[Listener] = []
        self._routes: list[Listener] = []
        self._shaping: list[Listener] = []

    def on_links(self, listener: Listener) -> None:
        """Call ``listener`` after changes of links."""
        self._links.append(listener)

    def on_default_routes(self, listener: Listener) -> None:
        """Call ``listener`` after changes of default routes; the kernel drops messages about all other routes."""
        self._routes.append(listener)

    def on_shaping(self, listener: Listener) -> None:
        """Call ``listener`` after changes of queueing disciplines, filters and links."""
        self._shaping.append(listener)

    async def run(self) -> None:
        """Listen until cancelled. If listening is not permitted, it only waits, because other parts poll anyway."""
        try:
            netlink = open_netlink(socket.NETLINK_ROUTE, _GROUPS)
        except OSError as error:
            log.warning("cannot listen to the kernel, changes are seen by polling", error=error.strerror)
            await asyncio.Event().wait()
            return
        with netlink:
            netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            _attach_route_filter(netlink)
            await follow(netlink, self._read)

    def _read(self, netlink: socket.socket) -> None:
        links = routes = shaping = False
        for data in each_datagram(netlink):
            if data is None:
                self.overruns += 1
                links = routes = shaping = True
                continue
            for kind, _, _ in each_message(data):
                links = links or kind in _LINK_TYPES
                routes = routes or kind in _ROUTE_TYPES
                shaping = shaping or kind in _LINK_TYPES or kind in _TC_TYPES
        listeners_by_kind = (
            self._routes if routes else (),
            self._links if links else (),
            self._shaping if shaping else (),
        )
        for listener in (one for listeners in listeners_by_kind for one in listeners):
            listener()


def _attach_route_filter(netlink: socket.socket) -> None:
    """Make the kernel drop changes of other than default routes; a node may have 20,000 routes.

    Classic BPF (linux/filter.h) over one message: the low byte of nlmsg_type, then rtm_dst_len behind the header.
    """
    load_byte, jump_if_equal, return_ = 0x30, 0x15, 0x06
    type_at = 4 if sys.byteorder == "little" else 5
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load_byte, 0, 0, type_at),
            (jump_if_equal, 1, 0, RTM_NEWROUTE),
            (jump_if_equal, 0, 2, RTM_DELROUTE),
            (load_byte, 0, 0, HEADER.size + 1),
            (jump_if_equal, 0, 1, 0),
            (return_, 0, 0, 0xFFFFFFFF),
            (return_, 0, 0, 0),
        )
    )
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    netlink.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
