"""A real Prometheus gives the rates of flows from the series of each source, and from scrapes between an agent's rounds."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agent.traffic.collector import TrafficCollector
from agent.traffic.conntrack import Connection
from agent.traffic.edges import WorkloadReference
from controller.traffic.graph import Flow
from controller.traffic.sources import SOURCES, Source, read_flows
from netperf.contract import MAX_TRAFFIC_CPU_SHARE
from tests.support.prometheus_program import Series, format_exposition, run_prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(300)]

HOUR_S = 3600
CALLS = [("frontend", "cart", 1000.0, 5000.0), ("cart", "redis", 500.0, 3500.0), ("frontend", "catalog", 300.0, 2700.0)]
"""Client, server, and the bytes per second that the client has sent and received."""
ISTIO_TCP_METRICS = ("istio_tcp_received_bytes_total", "istio_tcp_sent_bytes_total")
ISTIO_HTTP_METRICS = ("istio_request_bytes_sum", "istio_response_bytes_sum")
ADDRESS_BY_SERVER = {"cart": "10.1.0.1", "redis": "10.1.0.2", "catalog": "10.1.0.3"}
RATE_BY_PAIR = {(client, server): sent + received for client, server, sent, received in CALLS}

CLIENT, SERVER = bytes([10, 1, 0, 1]), bytes([10, 1, 0, 2])
WEB, CART = WorkloadReference("shop", "Deployment", "web"), WorkloadReference("shop", "Deployment", "cart")
REQUEST_RATE, RESPONSE_RATE = 1000, 9000
"""Bytes per second to the server and to the client, on one connection."""
SCRAPE_S = 15
PAST_S, FUTURE_S = 900, 600
WINDOW_S = 180


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
        labels = {"server_namespace": "shop", "server_kind": "Deployment", "server_workload": server}
        labels |= {"server_zone": "z1", "server": address}
        series.append(("netaware_traffic_server_info", labels, 0.0))
    return series


def read_rates(flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    return {(flow.client.name, flow.server.name): flow.bytes_per_s for flow in flows}


def scrape_agent(folder: Path, started_at_s: int, round_s: float) -> Iterator[tuple[Sample, float]]:
    """An agent's scraped samples with their times, until ten minutes from now, because the test takes time."""
    now_s = float(started_at_s)
    collector = TrafficCollector(lambda: "z1", folder, lambda: now_s)
    collector.round_cpu_s = round_s * MAX_TRAFFIC_CPU_SHARE
    collector.edges.set_workloads({CLIENT: WEB, SERVER: CART}, 0)
    registry = CollectorRegistry()
    registry.register(collector)
    read_s = 0.0
    for scrape_s in range(7, PAST_S + FUTURE_S, SCRAPE_S):
        while read_s <= scrape_s:
            sent_bytes, received_bytes = round(REQUEST_RATE * read_s), round(RESPONSE_RATE * read_s)
            collector.edges.begin_round(read_s, started_at_s + read_s)
            collector.edges.add_live(Connection(CLIENT, SERVER, 80, sent_bytes, received_bytes))
            collector.edges.end_round()
            read_s += round_s
        now_s = started_at_s + scrape_s
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            yield from ((sample, float(sample.timestamp or now_s)) for sample in family.samples)


def format_samples(samples: Iterable[tuple[Sample, float]]) -> Iterator[str]:
    """OpenMetrics lines of samples; one that was scraped twice is there once."""
    value_by_time: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for sample, at_s in samples:
        label_text = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(sample.labels.items()))
        value_by_time[sample.name, label_text][at_s] = sample.value
    for name, all_series in groupby(sorted(value_by_time), itemgetter(0)):
        yield f"# TYPE {name} unknown\n"
        for series in all_series:
            for at_s, value in sorted(value_by_time[series].items()):
                yield f"{name}{{{series[1]}}} {value!r} {at_s:.3f}\n"
    yield "# EOF\n"


@pytest.mark.parametrize(
    ("source", "make_series"),
    list(zip(SOURCES, (make_istio_series, make_linkerd_series, make_agent_series), strict=True)),
    ids=[source.name for source in SOURCES],
)
async def test_a_source_is_recognized_by_its_series_and_gives_the_expected_rates(
    prometheus_programs: Mapping[str, Path], tmp_path: Path, source: Source, make_series: Callable[[], list[Series]]
) -> None:
    foreign_series: Series = ("tcp_write_bytes_total", {"job": "another"}, 1.0)
    lines = format_exposition([*make_series(), foreign_series])
    async with run_prometheus(prometheus_programs, tmp_path, lines) as client:
        recognized_source, _, flows, _ = await read_flows(client, "", HOUR_S)
    assert recognized_source is source
    assert read_rates(flows) == pytest.approx(RATE_BY_PAIR, rel=0.02)
    assert all(flow.peak_bytes_per_s == pytest.approx(flow.bytes_per_s, rel=0.05) for flow in flows)


async def test_ten_minutes_of_data_give_their_rates(prometheus_programs: Mapping[str, Path], tmp_path: Path) -> None:
    """The mean over an hour would be a sixth of that."""
    lines = format_exposition(make_istio_series(), duration_s=600)
    async with run_prometheus(prometheus_programs, tmp_path, lines) as client:
        flows = (await read_flows(client, "", HOUR_S)).flows
    assert read_rates(flows) == pytest.approx(RATE_BY_PAIR, rel=0.1)
    assert all(flow.peak_bytes_per_s == pytest.approx(flow.bytes_per_s, rel=0.1) for flow in flows)


@pytest.mark.parametrize("round_s", [30.0, 30.7, 32.0, 41.0, 120.0], ids=lambda s: f"every_{s:g}_s")
async def test_rates_over_three_minutes_are_right_for_every_interval_of_rounds(
    prometheus_programs: Mapping[str, Path], tmp_path: Path, round_s: float
) -> None:
    lines = format_samples(scrape_agent(tmp_path, int(time.time()) - PAST_S, round_s))
    async with run_prometheus(prometheus_programs, tmp_path, lines) as client:
        _, window_s, (flow,), _ = await read_flows(client, "", WINDOW_S)
        assert window_s == (WINDOW_S if round_s < 60 else 280), "a window has at least two rounds: 2 x 120 s + 40 s"
    assert (flow.client.name, flow.server.name) == ("web", "cart")
    assert flow.bytes_per_s == pytest.approx(REQUEST_RATE + RESPONSE_RATE, rel=0.01)
    assert flow.peak_bytes_per_s == pytest.approx(REQUEST_RATE + RESPONSE_RATE, rel=0.01)
