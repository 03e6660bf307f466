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

import msgspec

from lab.wan.plan import USERSPACE, WanPlan
from lab.wan.serving import Control, Network


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
