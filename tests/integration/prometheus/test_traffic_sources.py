"""Every source of traffic in a real Prometheus: the same graph out of each, with the series as the projects' own tests and documents have them.

The series are back-filled with promtool, then Prometheus runs on them. Real: Prometheus, its rates, its limits. Written here: the
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from controller.traffic.graph import Flow
from controller.traffic.sources import SOURCES, read_flows
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


WANTED = {(client, server): up + down for client, server, up, down in CALLS}


def rates(flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    return {(flow.client.name, flow.server.name): flow.bytes_per_s for flow in flows}


def test_every_source_has_series_here() -> None:
    assert set(SERIES) == {source.name for source in SOURCES}


@pytest.mark.parametrize("name", SERIES)
async def test_a_source_is_recognised_by_its_series_and_all_give_the_same_rates(
    prometheus_programs: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    stranger: Made = ("tcp_write_bytes_total", {"job": "another"}, 1.0)
    async with prometheus(prometheus_programs, tmp_path, [*SERIES[name](), stranger]) as client:
        source, _, flows, _ = await read_flows(client, "", WINDOW_S)
    assert source.name == name
    assert rates(flows) == pytest.approx(WANTED, rel=0.02)
    assert all(flow.peak_bytes_per_s == pytest.approx(flow.bytes_per_s, rel=0.05) for flow in flows)


async def test_a_prometheus_with_ten_minutes_of_data_gives_the_rates_of_these(
    prometheus_programs: Mapping[str, Path], tmp_path: Path
) -> None:
    """A mean over the whole hour would be a sixth, and so would the bill."""
    async with prometheus(prometheus_programs, tmp_path, flows_of_istio(), since_s=600) as client:
        flows = (await read_flows(client, "", WINDOW_S)).flows
    assert rates(flows) == pytest.approx(WANTED, rel=0.1)
    assert all(flow.peak_bytes_per_s == pytest.approx(flow.bytes_per_s, rel=0.1) for flow in flows)
