"""The lab's emulated wide-area network between nodes without a control plane."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
    folder: Path, zone_by_node: Mapping[str, str], links: Sequence[tuple[str, str, float]]
) -> Iterator[tuple[LabNetwork, WanControl]]:
    """An emulated WAN of nodes in zones; ``links`` are pairs of zones with their round-trip time in µs.

    Skips the test if network namespaces cannot be created.
    """
    size = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    nodes = [LabNode(name, region="r", zone=zone, **size, nic_bps=10**9) for name, zone in zone_by_node.items()]
    network = skip_if_unsupported(lambda: create_network(nodes, folder))
    plan_file, socket_path = folder / "wan.json", folder / "wan.sock"
    with ExitStack() as cleanup:
        cleanup.callback(remove_network, folder)
        plan = WanPlan(
            device=WAN_DEVICE,
            seed=1,
            nodes=[WanNode(n.node.zone, n.netns, n.address, n.node.nic_bps) for n in network.node_networks],
            links=[to_wan_link(zone, other_zone, Link(rtt_us)) for zone, other_zone, rtt_us in links],
        )
        plan_file.write_bytes(msgspec.json.encode(plan))
        forwarder = subprocess.Popen([sys.executable, "-m", "lab.wan", str(plan_file), str(socket_path)], cwd=ROOT)
        cleanup.callback(forwarder.wait, 10)
        cleanup.callback(forwarder.terminate)
        deadline_s = time.monotonic() + 60
        while not socket_path.exists():
            assert forwarder.poll() is None, "the forwarder ended"
            assert time.monotonic() < deadline_s, "the forwarder has no control socket"
            time.sleep(0.02)
        yield network, WanControl(socket_path)
