"""Every source of traffic in a real Prometheus: the same graph out of each, with the series as the projects' own tests and documents have them.

The series are back-filled with promtool, then Prometheus runs on them. Real: Prometheus, its rates, its limits. Written here: the
values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.cluster.costs import CostTable, Location
from controller.prometheus import PrometheusClient, PrometheusError
from controller.traffic.flows import WorkloadId
from controller.traffic.graph import TrafficGraph, build_traffic_graph
from controller.traffic.proposals import propose
from controller.traffic.sources import SOURCES, NoTrafficError, read_flows
from controller.traffic.workloads import Workloads
from lab.controlplane import LOOPBACK, free_ports
from tests.support.prometheus_past import PAST_S, Made, prometheus

WINDOW_S = PAST_S - 300
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(300)]

CALLS = [("frontend", "cart", 1000.0, 5000.0), ("cart", "redis", 500.0, 3500.0), ("frontend", "catalog", 300.0, 2700.0)]
"""Client, server, bytes a second to the server and back."""
ADDRESS = {"cart": "10.1.0.1", "redis": "10.1.0.2", "catalog": "10.1.0.3"}


def flows_of_istio() -> list[Made]:
    made: list[Made] = []
    for client, server, up, down in CALLS:
        ends = {"source_workload_namespace": "shop", "source_workload": client}
        ends |= {"destination_workload_namespace": "shop", "destination_workload": server}
        for reporter in ("source", "destination"):
            labels = ends | {"reporter": reporter}
            if server == "redis":
                made += [("istio_tcp_received_bytes_total", labels, up), ("istio_tcp_sent_bytes_total", labels, down)]
            else:
                made += [("istio_request_bytes_sum", labels, up), ("istio_response_bytes_sum", labels, down)]
    return made


def flows_of_linkerd() -> list[Made]:
    made: list[Made] = []
    for client, server, up, down in CALLS:
        labels = {"namespace": "shop", "deployment": client, "dst_namespace": "shop", "dst_deployment": server}
        labels |= {"direction": "outbound", "tls": "true"}
        made.append(("tcp_write_bytes_total", labels | {"peer": "dst"}, up))
        made.append(("tcp_read_bytes_total", labels | {"peer": "dst"}, down))
        inbound = {"namespace": "shop", "deployment": server, "direction": "inbound", "peer": "src", "tls": "true"}
        made.append(("tcp_read_bytes_total", inbound, up))
    return made


def flows_of_agents() -> list[Made]:
    made: list[Made] = []
    for client, server, up, down in CALLS:
        labels = {
            "client_namespace": "shop",
            "client_kind": "Deployment",
            "client_workload": client,
            "client_zone": "z1",
        }
        labels |= {"server": ADDRESS[server], "port": "80"}
        made += [
            ("netaware_traffic_bytes_total", labels | {"direction": direction}, moved)
            for direction, moved in (("request", up), ("response", down))
        ]
    for server, address in ADDRESS.items():
        end = {"server_namespace": "shop", "server_kind": "Deployment", "server_workload": server, "server_zone": "z1"}
        made.append(("netaware_traffic_server_info", end | {"server": address}, 0.0))
    return made


SERIES: dict[str, Callable[[], list[Made]]] = {
    "istio": flows_of_istio,
    "linkerd": flows_of_linkerd,
    "conntrack": flows_of_agents,
}


def cluster(*names: str) -> Workloads:
    found = Workloads()
    for name in names:
        end = WorkloadId("shop", name, "Deployment")
        found.replicas[end] = 1
        found.labels[end] = {"app": name}
        found.locations[end][Location("r1", "z1")] = 1
    return found


BOUTIQUE = cluster("frontend", "cart", "redis", "catalog")


async def graph_from(
    client: PrometheusClient, workloads: Workloads, source: str = ""
) -> tuple[TrafficGraph, dict[str, float]]:
    chosen, _, found, _ = await read_flows(client, source, WINDOW_S)
    assert source in {"", chosen.name}
    flows, unknown = workloads.resolve(found)
    return build_traffic_graph(flows), unknown


def test_every_source_has_series_here() -> None:
    assert set(SERIES) == {source.name for source in SOURCES}


async def test_the_same_graph_comes_out_of_every_source(
    prometheus_programs: Mapping[str, Path], tmp_path: Path
) -> None:
    wanted = {(client, server): up + down for client, server, up, down in CALLS}
    everything = [one for make in SERIES.values() for one in make()]
    async with prometheus(prometheus_programs, tmp_path, everything) as client:
        for name in SERIES:
            graph, unknown = await graph_from(client, BOUTIQUE, name)
            found = {(d.client.name, d.server.name): d for d in graph.dependencies}
            rates = {edge: d.bytes_per_s for edge, d in found.items()}
            assert rates == pytest.approx(wanted, rel=0.02), name
            assert all(d.peak_bytes_per_s == pytest.approx(d.bytes_per_s, rel=0.05) for d in found.values()), name
            assert unknown == {}, name


@pytest.mark.parametrize("name", SERIES)
async def test_a_source_is_recognised_by_its_series(
    prometheus_programs: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    stranger: Made = ("tcp_write_bytes_total", {"job": "somebody-else"}, 1.0)
    async with prometheus(prometheus_programs, tmp_path, [*SERIES[name](), stranger]) as client:
        assert (await read_flows(client, "", WINDOW_S)).source.name == name


async def test_bad_series_are_reported_and_the_others_are_read(
    prometheus_programs: Mapping[str, Path], tmp_path: Path
) -> None:
    made = flows_of_istio()

    def call(client: str, server: str, moved: float, namespace: str = "shop") -> None:
        ends = {"source_workload_namespace": namespace, "source_workload": client, "reporter": "source"}
        ends |= {"destination_workload_namespace": "shop", "destination_workload": server}
        made.append(("istio_request_bytes_sum", ends, moved))

    call("gone", "cart", 900.0)
    call("frontend", "frontend", 800.0)
    call("redis", "cart", 700.0)  # a cycle
    call('no name\n"of" anything/é', "cart", 600.0)
    call("", "cart", 500.0)
    call("unknown", "cart", 400.0, "unknown")
    for caller in ("frontend", "cart", "redis", "catalog"):
        call(caller, "logs", 300.0)
    workloads = cluster("frontend", "cart", "redis", "catalog", "logs")
    async with prometheus(prometheus_programs, tmp_path, made) as client:
        graph, unknown = await graph_from(client, workloads)
        edges = {(d.client.name, d.server.name) for d in graph.dependencies}
        assert {(a, b) for a, b, *_ in CALLS} | {("redis", "cart")} <= edges
        assert {"shop/gone", 'shop/no name\n"of" anything/é'} == set(unknown)
        assert {"self", "external"} <= {item.reason for item in graph.left_out}
        (proposal,) = propose(graph, workloads, [], "shop", CostTable())
        assert {d.server for d in proposal.dependencies} >= {"shop/cart", "shop/logs"}
        with pytest.raises(NoTrafficError, match="netaware_traffic_bytes_total"):
            await read_flows(client, "conntrack", WINDOW_S)


async def test_a_prometheus_with_ten_minutes_of_data_gives_rates(
    prometheus_programs: Mapping[str, Path], tmp_path: Path
) -> None:
    async with prometheus(prometheus_programs, tmp_path, flows_of_istio(), since_s=600) as client:
        graph, _ = await graph_from(client, BOUTIQUE)
    # Ten minutes of an hour: a mean over the hour would be a sixth, and so would the bill.
    first = graph.dependencies[0]
    assert first.bytes_per_s == pytest.approx(6000, rel=0.1)
    assert first.peak_bytes_per_s == pytest.approx(6000, rel=0.1)


async def test_a_peak_that_prometheus_refuses_becomes_the_mean(
    prometheus_programs: Mapping[str, Path], tmp_path: Path
) -> None:
    async with prometheus(prometheus_programs, tmp_path, flows_of_istio(), "--query.max-samples=700") as client:
        graph, _ = await graph_from(client, BOUTIQUE)
        assert graph.dependencies[0].peak_bytes_per_s == pytest.approx(graph.dependencies[0].bytes_per_s)


async def test_an_absent_or_slow_prometheus_is_an_error_with_its_address() -> None:
    (port,) = free_ports(1)
    async with PrometheusClient(f"http://{LOOPBACK}:{port}") as away:
        with pytest.raises(PrometheusError, match=str(port)):
            await read_flows(away, "", WINDOW_S)

    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", never)
    async with TestServer(app) as server, PrometheusClient(str(server.make_url("")), timeout_s=0.2) as slow:
        with pytest.raises(PrometheusError, match="no answer in"):
            await read_flows(slow, "", WINDOW_S)
