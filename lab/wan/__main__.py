"""``python -m lab.wan PLAN SOCKET``: the process that emulates the network. The lab starts it; users call ``python -m lab wan``."""

import signal
import sys
from pathlib import Path

import msgspec

from lab.wan.forwarder import Forwarder, request_exact_timing
from lab.wan.plan import WanPlan
from lab.wan.server import ControlServer, create_listener


def main(plan_file: Path, socket_path: Path) -> None:
    """Run until SIGTERM; both paths are absolute."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plan = msgspec.json.decode(plan_file.read_bytes(), type=WanPlan)
    temporary_path = socket_path.with_suffix(".draft")
    listener = create_listener(temporary_path)
    forwarder = Forwarder(plan)
    request_exact_timing()
    # The lab waits for this file, so it appears when the network can carry packets.
    temporary_path.rename(socket_path)
    forwarder.run(ControlServer(listener, plan, forwarder.set_link))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
