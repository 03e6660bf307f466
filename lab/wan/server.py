"""Server of the control socket: answers requests for the links of the emulated network, and changes them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from lab.wan.plan import Command, Reply, WanLink, WanPlan

_CLIENT_TIMEOUT_S = 0.2
# More than the largest command, which a client sends at once.
_COMMAND_BYTES = 4096


class ControlServer:
    """Answers one `Command` per connection; ``set_link`` replaces a link in both directions."""

    def __init__(self, listener: socket.socket, plan: WanPlan, set_link: Callable[[WanLink], None]) -> None:
        self._listener, self._set_link = listener, set_link
        self._links = {(link.origin, link.destination): link for link in plan.links}

    def fileno(self) -> int:
        """The listener's descriptor, for `select`."""
        return self._listener.fileno()

    def serve_client(self) -> None:
        """Answer the next waiting client."""
        connection, _ = self._listener.accept()
        with connection:
            # A client that sends nothing must not stop the traffic for long.
            connection.settimeout(_CLIENT_TIMEOUT_S)
            try:
                reply = self._execute(msgspec.json.decode(connection.recv(_COMMAND_BYTES), type=Command))
            except (OSError, msgspec.DecodeError) as error:
                reply = Reply(error=str(error))
            try:
                connection.sendall(msgspec.json.encode(reply))
            except OSError as error:
                print(f"control socket: the client has left: {error}", file=sys.stderr, flush=True)

    def _execute(self, command: Command) -> Reply:
        """Refuses a link whose zones are not in bytewise order, as an unknown one."""
        if command.link is None:
            return Reply(links=list(self._links.values()))
        link = command.link
        key = link.origin, link.destination
        if key not in self._links:
            return Reply(error=f"there is no link between {link.origin} and {link.destination}")
        self._set_link(link)
        self._links[key] = link
        return Reply(links=[link])


def create_listener(path: Path) -> socket.socket:
    """Create the listening socket. Changes the working directory, because the path of a socket has at most 107 bytes."""
    path.unlink(missing_ok=True)
    os.chdir(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path.name)
    listener.listen(8)
    return listener
