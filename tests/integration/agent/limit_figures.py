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

from agent.bandwidth.counters import read_tc_counters
from tests.integration.agent.pods_on_node import NodePod

GENERATOR = (sys.executable, str(Path(__file__).with_name("traffic.py")))
PORT = 7000
SECONDS = 3.0


@contextmanager
def running_generators(pod: NodePod) -> Iterator[None]:
    """Run traffic generators in the pod and on its node, which accept connections."""
    commands = pod.command(*GENERATOR, "serve", pod.address), [*pod.node, *GENERATOR, "serve", pod.host_address]
    with ExitStack() as stack:
        for command in commands:
            server = stack.enter_context(subprocess.Popen([*command, str(PORT)], stdout=subprocess.PIPE))
            stack.callback(server.kill)
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
        yield


def start_traffic(
    pod: NodePod, direction: str, mode: str, seconds: float, target: str = "", port: int = PORT
) -> subprocess.Popen[bytes]:
    """Start traffic from the node to the pod (ingress), or from the pod to its node or ``target`` (egress)."""
    target = target or (pod.address if direction == "ingress" else pod.host_address)
    command = [*GENERATOR, mode, target, str(port), str(seconds)]
    return subprocess.Popen(command if direction == "ingress" else pod.command(*command), stdout=subprocess.PIPE)


def finish_traffic(process: subprocess.Popen[bytes]) -> Any:
    """Wait for a generator; returns the result that it prints."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def measure_shares(pod: NodePod, direction: str, device: str, rate_bps: float) -> tuple[float, float]:
    """Share of the limit that passes the bucket of ``device``, with headers, in the first second and in `SECONDS`."""
    index = socket.if_nametoindex(device)

    def passed() -> int:
        return asyncio.run(read_tc_counters(())).bucket_bytes[index]

    before = passed()
    stream = start_traffic(pod, direction, "bulk", SECONDS + 0.5)
    # On a busy machine late readings make the shares smaller, never larger.
    began = now = time.monotonic()
    while passed() == before and stream.poll() is None:
        began = now
        time.sleep(0.001)
        now = time.monotonic()
    found = []
    for until_s in (1.0, SECONDS):
        time.sleep(max(0.0, began + until_s - time.monotonic()))
        found.append((passed() - before) * 8 / (time.monotonic() - began) / rate_bps)
    finish_traffic(stream)
    return found[0], found[1]


def measure_delay_s(pod: NodePod, direction: str) -> float:
    """99th percentile of the round-trip time of a byte while the queue is full, in seconds."""
    beside = start_traffic(pod, direction, "bulk", SECONDS)
    finish_traffic(start_traffic(pod, direction, "rr", 0.5))  # until the queue is full
    trips = sorted(finish_traffic(start_traffic(pod, direction, "rr", 1.5)))
    finish_traffic(beside)
    return float(trips[int(len(trips) * 0.99)])
