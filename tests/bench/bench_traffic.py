"""What counting traffic costs an agent's node with 100,000 connections: processor time of a round, memory, and what a flood of ends loses.

The connections are real entries of the kernel's table, UDP between two pods (namespaces) of a node that forwards. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack

from netperf.contract import TRAFFIC_SHARE, traffic_pause_s
from tests.integration.agent.pods_on_node import run
from tests.integration.agent.test_counting_traffic import counting, node, pod_on

SOURCES, TARGETS = 200, 500
DATAGRAM_BYTES = 29
_SEND = """
import socket, sys
for source in range(int(sys.argv[3])):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind((sys.argv[1], 10000 + source))
        for target in range(int(sys.argv[4])):
            end.sendto(b"x", (sys.argv[2], 20000 + target))
"""
# IPCTNL_MSG_CT_DELETE without a tuple: everything, and each end is told.
_FLUSH = """
import socket, struct
end = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
end.bind((0, 0))
end.send(struct.pack("=IHHII", 20, 0x102, 5, 1, 0) + struct.pack("=BBH", 2, 0, 0))
end.recv(99)
"""


def measure() -> dict[str, dict[str, object]]:
    """The figures by name."""
    if os.geteuid() != 0:
        print("bench traffic: needs root, skipped", file=sys.stderr)
        return {}
    with ExitStack() as stack:
        name = stack.enter_context(node())
        for setting in ("udp_timeout=600", "udp_timeout_stream=600"):
            run(f"ip netns exec {name} sysctl -qw net.netfilter.nf_conntrack_{setting}")
        web, cart = pod_on(stack, 221, name), pod_on(stack, 222, name)
        read = stack.enter_context(counting(name, {web.address: "web", cart.address: "cart"}))
        empty = read()
        sizes = [str(SOURCES), str(TARGETS)]
        subprocess.run(web.command(sys.executable, "-c", _SEND, web.address, cart.address, *sizes), check=True)
        rounds = [read() for _ in range(3)]
        full = rounds[-1]
        cost_s = sorted(one["cost_s"] for one in rounds)[1]
        subprocess.run(["ip", "netns", "exec", name, sys.executable, "-c", _FLUSH], check=True)
        time.sleep(2)
        read()
        time.sleep(0.1)
        counted = sum(total[3] for total in read()["totals"])
    connections = full["table"][2]
    pause_s = traffic_pause_s(cost_s)
    return {
        "traffic_round_cpu_s": _figure(round(cost_s, 3), "s", 1.0, f"{connections} connections; every {pause_s:.0f} s"),
        "traffic_cpu_share": _figure(
            round(cost_s / pause_s, 4), "core", TRAFFIC_SHARE * 1.001, "at the pauses that follow"
        ),
        "traffic_memory_mib": _figure(
            round((full["peak_kib"] - empty["peak_kib"]) / 1024, 1), "MiB", 8.0, "more than with an empty table"
        ),
        "traffic_bytes_kept": _figure(
            round(counted / (SOURCES * TARGETS * DATAGRAM_BYTES), 4),
            "share",
            None,
            "of all, after every connection ended at once",
        ),
    }


def _figure(value: float, unit: str, budget: float | None, reference: str) -> dict[str, object]:
    return {
        "value": value,
        "unit": unit,
        "budget": budget,
        "ok": budget is None or value <= budget,
        "reference": reference,
    }
