"""How exact a limit is from its first second, and how long a packet waits at it: by what the kernel counts at its bucket.

As a program it measures a pod whose limits somebody else has set, such as an agent on a real node: run it in the network namespace of
the pod's node, with the pod's file in ``/run/netns``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from pathlib import Path

from agent.bandwidth.counters import read_kernel_counts
from tests.integration.agent.pods_on_node import NodePod
from tests.integration.agent.test_agent_limits import finish, serving, start

SECONDS = 3.0
USED_UP = 0.9


def shares(pod: NodePod, direction: str, device: str, rate_bps: float) -> tuple[float, float]:
    """What passed the bucket on ``device``, headers included, of the limit: in the first second, and in SECONDS, from the first packet on."""
    index = socket.if_nametoindex(device)

    def passed() -> int:
        return asyncio.run(read_kernel_counts(())).buckets[index].sent_bytes

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


def main() -> None:
    """Print one JSON object: by direction the shares of some runs, and the queueing delay in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True, help="the pod's, in /run/netns")
    parser.add_argument("--address", required=True, help="the pod's")
    parser.add_argument("--host-address", required=True, help="the node's")
    parser.add_argument("--device", required=True, action="append", help="direction=device that has the bucket")
    parser.add_argument("--rate", required=True, type=float, help="bits per second")
    parser.add_argument(
        "--runs", default=1, type=int, help="streams in each direction at most, until one used the limit up"
    )
    args = parser.parse_args()
    pod = NodePod(args.namespace, args.host_address, args.address, args.namespace, "", Path(), "")
    found = {}
    with serving(pod):
        for direction, device in (text.split("=", 1) for text in args.device):
            runs: list[tuple[float, float]] = []
            while len(runs) < args.runs and not (runs and min(runs[-1]) >= USED_UP):
                runs.append(shares(pod, direction, device, args.rate))
            found[direction] = {"shares": runs, "delay_s": delay_s(pod, direction)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
