"""Bytes of packets between any two addresses, counted packet by packet on nodes with a real kubelet, by nftables.

It knows nothing of connections, agents or Services, so it can contradict them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from lab import namespaces
from lab.cluster import Lab
from lab.realnode.programs import NodePrograms

_COUNT_PAIRS = """
table ip truth {
  set pairs { type ipv4_addr . ipv4_addr; flags dynamic; counter; size 65535; }
  chain passing { type filter hook forward priority 10; add @pairs { ip saddr . ip daddr }
  }
}
"""


def on_node(netns: str, *command: str, **more: Any) -> str:
    """What a command prints in a node's network; it must succeed."""
    argv = [*namespaces.entering(netns), *command]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, **more)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def start_counting(programs: NodePrograms, netns: str) -> None:
    """On one node, from now on; what its pods send to each other on the same bridge does not pass."""
    _nft(programs, netns, "-f", "-", text=_COUNT_PAIRS)


def counted(lab: Lab, programs: NodePrograms) -> dict[tuple[str, str], int]:
    """Bytes of packets by source and destination address, as each node saw them pass; the greatest, since two nodes may see one."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for node in lab.nodes:
        listed = json.loads(_nft(programs, node.netns, "-j", "list", "set", "ip", "truth", "pairs"))
        (pairs,) = (item["set"] for item in listed["nftables"] if "set" in item)
        for element in pairs.get("elem", ()):
            ends = tuple(element["elem"]["val"]["concat"])
            found[ends] = max(found[ends], element["elem"]["counter"]["bytes"])
    return dict(found)


def rates_by_zone(
    first: Mapping[tuple[str, str], int],
    last: Mapping[tuple[str, str], int],
    took_s: float,
    zones: Mapping[str, str],
) -> tuple[float, float]:
    """Bytes per second across zones, and within them between nodes, from two counts; ``zones`` of the addresses that count."""
    passed = {True: 0.0, False: 0.0}
    for (source, destination), total in last.items():
        if source in zones and destination in zones:
            crosses = zones[source] != zones[destination]
            passed[crosses] += (total - first.get((source, destination), 0)) / took_s
    return passed[True], passed[False]


def _nft(programs: NodePrograms, netns: str, *words: str, text: str = "") -> str:
    environment = {**os.environ, **programs.debian.environment()}
    return on_node(netns, str(programs.debian.program("nft")), *words, input=text, env=environment)
