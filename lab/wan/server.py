"""Server of the control socket: answers requests for links and counters of the emulated network, and changes links."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from lab.wan.plan import Command, Reply, WanLink, WanPlan

_CONTROL_TIMEOUT_S = 0.2
# A command is one small object, sent at once.
_COMMAND_BYTES = 4096


class Control:
    """Answers one Command per connection.

    Args:
        listener: the listening socket.
        plan: plan of the network.
        change: replaces a link in both directions.
        counters: returns the counts of packets.
    """

    def __init__(
        self,
        listener: socket.socket,
        plan: WanPlan,
        change: Callable[[WanLink], None],
        counters: Callable[[], Reply],
    ) -> None:
        self._listener, self._change, self._counters = listener, change, counters
        self._links = {(link.origin, link.destination): link for link in plan.links}

    def fileno(self) -> int:
        """Descriptor for polling."""
        return self._listener.fileno()

    def serve_client(self) -> None:
        """Answer the next waiting client."""
        connection, _ = self._listener.accept()
        with connection:
            # A silent client must not stop the traffic for long.
            connection.settimeout(_CONTROL_TIMEOUT_S)
            try:
                reply = self._execute(msgspec.json.decode(connection.recv(_COMMAND_BYTES), type=Command))
            except (OSError, msgspec.DecodeError) as error:
                reply = Reply(error=str(error))
            try:
                connection.sendall(msgspec.json.encode(reply))
            except OSError as error:
                print(f"control: client left: {error}", file=sys.stderr, flush=True)

    def _execute(self, command: Command) -> Reply:
        if command.op == "links":
            return Reply(links=list(self._links.values()))
        if command.op == "counters":
            return self._counters()
        if command.op != "set" or command.link is None:
            return Reply(error=f"unknown command {command.op!r}")
        link = command.link
        key = link.origin, link.destination
        if key not in self._links:
            return Reply(error=f"there is no link between {link.origin} and {link.destination}")
        self._change(link)
        self._links[key] = link
        return Reply(links=[link])


def listen(path: Path) -> socket.socket:
    """Create the listening socket. Changes the working directory, because the path of a socket has at most 107 bytes."""
    path.unlink(missing_ok=True)
    os.chdir(path.parent)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(path.name)
    control.listen(8)
    return control
