"""The extender's time per pod: filter and prioritize over HTTP on loopback, beside the least that any extender needs.

The service runs in a process of its own; the cluster in it is made up (nodes in 40 zones, the Online Boutique with 10 of its
11 pods placed), the requests are those of a kube-scheduler. The floor is msgspec alone: decode and encode the same JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client import CollectorRegistry

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.state import State
from kubekit.http import Server
from kubekit.runtime import compact_memory
from tests.bench.figures import Figures, figure
from tests.support.bodies import random_weight
from tests.unit.controller.scheduling import node, pod, state_with, topology_of

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "online-boutique" / "appgroup.yaml"
NODES = 10_000
ZONES, REGIONS = 40, 4
ROUNDS = 60
MEDIAN_BUDGET_MS, FLOOR_BUDGET = 5.0, 6.0
REFERENCE = "upstream Go plugin, same machine kind, 10,000 nodes: 76 + 14 + 21 = 110 ms"


def node_name(i: int) -> str:
    return f"node-{i:05d}.example"


def zone_of(i: int) -> tuple[str, str]:
    zone = i % ZONES
    return f"region-{zone % REGIONS}", f"zone-{zone:02d}"


def made_up_cluster(size: int) -> State:
    nodes = [node(node_name(i), *zone_of(i), cpu="8") for i in range(size)]
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["namespace"] = "default"
    weight = random_weight([f"zone-{z:02d}" for z in range(ZONES)], [f"region-{r}" for r in range(REGIONS)])
    pods = [pod(f"P{i}", node_name(i * 7 % size), name=f"p{i}", group="online-boutique") for i in range(2, 12)]
    return state_with(SchedulerConfig(), *nodes, msgspec.convert(document, AppGroup), topology_of(weight), *pods)


def serve(size: int, pipe: Connection) -> None:
    """The service's process: send the port, serve until the pipe closes."""

    async def main() -> None:
        registry = CollectorRegistry()
        server = Server("127.0.0.1:0", registry=registry)
        config = SchedulerConfig()
        Extender(made_up_cluster(size), config, ExtenderMetrics(registry), lambda: "").add_routes(server.app)
        async with server.running() as address:
            compact_memory()
            pipe.send(int(address.rpartition(":")[2]))
            await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)

    asyncio.run(main())


class Caller:
    """A keep-alive connection that posts JSON as Go's client does: the body in one write, the answer by its length."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(8 << 20)
        self._view = memoryview(self._buffer)

    def post(self, path: str, body: bytes) -> memoryview:
        """The answer's body; good until the next call."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        have = 0
        while (end := self._buffer.find(b"\r\n\r\n", 0, have)) < 0:
            have += self._receive(have)
        headers = self._buffer[:end].decode().lower()
        if not headers.startswith("http/1.1 200"):
            raise RuntimeError(headers)
        whole = end + 4 + int(headers.split("content-length:")[1].split("\r\n")[0])
        while have < whole:
            have += self._receive(have)
        return self._view[end + 4 : whole]

    def _receive(self, have: int) -> int:
        count = self._socket.recv_into(self._view[have:])
        if not count:
            raise ConnectionError("the service closed the connection")
        return count

    def close(self) -> None:
        self._socket.close()


def in_order_of_workers(size: int, rng: random.Random, workers: int = 16) -> list[str]:
    """All nodes as kube-scheduler lists them: from a rotating start, found by 16 workers that take chunks of √n nodes."""
    start, chunk = rng.randrange(size), max(int(size**0.5), 1)
    todo = [range(begin, min(begin + chunk, size)) for begin in range(0, size, chunk)]
    found: list[str] = []
    busy = [iter(part) for part in todo[:workers]]
    waiting = iter(todo[workers:])
    while busy:
        at = rng.randrange(len(busy))
        number = next(busy[at], None)
        if number is not None:
            found.append(node_name((start + number) % size))
        elif (part := next(waiting, None)) is not None:
            busy[at] = iter(part)
        else:
            busy.pop(at)
    return found


def questions(size: int) -> Callable[[], tuple[dict[str, Any], list[str]]]:
    """Requests as kube-scheduler sends them: each pod new, the nodes in another order each time."""
    rng, count = random.Random(2), 0
    labels = {APPGROUP_LABEL: "online-boutique", WORKLOAD_LABEL: "P1", "app": "frontend"}
    containers = [{"name": "server", "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]
    spec = {"schedulerName": "network-aware-scheduler", "containers": containers, "serviceAccountName": "default"}

    def next_question() -> tuple[dict[str, Any], list[str]]:
        nonlocal count
        count += 1
        names = in_order_of_workers(size, rng)
        metadata = {"name": f"p1-{count}", "namespace": "default", "uid": f"uid-{count}", "labels": labels}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}, names

    return next_question


class _Answer(msgspec.Struct):
    nodenames: list[str]
    failedAndUnresolvableNodes: dict[str, str]  # noqa: N815 - the wire's name


class _Entry(msgspec.Struct):
    host: str
    score: int


class _Asked(msgspec.Struct):
    NodeNames: list[str]


def floor_s(messages: list[tuple[bytes, Any]]) -> float:
    """Seconds to decode each request and to encode each answer, given as bytes and as the type to read it by."""
    kinds = [_Asked, _Asked]
    answers = [msgspec.json.decode(answer, type=kind) for answer, kind in messages[2:]]
    decoders = [msgspec.json.Decoder(kind) for kind in kinds]
    encode = msgspec.json.Encoder().encode
    started = time.perf_counter()
    for decoder, (body, _) in zip(decoders, messages[:2], strict=True):
        decoder.decode(body)
    for answer in answers:
        encode(answer)
    return time.perf_counter() - started


def measure_size(size: int) -> tuple[float, float, float, float]:
    """Median and 99th percentile of filter + prioritize, the floor's median, and the share of nodes refused."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(size, theirs), daemon=True)
    process.start()
    try:
        caller, ask = Caller(ours.recv()), questions(size)
        took, floors, refused = [], [], 0.0
        for turn in range(ROUNDS + 5):
            pod, names = ask()
            body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()
            started = time.perf_counter()
            reply = caller.post("/filter", body)
            filtered_s = time.perf_counter() - started
            answer = bytes(reply)
            kept = msgspec.json.decode(answer, type=_Answer).nodenames
            second = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": kept}, separators=(",", ":")).encode()
            started = time.perf_counter()
            reply = caller.post("/prioritize", second)
            total_s = filtered_s + time.perf_counter() - started
            scores = bytes(reply)
            if turn >= 5:
                took.append(total_s)
                floors.append(floor_s([(body, None), (second, None), (answer, _Answer), (scores, list[_Entry])]))
            refused = 1 - len(kept) / size
        caller.close()
    finally:
        ours.close()
        process.terminate()
        process.join()
    return statistics.median(took), sorted(took)[int(len(took) * 0.99)], statistics.median(floors), refused


def measure() -> Figures:
    """Figures for `make bench`."""
    median_s, p99_s, floor, refused = measure_size(NODES)
    told = f"{REFERENCE}; {refused:.0%} of the nodes are refused here"
    return {
        "extender_10000_nodes_median": figure(median_s * 1e3, "ms", MEDIAN_BUDGET_MS, told),
        "extender_10000_nodes_p99": figure(p99_s * 1e3, "ms"),
        "extender_10000_nodes_over_floor": figure(
            median_s / floor, "x", FLOOR_BUDGET, "the same JSON decoded and encoded with msgspec, without HTTP"
        ),
    }
