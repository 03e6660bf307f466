"""Waits for netlink events about links and traffic control.

Only the types of messages are read, because listeners read the full state. If the kernel drops messages, all listeners are called.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_NEWLINK, RTMGRP_LINK, RTMGRP_TC

from agent.netlink import iter_messages, listen
from kubekit import logs

log = logs.get("agent.kernel")

_LINK_TYPES = frozenset({RTM_NEWLINK, RTM_DELLINK})
_BUFFER_BYTES = 1 << 20  # for bursts, as when many pods start


class KernelEvents:
    """Calls listeners after changes of links or traffic control. Listeners must be quick, because each change calls them.

    Attributes:
        link_listeners: called after changes of links.
        tc_listeners: called after changes of queueing disciplines, filters and links.
    """

    def __init__(self) -> None:
        self.link_listeners: list[Callable[[], None]] = []
        self.tc_listeners: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Listen until cancelled. If listening fails, only wait, because other parts poll anyway."""
        try:
            await listen(socket.NETLINK_ROUTE, RTMGRP_LINK | RTMGRP_TC, _BUFFER_BYTES, self._notify_listeners)
        except OSError as error:
            log.warning("cannot listen to the kernel, changes are seen by polling", error=error.strerror)
            await asyncio.Event().wait()

    def _notify_listeners(self, data: bytes | None) -> None:
        may_concern_links = data is None or any(kind in _LINK_TYPES for kind, _, _ in iter_messages(data))
        for listener in [*self.tc_listeners, *(self.link_listeners if may_concern_links else ())]:
            listener()
