"""Waits for netlink events about links and traffic control.

Only the types of messages are read, because listeners read the full state. If the socket loses messages, all listeners are called.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_NEWLINK, RTMGRP_LINK, RTMGRP_TC

from agent.netlink import iter_datagrams, iter_messages, open_socket, read_forever
from kubekit import logs

log = logs.get("agent.kernel")

_LINK_TYPES = frozenset({RTM_NEWLINK, RTM_DELLINK})
_BUFFER_BYTES = 1 << 20

Listener = Callable[[], None]


class KernelEvents:
    """Calls listeners after changes of links or traffic control.

    Attributes:
        link_listeners: called after changes of links.
        tc_listeners: called after changes of queueing disciplines, filters and links.
        overruns: number of times that the socket lost messages.
    """

    def __init__(self) -> None:
        self.overruns = 0
        self.link_listeners: list[Listener] = []
        self.tc_listeners: list[Listener] = []

    async def run(self) -> None:
        """Listen until cancelled. If listening is not permitted, only wait, because other parts poll anyway."""
        try:
            netlink = open_socket(socket.NETLINK_ROUTE, RTMGRP_LINK | RTMGRP_TC, buffer_bytes=_BUFFER_BYTES)
        except OSError as error:
            log.warning("cannot listen to the kernel, changes are seen by polling", error=error.strerror)
            await asyncio.Event().wait()
            return
        with netlink:
            await read_forever(netlink, self._notify_listeners)

    def _notify_listeners(self, netlink: socket.socket) -> None:
        listeners: dict[Listener, None] = {}
        for data in iter_datagrams(netlink):
            listeners |= dict.fromkeys(self.tc_listeners)
            if data is None:
                self.overruns += 1
            if data is None or any(kind in _LINK_TYPES for kind, _, _ in iter_messages(data)):
                listeners |= dict.fromkeys(self.link_listeners)
        for listener in listeners:
            listener()
