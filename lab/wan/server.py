"""The control socket of a lab's emulated network: shows and changes links while packets flow."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from lab.wan.plan import Answer, Command, WanLink, WanPlan

_CONTROL_TIMEOUT_S = 0.2
# A command is one small object, sent at once.
_COMMAND_BYTES = 4096


class Control:
    """The control socket: answers one Command per connection.

    Args:
        listener: the socket.
        plan: of the network.
        change: replaces a link, both directions, while packets flow.
        counters: returns counts of packets so far.
    """

    def __init__(
        self,
        listener: socket.socket,
        plan: WanPlan,
        change: Callable[[WanLink], None],
        counters: Callable[[], Answer],
    ) -> None:
        self._listener, self._change, self._counters = listener, change, counters
        self._links = {(link.origin, link.destination): link for link in plan.links}

    def fileno(self) -> int:
        """Descriptor for polling."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Answer the client that waits."""
        connection, _ = self._listener.accept()
        with connection:
            # A client that connects and says nothing must not stop the traffic for long.
            connection.settimeout(_CONTROL_TIMEOUT_S)
            try:
                answer = self._answer(msgspec.json.decode(connection.recv(_COMMAND_BYTES), type=Command))
            except (OSError, msgspec.DecodeError) as error:
                answer = Answer(error=str(error))
            try:
                connection.sendall(msgspec.json.encode(answer))
            except OSError as error:
                print(f"control: client left: {error}", file=sys.stderr, flush=True)

    def _answer(self, command: Command) -> Answer:
        if command.op == "links":
            return Answer(links=list(self._links.values()))
        if command.op == "counters":
            return self._counters()
        if command.op != "set" or command.link is None:
            return Answer(error=f"unknown command {command.op!r}")
        link = command.link
        key = link.origin, link.destination
        if key not in self._links:
            return Answer(error=f"there is no link between {link.origin} and {link.destination}")
        self._change(link)
        self._links[key] = link
        return Answer(links=[link])


def listen(path: Path) -> socket.socket:
    """The control socket. A relative path, since the whole path of a socket may not exceed 107 bytes."""
    path.unlink(missing_ok=True)
    os.chdir(path.parent)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(path.name)
    control.listen(8)
    return control
