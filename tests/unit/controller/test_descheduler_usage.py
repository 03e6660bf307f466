"""Usage is read from metrics.k8s.io and Prometheus, checked, and expires.

The servers here are simulated: real HTTP on the loopback that answers as the resource metrics API and Prometheus do.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from controller.descheduler.config import PrometheusConfig, Queries, UsageConfig
from controller.descheduler.sources import UsageReader
from kubekit.client import Client
from tests.support.descheduler_builders import GI, NOW_S, UsageBatch, UsageReading, UsageStore, format_time
from tests.unit.kubekit.simulated_api import run_server, run_server_with_client

BANDWIDTH = "network.aware.com/bandwidth"
QUERIES = Queries(node_cpu="nc", node_memory="nm", node_bandwidth="nb", pod_cpu="pc", pod_memory="", pod_bandwidth="pb")


class SimulatedPrometheus:
    """Answers instant queries with vectors, by expression; records the times and tokens of queries."""

    def __init__(self, vectors: dict[str, list[tuple[dict[str, str], str]]]) -> None:
        self.vectors = vectors
        self.time_by_query: dict[str, str] = {}
        self.tokens: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        query, time = str(form["query"]), str(form["time"])
        assert request.path == "/api/v1/query"
        self.time_by_query[query] = time
        self.tokens.add(request.headers.get("Authorization", ""))
        if query not in self.vectors:
            return web.json_response({"status": "error", "errorType": "bad_data", "error": "parse error"}, status=400)
        series = [{"metric": labels, "value": [float(time), value]} for labels, value in self.vectors[query]]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": series}})


def make_reading(value: float, at_s: float = NOW_S, name: str = "n", resource: str = "cpu") -> UsageReading:
    """A reading of node ``n``, or of the pod or node of this name."""
    return UsageReading(name, resource, value, at_s)


def update_store(store: UsageStore, *readings: UsageReading) -> dict[str, int]:
    """Update the store of a cluster with nodes n and m and a pod; returns the number of dropped readings by reason."""
    dropped = store.update(UsageBatch(readings), {"n", "m"}, {"default/a"}, NOW_S)
    return {str(reason): count for reason, count in dropped.items()}


async def answer_metrics(request: web.Request) -> web.Response:
    """Answer as the resource metrics API, with an invalid quantity of node m."""
    timestamp = format_time(NOW_S)
    nodes = [
        {"metadata": {"name": "n"}, "timestamp": timestamp, "usage": {"cpu": "182250m", "memory": "1367Mi"}},
        {"metadata": {"name": "m"}, "timestamp": timestamp, "usage": {"cpu": "3825123456n", "memory": "lots"}},
    ]
    containers = [{"name": name, "usage": {"cpu": "250m", "memory": "1Gi"}} for name in ("a", "b")]
    pods = [{"metadata": {"name": "p", "namespace": "shop"}, "timestamp": timestamp, "containers": containers}]
    items = {"/apis/metrics.k8s.io/v1beta1/nodes": nodes, "/apis/metrics.k8s.io/v1beta1/pods": pods}[request.path]
    return web.json_response({"metadata": {}, "items": items})


async def read_prometheus(url: str, token_file: str = "") -> UsageBatch:
    """Usage with Prometheus as the only source."""
    prometheus = PrometheusConfig(url=url, token_file=token_file, queries=QUERIES)
    config = UsageConfig(source="prometheus", prometheus=prometheus)
    return await UsageReader(config, cast("Client", None), lambda: NOW_S).read()


@pytest.mark.parametrize(
    ("invalid_reading", "reason"),
    [
        (make_reading(float("nan")), "not-a-number"),
        (make_reading(float("inf")), "not-a-number"),
        (make_reading(-1), "negative"),
        (make_reading(1, NOW_S - 181), "expired"),
        (make_reading(1, NOW_S + 61), "future"),
        (make_reading(1, float("nan")), "not-a-number"),
        (make_reading(1, name="stranger"), "unknown-node"),
        (make_reading(1, name="default/gone"), "unknown-pod"),
    ],
)
def test_impossible_readings_are_dropped_and_counted(invalid_reading: UsageReading, reason: str) -> None:
    store = UsageStore(180)
    dropped_by_reason = update_store(store, make_reading(100), make_reading(50, name="default/a"), invalid_reading)
    assert dropped_by_reason == {reason: 1}
    assert store.view(NOW_S) == ({"n": {"cpu": 100}}, {"default/a": {"cpu": 50}})


@pytest.mark.parametrize("expiry_s", [90, 180])
def test_the_newest_reading_counts_until_it_expires_or_its_node_is_removed(expiry_s: int) -> None:
    store = UsageStore(expiry_s)
    update_store(store, make_reading(100), make_reading(70, NOW_S - 30), make_reading(50, name="m"))
    assert store.view(NOW_S + expiry_s).by_node == {"n": {"cpu": 100}, "m": {"cpu": 50}}
    assert not store.view(NOW_S + expiry_s + 1).by_node
    store.update(UsageBatch(), {"m"}, (), NOW_S)
    assert store.view(NOW_S).by_node.keys() == {"m"}


async def test_the_metrics_api_gives_millicores_and_bytes_and_sums_containers() -> None:
    async with run_server_with_client(answer_metrics) as client:
        batch = await UsageReader(UsageConfig(), client).read()
    assert batch.readings == (
        make_reading(182250),
        make_reading(1367 * 2**20, resource="memory"),
        make_reading(500, name="shop/p"),
        make_reading(2 * GI, name="shop/p", resource="memory"),
    )
    (fault,) = batch.faults
    assert "m: 'lots'" in fault, "an invalid value drops the whole object"


async def test_a_missing_metrics_api_is_a_fault_and_raises_nothing() -> None:
    async def answer_not_found(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)

    async with run_server_with_client(answer_not_found) as client:
        batch = await UsageReader(UsageConfig(), client).read()
    assert batch == UsageBatch((), ("metrics.k8s.io: is not served; install metrics-server, or use Prometheus",))


async def test_prometheus_gives_cores_bytes_and_bits_by_the_configured_queries(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    prometheus = SimulatedPrometheus(
        {
            "nc": [({"node": "n"}, "3.825"), ({"instance": "x"}, "9")],
            "nm": [({"node": "n"}, "4247781376")],
            "nb": [({"node": "n"}, "NaN")],
            "pc": [({"namespace": "shop", "pod": "p"}, "0.5"), ({"pod": "q"}, "1")],
            "pb": [({"namespace": "shop", "pod": "p"}, "8e6")],
        }
    )
    async with run_server(prometheus.answer) as server:
        batch = await read_prometheus(server.server, str(token))
    assert batch.faults == ()
    valid_readings = {
        make_reading(3825),
        make_reading(4247781376, resource="memory"),
        make_reading(500, name="shop/p"),
        make_reading(8e6, name="shop/p", resource=BANDWIDTH),
    }
    assert len(batch.readings) == len(valid_readings) + 1
    (node_bandwidth,) = set(batch.readings) - valid_readings
    assert math.isnan(node_bandwidth.value), "NaN is passed on, to be dropped and counted"
    assert prometheus.tokens == {"Bearer secret"}
    assert len(set(prometheus.time_by_query.values())) == 1, "all queries are evaluated at one moment"
    store = UsageStore(180)
    assert store.update(batch, {"n"}, {"shop/p"}, NOW_S) == {"not-a-number": 1}


async def test_a_failed_query_is_a_fault_and_the_others_are_read() -> None:
    prometheus = SimulatedPrometheus({"nc": [({"node": "n"}, "1")], "nb": [], "pc": [], "pb": []})
    async with run_server(prometheus.answer) as server:
        batch = await read_prometheus(server.server)
    assert batch.readings == (make_reading(1000),)
    (fault,) = batch.faults
    assert fault.startswith("memory: ")


async def test_only_bandwidth_comes_from_prometheus_beside_the_metrics_api() -> None:
    prometheus = SimulatedPrometheus({"nb": [({"node": "n"}, "7e9")], "pb": []})

    async def answer(request: web.Request) -> web.Response:
        is_metrics_api = request.path.startswith("/apis/")
        return await (answer_metrics(request) if is_metrics_api else prometheus.answer(request))

    async with run_server(answer) as server, Client(server) as client:
        config = UsageConfig(prometheus=PrometheusConfig(url=server.server, queries=QUERIES))
        batch = await UsageReader(config, client).read()
    assert {reading.resource for reading in batch.readings if reading.name == "n"} == {"cpu", "memory", BANDWIDTH}
    assert set(prometheus.time_by_query) == {"nb", "pb"}, "cpu and memory come from metrics.k8s.io"


async def test_a_prometheus_that_is_down_or_a_token_that_is_no_text_is_a_fault_and_raises_nothing(
    tmp_path: Path,
) -> None:
    batch = await read_prometheus("http://127.0.0.1:9")
    assert batch.readings == ()
    assert len(batch.faults) == 5, "one for each query"

    (tmp_path / "token").write_bytes(b"\xff")
    (fault,) = (await read_prometheus("http://127.0.0.1:9", str(tmp_path / "token"))).faults
    assert fault.startswith("descheduler.usage.prometheus.tokenFile: ")
