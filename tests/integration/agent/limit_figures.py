"""How exact a limit is from its first second, and how long a packet waits at it: by what the kernel counts at its bucket."""

from __future__ import annotations

import asyncio
import socket
import time

from agent.bandwidth.counters import read_kernel_counts
from tests.integration.agent.pods_on_node import NodePod
from tests.integration.agent.test_agent_limits import finish, start

SECONDS = 3.0


def shares(pod: NodePod, direction: str, device: str, rate_bps: float) -> tuple[float, float]:
    """What passed the bucket on ``device``, headers included, of the limit: in the first second, and in SECONDS, from the first packet on."""
    index = socket.if_nametoindex(device)

    def passed() -> int:
        return asyncio.run(read_kernel_counts(())).bucket_bytes[index]

    before = passed()
    stream = start(pod, direction, "bulk", SECONDS + 0.5)
    # It began after the last reading that saw nothing, and what is read passed before the clock is read: a busy machine, on which
    # readings are far apart, makes the shares less and never more.
    began = now = time.monotonic()
    while passed() == before and stream.poll() is None:
        began = now
        time.sleep(0.001)
        now = time.monotonic()
    found = []
    for until_s in (1.0, SECONDS):
        time.sleep(max(0.0, began + until_s - time.monotonic()))
        found.append((passed() - before) * 8 / (time.monotonic() - began) / rate_bps)
    finish(stream)
    return found[0], found[1]


def delay_s(pod: NodePod, direction: str) -> float:
    """The 99th percentile of a byte's way to and fro beside a full queue, in seconds."""
    beside = start(pod, direction, "bulk", SECONDS)
    finish(start(pod, direction, "rr", 0.5))  # until the flow fills the queue
    trips = sorted(finish(start(pod, direction, "rr", 1.5)))
    finish(beside)
    return float(trips[int(len(trips) * 0.99)])
