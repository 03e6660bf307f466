"""Sends traffic between pods, and measures the accuracy of a limit and the delay at it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent.bandwidth.annotations import Direction
from agent.bandwidth.counters import read_tc_counters
from tests.integration.agent.pods_on_node import NodePod

GENERATOR = (sys.executable, str(Path(__file__).with_name("traffic.py")))
PORT = 7000
DURATION_S = 3.0


@contextmanager
def running_generators(pod: NodePod) -> Iterator[None]:
    """Run servers of `traffic.py` in the pod and on its node."""
    commands = pod.make_command(*GENERATOR, "serve", pod.address), [*pod.node, *GENERATOR, "serve", pod.host_address]
    with ExitStack() as stack:
        for command in commands:
            server = stack.enter_context(subprocess.Popen([*command, str(PORT)], stdout=subprocess.PIPE))
            stack.callback(server.kill)
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
        yield


def start_traffic(
    pod: NodePod, direction: Direction, mode: str, seconds: float, target: str = "", port: int = PORT
) -> subprocess.Popen[bytes]:
    """Start traffic from the node to the pod (ingress), or from the pod to its node or ``target`` (egress); ``mode`` as in `traffic.py`."""
    target = target or (pod.address if direction == "ingress" else pod.host_address)
    command = [*GENERATOR, mode, target, str(port), str(seconds)]
    return subprocess.Popen(command if direction == "ingress" else pod.make_command(*command), stdout=subprocess.PIPE)


def finish_traffic(process: subprocess.Popen[bytes]) -> Any:
    """Wait for a generator; returns the result that it prints."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def measure_shares(pod: NodePod, direction: Direction, device: str, rate_bps: float) -> tuple[float, float]:
    """Share of the limit that passes the bucket of ``device``, with headers, in the first second and in `DURATION_S`."""
    index = socket.if_nametoindex(device)

    def read_passed_bytes() -> int:
        return asyncio.run(read_tc_counters(())).bucket_bytes[index]

    before = read_passed_bytes()
    stream = start_traffic(pod, direction, "bulk", DURATION_S + 0.5)
    # The start is the last reading before the first byte: on a busy machine the shares become smaller, never larger.
    started_at_s = now = time.monotonic()
    while read_passed_bytes() == before and stream.poll() is None:
        started_at_s = now
        time.sleep(0.001)
        now = time.monotonic()
    shares = []
    for until_s in (1.0, DURATION_S):
        time.sleep(max(0.0, started_at_s + until_s - time.monotonic()))
        shares.append((read_passed_bytes() - before) * 8 / (time.monotonic() - started_at_s) / rate_bps)
    finish_traffic(stream)
    return shares[0], shares[1]


def measure_delay_s(pod: NodePod, direction: Direction) -> float:
    """99th percentile of the round-trip time of a byte while the queue is full, in seconds."""
    bulk_stream = start_traffic(pod, direction, "bulk", DURATION_S)
    finish_traffic(start_traffic(pod, direction, "rr", 0.5))  # the queue fills meanwhile
    trips = sorted(finish_traffic(start_traffic(pod, direction, "rr", 1.5)))
    finish_traffic(bulk_stream)
    return float(trips[int(len(trips) * 0.99)])
