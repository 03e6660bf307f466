"""All sources of traffic give the same rates in a real Prometheus, from series as their projects document them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from controller.traffic.graph import Flow
from controller.traffic.sources import SOURCES, read_flows
from tests.support.prometheus_program import HISTORY_S, Series, format_exposition, run_prometheus

WINDOW_S = HISTORY_S - 300
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(300)]

CALLS = [("frontend", "cart", 1000.0, 5000.0), ("cart", "redis", 500.0, 3500.0), ("frontend", "catalog", 300.0, 2700.0)]
"""Client, server, and the bytes per second that the client has sent and received."""
ISTIO_TCP_METRICS = ("istio_tcp_received_bytes_total", "istio_tcp_sent_bytes_total")
ISTIO_HTTP_METRICS = ("istio_request_bytes_sum", "istio_response_bytes_sum")
ADDRESS_BY_SERVER = {"cart": "10.1.0.1", "redis": "10.1.0.2", "catalog": "10.1.0.3"}


def make_istio_series() -> list[Series]:
    series: list[Series] = []
    for client, server, sent, received in CALLS:
        ends = {"source_workload_namespace": "shop", "source_workload": client}
        ends |= {"destination_workload_namespace": "shop", "destination_workload": server}
        for reporter in ("source", "destination"):
            labels = ends | {"reporter": reporter}
            request, response = ISTIO_TCP_METRICS if server == "redis" else ISTIO_HTTP_METRICS
            series += [(request, labels, sent), (response, labels, received)]
    return series


def make_linkerd_series() -> list[Series]:
    series: list[Series] = []
    for client, server, sent, received in CALLS:
        labels = {"namespace": "shop", "deployment": client, "dst_namespace": "shop", "dst_deployment": server}
        labels |= {"direction": "outbound", "tls": "true"}
        series.append(("tcp_write_bytes_total", labels | {"peer": "dst"}, sent))
        series.append(("tcp_read_bytes_total", labels | {"peer": "dst"}, received))
        inbound = {"namespace": "shop", "deployment": server, "direction": "inbound", "peer": "src", "tls": "true"}
        series.append(("tcp_read_bytes_total", inbound, sent))
    return series


def make_agent_series() -> list[Series]:
    series: list[Series] = []
    for client, server, sent, received in CALLS:
        labels = {"client_namespace": "shop", "client_kind": "Deployment", "client_workload": client}
        labels |= {"client_zone": "z1", "server": ADDRESS_BY_SERVER[server], "port": "80"}
        series.append(("netaware_traffic_bytes_total", labels | {"direction": "request"}, sent))
        series.append(("netaware_traffic_bytes_total", labels | {"direction": "response"}, received))
    for server, address in ADDRESS_BY_SERVER.items():
        location = {
            "server_namespace": "shop",
            "server_kind": "Deployment",
            "server_workload": server,
            "server_zone": "z1",
        }
        series.append(("netaware_traffic_server_info", location | {"server": address}, 0.0))
    return series


SERIES_BY_SOURCE: dict[str, Callable[[], list[Series]]] = {
    "istio": make_istio_series,
    "linkerd": make_linkerd_series,
    "conntrack": make_agent_series,
}
RATE_BY_PAIR = {(client, server): sent + received for client, server, sent, received in CALLS}


def read_rates(flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    return {(flow.client.name, flow.server.name): flow.bytes_per_s for flow in flows}


@pytest.mark.parametrize("name", [source.name for source in SOURCES])
async def test_a_source_is_recognized_by_its_series_and_gives_the_expected_rates(
    prometheus_programs: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    foreign_series: Series = ("tcp_write_bytes_total", {"job": "another"}, 1.0)
    lines = format_exposition([*SERIES_BY_SOURCE[name](), foreign_series])
    async with run_prometheus(prometheus_programs, tmp_path, lines) as client:
        source, _, flows, _ = await read_flows(client, "", WINDOW_S)
    assert source.name == name
    assert read_rates(flows) == pytest.approx(RATE_BY_PAIR, rel=0.02)
    assert all(flow.peak_bytes_per_s == pytest.approx(flow.bytes_per_s, rel=0.05) for flow in flows)


async def test_ten_minutes_of_data_give_the_rates_of_ten_minutes(
    prometheus_programs: Mapping[str, Path], tmp_path: Path
) -> None:
    """The mean over an hour would be a sixth of that."""
    lines = format_exposition(make_istio_series(), duration_s=600)
    async with run_prometheus(prometheus_programs, tmp_path, lines) as client:
        flows = (await read_flows(client, "", WINDOW_S)).flows
    assert read_rates(flows) == pytest.approx(RATE_BY_PAIR, rel=0.1)
    assert all(flow.peak_bytes_per_s == pytest.approx(flow.bytes_per_s, rel=0.1) for flow in flows)
