"""Waits for netlink events about links and traffic control; reads only the message types.

Messages are not decoded, because a change causes a full read anyway. A burst may overrun the socket, which is treated as a change of
every kind.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from pyroute2.netlink.rtnl import RTMGRP_LINK, RTMGRP_TC

from agent.netlink import call_when_readable, each_datagram, each_message, open_netlink
from kubekit import logs

log = logs.get("agent.kernel")

_LINK_TYPES = range(16, 20)
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
        self._tc: list[Listener] = []

    def on_links(self, listener: Listener) -> None:
        """Call ``listener`` after changes of links."""
        self._links.append(listener)

    def on_tc_change(self, listener: Listener) -> None:
        """Call ``listener`` after changes of queueing disciplines, filters and links."""
        self._tc.append(listener)

    async def run(self) -> None:
        """Listen until cancelled. If listening is not permitted, it only waits, because other parts poll anyway."""
        try:
            netlink = open_netlink(socket.NETLINK_ROUTE, RTMGRP_LINK | RTMGRP_TC)
        except OSError as error:
            log.warning("cannot listen to the kernel, changes are seen by polling", error=error.strerror)
            await asyncio.Event().wait()
            return
        with netlink:
            netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            await call_when_readable(netlink, self._read)

    def _read(self, netlink: socket.socket) -> None:
        links = tc = False
        for data in each_datagram(netlink):
            tc = True
            if data is None:
                self.overruns += 1
                links = True
            else:
                links = links or any(kind in _LINK_TYPES for kind, _, _ in each_message(data))
        for listener in (*(self._links if links else ()), *(self._tc if tc else ())):
            listener()
