"""Flows are read from Prometheus, from series of Istio or of netaware's agents; errors name its address, but not its password."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import encode_basic_auth, web
from prometheus_client import CollectorRegistry

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroupStatus
from controller.cluster.membership import Membership
from controller.prometheus import PrometheusClient, PrometheusError, VectorSample
from controller.traffic.config import TrafficConfig
from controller.traffic.graph import Flow, WorkloadId, build_traffic_graph
from controller.traffic.reconciler import AS_DESCRIBED, TrafficController
from controller.traffic.sources import read_flows
from kubekit.conditions import make_condition
from kubekit.errors import ConfigError
from tests.unit.controller import scheduler_objects
from tests.unit.kubekit.simulated_api import run_server


class FakePrometheus(PrometheusClient):
    """A Prometheus with these series: metric name -> instant vector; peaks are twice the means."""

    def __init__(self, series: dict[str, list[tuple[dict[str, str], float]]], *, refused_text: str = "\0") -> None:
        super().__init__("http://prometheus.invalid")
        self._series, self._refused_text = series, refused_text
        self.age_s = 1e9
        self.expressions: list[str] = []

    async def query(
        self, expression: str, *, at_s: float | None = None, finite_only: bool = True
    ) -> list[VectorSample]:
        if self._refused_text in expression:
            raise PrometheusError("query processing would load too many samples into memory")
        if expression.startswith("time()"):
            return [VectorSample({}, self.age_s)]
        factor = 2.0 if expression.startswith("quantile_over_time") else 1.0
        self.expressions.append(expression)
        grouping = expression.partition("by (")[2].partition(")")[0].split(", ")
        return [
            VectorSample({name: label for name, label in labels.items() if name in grouping}, value * factor)
            for metric, vector in self._series.items()
            if re.search(rf"\b{metric}\b", expression)
            for labels, value in vector
        ]


async def refuse(request: web.Request) -> web.Response:
    """Refuse a query, with its authorization as the error; answer with a scalar below /scalar, and never below /slow."""
    if request.path.startswith("/slow/"):
        await asyncio.Event().wait()
    if request.path.startswith("/scalar/"):
        return web.json_response({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}})
    return web.json_response({"status": "error", "error": request.headers.get("Authorization")}, status=400)


@pytest.fixture
async def host() -> AsyncIterator[str]:
    """Host and port of a Prometheus."""
    async with run_server(refuse) as config:
        yield config.server.removeprefix("http://")


def make_istio_labels(source: str, destination: str, namespace: str = "shop") -> dict[str, str]:
    ends = {"source_workload_namespace": "shop", "source_workload": source}
    return ends | {"destination_workload_namespace": namespace, "destination_workload": destination}


def make_agent_labels(server: str, **labels: str) -> dict[str, str]:
    client = {"client_namespace": "shop", "client_workload": "web", "client_kind": "Deployment", "client_zone": "z1"}
    return {**client, "server": server, **labels}


async def read_flows_of(prometheus: FakePrometheus) -> list[Flow]:
    """Flows of the last hour, from the first source with data."""
    return (await read_flows(prometheus, "", 3600)).flows


async def test_counters_of_istio_add_up_and_unknown_ends_are_external() -> None:
    ends = make_istio_labels("frontend", "redis")
    series = {
        "istio_request_bytes_sum": [(ends, 10.0)],
        "istio_response_bytes_sum": [(ends, 20.0), (make_istio_labels("frontend", "unknown", "unknown"), 7.0)],
        "istio_tcp_received_bytes_total": [(ends, 1.0)],
        "istio_tcp_sent_bytes_total": [(ends, 3.0)],
    }
    known, unknown = sorted(await read_flows_of(FakePrometheus(series)), key=lambda flow: not flow.server.is_known)
    assert (known.client.name, known.server.name) == ("frontend", "redis")
    assert (known.bytes_per_s, known.peak_bytes_per_s) == (34, 68)
    assert build_traffic_graph([known, unknown], "netaware-system").omitted[0].reason == "external"
    assert (await read_flows(FakePrometheus(series), "", 3600)).remarks == ()
    without_peaks = await read_flows(FakePrometheus(series, refused_text="quantile_over_time"), "", 3600)
    assert {flow.peak_bytes_per_s for flow in without_peaks.flows if flow.server.is_known} == {34}
    assert ["means are used" in remark for remark in without_peaks.remarks] == [True]
    (remark,) = (await read_flows(FakePrometheus(series, refused_text="min_over_time"), "", 3600)).remarks
    assert "how old" in remark


@pytest.mark.parametrize("port", ["9" * 5000, "70000", "\u0667\u0660", "1_0", "-1", ""])
async def test_an_invalid_port_is_omitted(port: str) -> None:
    series = {"netaware_traffic_bytes_total": [(make_agent_labels("10.1.0.1", port=port), 100.0)]}
    assert [flow.port for flow in await read_flows_of(FakePrometheus(series))] == [0]


async def test_server_addresses_become_workloads_and_traffic_of_a_reused_address_is_divided_by_time() -> None:
    def make_owner_labels(address: str, name: str, zone: str) -> dict[str, str]:
        end = {"server_namespace": "shop", "server_workload": name, "server_kind": "Deployment"}
        return end | {"server": address, "server_zone": zone}

    series = {
        "netaware_traffic_bytes_total": [
            (make_agent_labels("10.1.0.1", port="7070"), 100.0),
            (make_agent_labels("10.1.0.2", port="7070"), 40.0),
            (make_agent_labels("outside", port="7070"), 7.0),
        ],
        "netaware_traffic_server_info": [
            (make_owner_labels("10.1.0.1", "cart", "z2"), 60.0),
            (make_owner_labels("10.1.0.2", "cart", "z1"), 45.0),
            (make_owner_labels("10.1.0.2", "ads", "z1"), 15.0),
        ],
    }
    flows = await read_flows_of(FakePrometheus(series))
    for flow in flows:
        assert (flow.client, flow.client_zone, flow.port) == (WorkloadId("shop", "web", "Deployment"), "z1", 7070)
    assert {(flow.server.name, flow.server_zone): (flow.bytes_per_s, flow.peak_bytes_per_s) for flow in flows} == {
        ("cart", "z2"): (100, 200),
        ("cart", "z1"): (30, 60),
        ("ads", "z1"): (10, 20),
        ("", ""): (7, 14),
    }


async def test_without_a_source_the_error_names_the_metrics() -> None:
    with pytest.raises(ConfigError, match=r"istio_request_bytes_sum.*install one of the projects"):
        await read_flows(FakePrometheus({"up": []}), "", 3600)


async def test_the_window_is_limited_to_the_age_of_the_source() -> None:
    prometheus = FakePrometheus({"istio_request_bytes_sum": [(make_istio_labels("a", "b"), 100.0)]})
    for age_s, window_s in ((1e9, 3600), (3590.0, 3600), (1800.0, 1830), (0.0, 60)):
        prometheus.age_s = age_s
        assert (await read_flows(prometheus, "istio", 3600)).window_s == window_s
    prometheus.age_s = 300.0
    assert (await read_flows(prometheus, "istio", 90 * 86400)).window_s == pytest.approx(300, abs=15)


@pytest.mark.parametrize(("round_s", "min_range_s"), [(0.0, 100), (0.15, 100), (0.6, 280), (1e9, 1240)])
async def test_ranges_contain_two_readings_of_the_slowest_agent(round_s: float, min_range_s: int) -> None:
    """An agent reads every 120 s if a reading takes 0.6 s: a range of 100 s would show no traffic of its node."""
    series: dict[str, Any] = {
        "netaware_traffic_bytes_total": [(make_agent_labels("10.1.0.1"), 100.0)],
        "netaware_traffic_round_seconds": [({}, round_s)],
    }
    prometheus = FakePrometheus(series)
    assert (await read_flows(prometheus, "", 60)).window_s == min_range_s
    prometheus.expressions.clear()
    await read_flows(prometheus, "conntrack", 3600)
    peaks = [expression for expression in prometheus.expressions if expression.startswith("quantile_over_time")]
    assert peaks
    assert all(f"[{max(min_range_s, 120)}s]" in expression for expression in peaks)


@pytest.mark.looptime
async def test_in_each_leadership_a_condition_becomes_unknown_if_traffic_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise PrometheusError("no answer")

    monkeypatch.setattr("controller.traffic.reconciler.read_flows", fail)
    condition = make_condition(AS_DESCRIBED, holds=True, reason=AS_DESCRIBED, message="", generation=1)
    group = scheduler_objects.make_app_group({}, "shop", name="g", status=AppGroupStatus(conditions=[condition]))
    controller = TrafficController(
        cast("Any", None),
        cast("Any", SimpleNamespace(app_groups={"shop/g": group})),
        TrafficConfig(prometheus_url="http://prometheus:9090", interval_s=10),
        CollectorRegistry(),
        membership=Membership(NetworkOverheadArgs()),
        notify=lambda _: None,
    )
    for _ in range(2):
        leading = asyncio.create_task(controller.run())
        await asyncio.sleep(5)
        assert controller.conditions("shop/g") == []
        await asyncio.sleep(20)
        assert [condition.status for condition in controller.conditions("shop/g")] == ["Unknown"]
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


async def test_a_password_of_the_url_is_sent_but_not_shown(host: str) -> None:
    client = PrometheusClient(f"http://who:secret@{host}/base/")
    assert client.redacted_url == f"http://{host}/base"
    with pytest.raises(PrometheusError) as refused:
        await client.query("up")
    assert str(refused.value) == f"http://{host}/base: {encode_basic_auth('who', 'secret')}"

    with pytest.raises(PrometheusError) as unreachable:
        await PrometheusClient("http://who:secret@127.0.0.1:9").query("up")
    assert "secret" not in str(unreachable.value)


async def test_invalid_tokens_slow_answers_and_answers_without_a_vector_are_errors(host: str) -> None:
    with pytest.raises(PrometheusError, match=rf"{host}/slow: no answer in 0.2 s"):
        await PrometheusClient(f"http://{host}/slow", timeout_s=0.2).query("up")
    with pytest.raises(PrometheusError, match="in headers"):
        await PrometheusClient(f"http://{host}/base", token="two\nlines").query("up")
    with pytest.raises(ConfigError, match="a user and a token"):
        PrometheusClient(f"http://who:secret@{host}/base", token="t")
    with pytest.raises(PrometheusError, match="not an instant vector"):
        await PrometheusClient(f"http://{host}/scalar").query("1")
