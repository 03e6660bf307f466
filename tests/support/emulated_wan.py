"""The lab's emulated wide-area network between nodes without a control plane."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lab.network import WAN_DEVICE, LabNetwork, create_network, remove_network
from lab.topology import LabNode, Link
from lab.wan.control import WanControl
from lab.wan.plan import WanNode, WanPlan, to_wan_link
from tests.support.unsupported import skip_if_unsupported

ROOT = Path(__file__).parents[2]


@contextmanager
def emulated_wan(
    folder: Path, zones: Mapping[str, str], links: Sequence[tuple[str, str, float]]
) -> Iterator[tuple[LabNetwork, WanControl]]:
    """An emulated WAN of nodes with these zones; ``links`` are pairs of zones with their round-trip time in µs.

    Skips the test if network namespaces cannot be created.
    """
    nodes = [LabNode(name, "r", zone, "1", "1Gi", "10", 10**9) for name, zone in zones.items()]
    network = skip_if_unsupported(lambda: create_network(nodes, folder))
    members = [WanNode(n.node.zone, n.netns, n.address, n.node.nic_bps) for n in network.node_networks]
    plan = WanPlan(WAN_DEVICE, 1, members, [to_wan_link(a, b, Link(rtt_us)) for a, b, rtt_us in links])
    (folder / "wan.json").write_bytes(msgspec.json.encode(plan))
    socket_path = folder / "wan.sock"
    argv = [sys.executable, "-m", "lab.wan", str(folder / "wan.json"), str(socket_path)]
    with subprocess.Popen(argv, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + 60
            while not socket_path.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield network, WanControl(socket_path)
        finally:
            process.terminate()
            process.wait(10)
            remove_network(folder)
