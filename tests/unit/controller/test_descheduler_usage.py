"""Usage is read from metrics.k8s.io and Prometheus, checked, and expires.

The servers here are simulated: real HTTP on the loopback that answers as the resource metrics API and Prometheus do.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.descheduler.config import PrometheusConfig, Queries, UsageConfig
from controller.descheduler.sources import UsageReader
from kubekit.client import Client
from kubekit.config import ClusterConfig
from tests.support.descheduler_builders import GI, NOW_S, UsageBatch, UsageReading, UsageStore, format_time

BANDWIDTH = "network.aware.com/bandwidth"


def reading(value: float, at_s: float = NOW_S, name: str = "n", resource: str = "cpu") -> UsageReading:
    return UsageReading(name, resource, value, at_s)


def update(store: UsageStore, *readings: UsageReading, now: float = NOW_S) -> dict[str, int]:
    return {str(k): v for k, v in store.update(UsageBatch(readings), {"n", "m"}, {"default/a"}, now).items()}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (reading(float("nan")), "not-a-number"),
        (reading(float("inf")), "not-a-number"),
        (reading(-1), "negative"),
        (reading(1, NOW_S - 181), "expired"),
        (reading(1, NOW_S + 61), "future"),
        (reading(1, float("nan")), "not-a-number"),
        (reading(1, name="stranger"), "unknown-node"),
        (reading(1, name="default/gone"), "unknown-pod"),
    ],
)
def test_impossible_readings_are_dropped_and_counted(bad: UsageReading, reason: str) -> None:
    store = UsageStore(180)
    assert update(store, reading(100), reading(50, name="default/a"), bad) == {reason: 1}
    assert store.view(NOW_S) == ({"n": {"cpu": 100}}, {"default/a": {"cpu": 50}})


def test_an_older_reading_does_not_replace_a_newer_one() -> None:
    store = UsageStore(180)
    update(store, reading(100, NOW_S), reading(50, NOW_S - 30))
    assert store.view(NOW_S).by_node == {"n": {"cpu": 100}}


def test_usage_expires_and_is_removed_with_its_node() -> None:
    for expiry_s in (90, 180):
        store = UsageStore(expiry_s)
        update(store, reading(100), reading(50, name="m"))
        assert store.view(NOW_S + expiry_s).by_node == {"n": {"cpu": 100}, "m": {"cpu": 50}}
        assert not store.view(NOW_S + expiry_s + 1).by_node
        store.update(UsageBatch(), {"m"}, (), NOW_S)
        assert store.view(NOW_S).by_node.keys() == {"m"}


# Simulated servers


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    """The URL of a server that responds to every request with the status and data of ``answer``."""

    async def handle(request: web.Request) -> web.Response:
        await request.post()
        status, data = answer(request)
        return web.Response(status=status, body=json.dumps(data).encode(), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


def metrics_api(request: web.Request) -> tuple[int, Any]:
    at = format_time(NOW_S)
    nodes = [
        {"metadata": {"name": "n"}, "timestamp": at, "window": "15s", "usage": {"cpu": "182250m", "memory": "1367Mi"}},
        {"metadata": {"name": "m"}, "timestamp": at, "usage": {"cpu": "3825123456n", "memory": "lots"}},
    ]
    containers = [{"name": c, "usage": {"cpu": "250m", "memory": "1Gi"}} for c in ("a", "b")]
    pods = [{"metadata": {"name": "p", "namespace": "shop"}, "timestamp": at, "containers": containers}]
    items = {"/apis/metrics.k8s.io/v1beta1/nodes": nodes, "/apis/metrics.k8s.io/v1beta1/pods": pods}
    return 200, {"metadata": {}, "items": items[request.path]}


async def test_the_metrics_api_gives_millicores_and_bytes_and_sums_containers() -> None:
    async with serving(metrics_api) as url, Client(ClusterConfig(url)) as client:
        batch = await UsageReader(UsageConfig(), client).read()
    of_node = (reading(182250), reading(1367 * 2**20, resource="memory"))
    assert batch.readings == (*of_node, reading(500, name="shop/p"), reading(2 * GI, name="shop/p", resource="memory"))
    assert len(batch.faults) == 1
    assert "m: 'lots'" in batch.faults[0], "an invalid value drops the whole object"


async def test_a_missing_metrics_api_is_a_fault_and_raises_nothing() -> None:
    def missing(_: web.Request) -> tuple[int, Any]:
        return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such group"}

    async with serving(missing) as url, Client(ClusterConfig(url)) as client:
        batch = await UsageReader(UsageConfig(), client).read()
    assert batch == UsageBatch((), ("metrics.k8s.io: is not served; install metrics-server, or use Prometheus",))


class SimulatedPrometheus:
    """Answers instant queries by expression."""

    def __init__(self, vectors: dict[str, list[tuple[dict[str, str], str]]]) -> None:
        self.vectors, self.times, self.tokens = vectors, dict[str, str](), set[str]()

    def __call__(self, request: web.Request) -> tuple[int, Any]:
        form = {key: str(value) for key, value in request._post.items()} if request._post else {}
        assert request.path == "/api/v1/query"
        self.times[form["query"]] = form["time"]
        self.tokens.add(request.headers.get("Authorization", ""))
        if form["query"] not in self.vectors:
            return 400, {"status": "error", "errorType": "bad_data", "error": "parse error"}
        at = float(form["time"])
        result = [{"metric": labels, "value": [at, text]} for labels, text in self.vectors[form["query"]]]
        return 200, {"status": "success", "data": {"resultType": "vector", "result": result}}


QUERIES = Queries(node_cpu="nc", node_memory="nm", node_bandwidth="nb", pod_cpu="pc", pod_memory="", pod_bandwidth="pb")


async def read_prometheus(url: str, token_file: str = "") -> UsageBatch:
    """Usage with Prometheus as the only source."""
    prometheus = PrometheusConfig(url=url, token_file=token_file, queries=QUERIES)
    config = UsageConfig(source="prometheus", prometheus=prometheus)
    return await UsageReader(config, cast("Client", None), lambda: NOW_S).read()


async def test_prometheus_gives_cores_bytes_and_bits_by_the_configured_queries(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    simulated = SimulatedPrometheus(
        {
            "nc": [({"node": "n"}, "3.825"), ({"instance": "x"}, "9")],
            "nm": [({"node": "n"}, "4247781376")],
            "nb": [({"node": "n"}, "NaN")],
            "pc": [({"namespace": "shop", "pod": "p"}, "0.5"), ({"pod": "q"}, "1")],
            "pb": [({"namespace": "shop", "pod": "p"}, "8e6")],
        }
    )
    async with serving(simulated) as url:
        batch = await read_prometheus(url, str(token))
    assert batch.faults == ()
    expected = {reading(3825), reading(4247781376, resource="memory"), reading(500, name="shop/p")}
    expected.add(reading(8e6, name="shop/p", resource=BANDWIDTH))
    (node_bandwidth,) = set(batch.readings) - expected
    assert node_bandwidth.value != node_bandwidth.value, "NaN is passed on, to be dropped and counted"
    assert len(batch.readings) == 5
    assert simulated.tokens == {"Bearer secret"}
    assert len(set(simulated.times.values())) == 1, "all queries are evaluated at one moment"
    store = UsageStore(180)
    assert store.update(batch, {"n"}, {"shop/p"}, NOW_S) == {"not-a-number": 1}


async def test_a_failed_query_is_a_fault_and_the_others_are_read() -> None:
    simulated = SimulatedPrometheus({"nc": [({"node": "n"}, "1")], "nb": [], "pc": [], "pb": []})
    async with serving(simulated) as url:
        batch = await read_prometheus(url)
    assert batch.readings == (reading(1000),)
    assert len(batch.faults) == 1
    assert batch.faults[0].startswith("memory: ")


async def test_only_bandwidth_comes_from_prometheus_beside_the_metrics_api() -> None:
    simulated = SimulatedPrometheus({"nb": [({"node": "n"}, "7e9")], "pb": []})

    def answer(request: web.Request) -> tuple[int, Any]:
        return metrics_api(request) if request.path.startswith("/apis/") else simulated(request)

    async with serving(answer) as url, Client(ClusterConfig(url)) as client:
        queries = msgspec.to_builtins(QUERIES)
        config = msgspec.convert({"prometheus": {"url": url, "queries": queries}}, UsageConfig)
        batch = await UsageReader(config, client).read()
    assert {(r.name, r.resource) for r in batch.readings if r.name == "n"} == {
        ("n", "cpu"),
        ("n", "memory"),
        ("n", BANDWIDTH),
    }
    assert set(simulated.times) == {"nb", "pb"}, "cpu and memory come from metrics.k8s.io"


async def test_a_prometheus_that_is_down_or_a_binary_token_is_a_fault_and_raises_nothing(tmp_path: Path) -> None:
    async with serving(lambda _: (200, {})) as url:
        pass
    batch = await read_prometheus(url)
    assert batch.readings == ()
    assert len(batch.faults) == 5
    (tmp_path / "token").write_bytes(b"\xff")
    (fault,) = (await read_prometheus(url, str(tmp_path / "token"))).faults
    assert fault.startswith("descheduler.usage.prometheus.tokenFile: ")
