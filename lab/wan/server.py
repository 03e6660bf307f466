"""The process behind a lab's emulated network: ``python -m lab.wan PLAN SOCKET``.

Two networks stand behind the same plan and the same control socket: packets carried by this process between TUN devices, or
the kernel's netem on the nodes' own devices. Whoever asks the socket need not know which.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Protocol

import msgspec

from lab.wan.plan import USERSPACE, Answer, Command, WanLink, WanPlan

_CONTROL_TIMEOUT_S = 0.2
# A command is one small object, sent at once.
_COMMAND_BYTES = 4096


class Network(Protocol):
    """What carries the packets."""

    def change(self, link: WanLink) -> None:
        """Replace a link, both directions, while packets flow. Raises OSError when the kernel refuses."""

    def counters(self) -> Answer:
        """What happened to packets so far. Raises OSError when the kernel does not say."""

    def run(self, control: Control) -> None:
        """Work until the process is told to end; call ``control.serve()`` whenever ``control.fileno()`` is readable."""


class Control:
    """The control socket: answers one Command per connection."""

    def __init__(self, listener: socket.socket, plan: WanPlan, network: Network) -> None:
        self._listener, self._network = listener, network
        self._links = {(link.origin, link.destination): link for link in plan.links}

    def fileno(self) -> int:
        """Descriptor to wait on."""
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
            return self._network.counters()
        if command.op != "set" or command.link is None:
            return Answer(error=f"unknown command {command.op!r}")
        link = command.link
        key = link.origin, link.destination
        if key not in self._links:
            return Answer(error=f"there is no link between {link.origin} and {link.destination}")
        self._network.change(link)
        self._links[key] = link
        return Answer(links=[link])


def open_network(plan: WanPlan) -> Network:
    """The network that the plan asks for, ready to carry packets. Imported late: each has needs of its own."""
    if plan.backend == USERSPACE:
        from lab.wan.forwarder import Forwarder, be_punctual

        forwarder = Forwarder(plan)
        be_punctual()
        return forwarder
    from lab.wan.netem import NetemNetwork

    return NetemNetwork(plan)


def listen(path: Path) -> socket.socket:
    """The control socket. A relative path, since the whole path of a socket may not exceed 107 bytes."""
    path.unlink(missing_ok=True)
    os.chdir(path.parent)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(path.name)
    control.listen(8)
    return control


def main(argv: list[str]) -> int:
    """Run until SIGTERM; 2 on wrong usage."""
    if len(argv) != 2:
        print("usage: python -m lab.wan PLAN.json CONTROL.sock", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plan = msgspec.json.decode(Path(argv[0]).read_bytes(), type=WanPlan)
    socket_path = Path(argv[1]).absolute()
    draft = socket_path.with_suffix(".draft")
    listener = listen(draft)
    network = open_network(plan)
    # Whoever finds the socket finds a network that carries packets.
    draft.rename(socket_path)
    network.run(Control(listener, plan, network))
    return 0
