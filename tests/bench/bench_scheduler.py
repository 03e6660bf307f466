"""Measures the extender's time per pod: filter and prioritize over HTTP, compared with a codec of the same JSON.

The extender runs in a process of its own, with 40 zones and the Online Boutique, of which 10 of 11 pods are placed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import random
import socket
import statistics
import time
from collections.abc import Iterator
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
from tests.bench.figures import Figures, make_figure
from tests.support.bodies import make_random_weight
from tests.unit.controller.scheduler_objects import make_node, make_pod, make_state, make_topology_with_weights

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "online-boutique" / "appgroup.yaml"
NODES, SCHEDULER_WORKERS = 10_000, 16
ZONES, REGIONS = 40, 4
ROUNDS, WARM_UP_ROUNDS = 60, 5
MEDIAN_BUDGET_MS, MAX_RATIO_TO_CODEC = 5.0, 6.0
UPSTREAM = "upstream Go plugin, same machine kind, 10,000 nodes: about 110 ms"


class FilterResult(msgspec.Struct):
    nodenames: list[str]
    failedAndUnresolvableNodes: dict[str, str]  # noqa: N815 - the wire's name


class HostPriority(msgspec.Struct):
    host: str
    score: int


class ExtenderArgs(msgspec.Struct):
    NodeNames: list[str]


def node_name(index: int) -> str:
    return f"node-{index:05d}.example"


def location_of(index: int) -> tuple[str, str]:
    """Region and zone of a node."""
    zone = index % ZONES
    return f"region-{zone % REGIONS}", f"zone-{zone:02d}"


def make_large_state() -> State:
    nodes = [make_node(node_name(i), *location_of(i), cpu="8") for i in range(NODES)]
    group = yaml.safe_load(EXAMPLE.read_text())
    group["metadata"]["namespace"] = "default"
    weight = make_random_weight([f"zone-{z:02d}" for z in range(ZONES)], [f"region-{r}" for r in range(REGIONS)])
    pods = [make_pod(f"P{i}", node_name(i * 7 % NODES), name=f"p{i}", group="online-boutique") for i in range(2, 12)]
    return make_state(
        SchedulerConfig(), *nodes, msgspec.convert(group, AppGroup), make_topology_with_weights(weight), *pods
    )


def serve(pipe: Connection) -> None:
    """Serve the extender in this process until the pipe closes; send its port first."""

    async def main() -> None:
        registry = CollectorRegistry()
        server = Server("127.0.0.1:0", registry=registry)
        config = SchedulerConfig()
        Extender(make_large_state(), config, ExtenderMetrics(registry), lambda: "").add_routes(server.app)
        async with server.running() as address:
            compact_memory()
            pipe.send(int(address.rpartition(":")[2]))
            await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)

    asyncio.run(main())


class KeepAliveConnection:
    """A keep-alive connection that posts JSON as Go's client does; http.client would add half a millisecond."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 20)

    def post(self, path: str, body: bytes) -> bytes:
        """Body of the response; raises RuntimeError unless its status is 200."""
        headers = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._socket.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode() + body)
        if not (status := self._stream.readline()).startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {status!r}")
        length = 0
        while header := self._stream.readline().strip().lower():
            if header.startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        return bytes(self._stream.read(length))

    def close(self) -> None:
        self._socket.close()


def list_nodes_like_scheduler(rng: random.Random) -> list[str]:
    """All nodes in kube-scheduler's order: from a rotating start, found by workers that take chunks of √n nodes."""
    start, chunk_size = rng.randrange(NODES), int(NODES**0.5)
    chunks = [range(begin, min(begin + chunk_size, NODES)) for begin in range(0, NODES, chunk_size)]
    names: list[str] = []
    chunks_in_work = [iter(numbers) for numbers in chunks[:SCHEDULER_WORKERS]]
    waiting_chunks = iter(chunks[SCHEDULER_WORKERS:])
    while chunks_in_work:
        worker = rng.randrange(len(chunks_in_work))
        number = next(chunks_in_work[worker], None)
        if number is not None:
            names.append(node_name((start + number) % NODES))
        elif (numbers := next(waiting_chunks, None)) is not None:
            chunks_in_work[worker] = iter(numbers)
        else:
            chunks_in_work.pop(worker)
    return names


def iter_requests() -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Pods, each with the nodes of its request in another order."""
    rng = random.Random(2)
    labels = {APPGROUP_LABEL: "online-boutique", WORKLOAD_LABEL: "P1", "app": "frontend"}
    containers = [{"name": "server", "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]
    spec = {"schedulerName": "network-aware-scheduler", "containers": containers, "serviceAccountName": "default"}
    for number in itertools.count(1):
        metadata = {"name": f"p1-{number}", "namespace": "default", "uid": f"uid-{number}", "labels": labels}
        pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        yield pod, list_nodes_like_scheduler(rng)


def encode_request(pod: dict[str, Any], node_names: list[str]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": node_names}, separators=(",", ":")).encode()


def measure_codec_s(requests: list[bytes], result: bytes, priorities: bytes) -> float:
    """Seconds to decode both requests and to encode both responses with msgspec."""
    responses = (
        msgspec.json.decode(result, type=FilterResult),
        msgspec.json.decode(priorities, type=list[HostPriority]),
    )
    decode, encode = msgspec.json.Decoder(ExtenderArgs).decode, msgspec.json.Encoder().encode
    started_s = time.perf_counter()
    for request in requests:
        decode(request)
    for response in responses:
        encode(response)
    return time.perf_counter() - started_s


def measure_round_s(
    connection: KeepAliveConnection, pod: dict[str, Any], node_names: list[str]
) -> tuple[float, float, int]:
    """Seconds of both requests, seconds of the codec alone, and the number of nodes that pass the filter."""
    filter_request = encode_request(pod, node_names)
    started_s = time.perf_counter()
    result = connection.post("/filter", filter_request)
    filter_s = time.perf_counter() - started_s
    passed_names = msgspec.json.decode(result, type=FilterResult).nodenames
    prioritize_request = encode_request(pod, passed_names)
    started_s = time.perf_counter()
    priorities = connection.post("/prioritize", prioritize_request)
    duration_s = filter_s + time.perf_counter() - started_s
    return duration_s, measure_codec_s([filter_request, prioritize_request], result, priorities), len(passed_names)


def measure() -> Figures:
    context = multiprocessing.get_context("spawn")
    pipe, extender_pipe = context.Pipe()
    process = context.Process(target=serve, args=(extender_pipe,), daemon=True)
    process.start()
    try:
        connection = KeepAliveConnection(pipe.recv())
        requests = itertools.islice(iter_requests(), WARM_UP_ROUNDS + ROUNDS)
        rounds = [measure_round_s(connection, pod, names) for pod, names in requests][WARM_UP_ROUNDS:]
        connection.close()
    finally:
        pipe.close()
        process.terminate()
        process.join()
    durations_s, codec_durations_s, passed_counts = zip(*rounds, strict=True)
    median_s, codec_s = statistics.median(durations_s), statistics.median(codec_durations_s)
    p99_s = sorted(durations_s)[int(len(durations_s) * 0.99)]
    reference = f"{UPSTREAM}; {1 - passed_counts[-1] / NODES:.0%} of the nodes are refused here"
    without_http = "the same JSON decoded and encoded with msgspec, without HTTP"
    return {
        "extender_10000_nodes_median": make_figure(median_s * 1e3, "ms", MEDIAN_BUDGET_MS, reference),
        "extender_10000_nodes_p99": make_figure(p99_s * 1e3, "ms"),
        "extender_10000_nodes_over_codec": make_figure(median_s / codec_s, "x", MAX_RATIO_TO_CODEC, without_http),
    }
