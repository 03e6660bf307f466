"""Flows are read from the series that Istio and netaware's agents export, as their projects document them."""

from __future__ import annotations

import re

import pytest

from controller.prometheus import PrometheusClient, PrometheusError, VectorSample
from controller.traffic.graph import Flow, WorkloadId, build_traffic_graph
from controller.traffic.sources import read_flows
from kubekit.errors import ConfigError


class FakePrometheus(PrometheusClient):
    """Stands in for a Prometheus with these series: metric name -> instant vector."""

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
            VectorSample({k: v for k, v in labels.items() if k in grouping}, value * factor)
            for name, vector in self._series.items()
            if re.search(rf"\b{name}\b", expression)
            for labels, value in vector
        ]


def istio_labels(source: str, destination: str, namespace: str = "shop") -> dict[str, str]:
    ends = {"source_workload_namespace": "shop", "source_workload": source}
    return ends | {"destination_workload_namespace": namespace, "destination_workload": destination}


def agent_labels(server: str, **more: str) -> dict[str, str]:
    client = {"client_namespace": "shop", "client_workload": "web", "client_kind": "Deployment", "client_zone": "z1"}
    return {**client, "server": server, **more}


async def read_from(prometheus: FakePrometheus) -> list[Flow]:
    """Flows of the last hour, from the first source with data."""
    return (await read_flows(prometheus, "", 3600)).flows


async def test_counters_of_istio_add_up_and_unknown_ends_are_external() -> None:
    ends = istio_labels("frontend", "redis")
    series = {
        "istio_request_bytes_sum": [(ends, 10.0)],
        "istio_response_bytes_sum": [(ends, 20.0), (istio_labels("frontend", "unknown", "unknown"), 7.0)],
        "istio_tcp_received_bytes_total": [(ends, 1.0)],
        "istio_tcp_sent_bytes_total": [(ends, 3.0)],
    }
    known, unknown = sorted(await read_from(FakePrometheus(series)), key=lambda f: not f.server.is_known)
    assert (known.client.name, known.server.name) == ("frontend", "redis")
    assert (known.bytes_per_s, known.peak_bytes_per_s) == (34, 68)
    assert build_traffic_graph([known, unknown], "netaware-system").omitted[0].reason == "external"
    assert (await read_flows(FakePrometheus(series), "", 3600)).remarks == ()
    without_peaks = await read_flows(FakePrometheus(series, refused_text="quantile_over_time"), "", 3600)
    assert {f.peak_bytes_per_s for f in without_peaks.flows if f.server.is_known} == {34}
    assert ["means are used" in remark for remark in without_peaks.remarks] == [True]
    (remark,) = (await read_flows(FakePrometheus(series, refused_text="min_over_time"), "", 3600)).remarks
    assert "how old" in remark


@pytest.mark.parametrize("port", ["9" * 5000, "70000", "\u0667\u0660", "1_0", "-1", ""])
async def test_an_invalid_port_is_omitted(port: str) -> None:
    series = {"netaware_traffic_bytes_total": [(agent_labels("10.1.0.1", port=port), 100.0)]}
    assert [f.port for f in await read_from(FakePrometheus(series))] == [0]


async def test_server_addresses_become_workloads_and_traffic_of_a_reused_address_is_divided_by_time() -> None:
    def owner_labels(address: str, name: str, zone: str) -> dict[str, str]:
        end = {"server_namespace": "shop", "server_workload": name, "server_kind": "Deployment"}
        return end | {"server": address, "server_zone": zone}

    series = {
        "netaware_traffic_bytes_total": [
            (agent_labels("10.1.0.1", port="7070"), 100.0),
            (agent_labels("10.1.0.2", port="7070"), 40.0),
            (agent_labels("outside", port="7070"), 7.0),
        ],
        "netaware_traffic_server_info": [
            (owner_labels("10.1.0.1", "cart", "z2"), 60.0),
            (owner_labels("10.1.0.2", "cart", "z1"), 45.0),
            (owner_labels("10.1.0.2", "ads", "z1"), 15.0),
        ],
    }
    flows = await read_from(FakePrometheus(series))
    assert {(f.client, f.client_zone, f.port) for f in flows} == {(WorkloadId("shop", "web", "Deployment"), "z1", 7070)}
    assert {(f.server.name, f.server_zone): (f.bytes_per_s, f.peak_bytes_per_s) for f in flows} == {
        ("cart", "z2"): (100, 200),
        ("cart", "z1"): (30, 60),
        ("ads", "z1"): (10, 20),
        ("", ""): (7, 14),
    }


async def test_without_a_source_the_error_names_the_metrics() -> None:
    with pytest.raises(ConfigError, match=r"istio_request_bytes_sum.*install one of the projects"):
        await read_flows(FakePrometheus({"up": []}), "", 3600)


async def test_the_window_is_limited_to_the_age_of_the_source() -> None:
    prometheus = FakePrometheus({"istio_request_bytes_sum": [(istio_labels("a", "b"), 100.0)]})
    for age_s, window_s in ((1e9, 3600), (3590.0, 3600), (1800.0, 1830), (0.0, 60)):
        prometheus.age_s = age_s
        assert (await read_flows(prometheus, "istio", 3600)).window_s == window_s
    prometheus.age_s = 300.0
    assert (await read_flows(prometheus, "istio", 90 * 86400)).window_s == pytest.approx(300, abs=15)


@pytest.mark.parametrize(("round_s", "min_range_s"), [(0.0, 100), (0.15, 100), (0.6, 280), (1e9, 1240)])
async def test_ranges_contain_two_readings_of_the_slowest_agent(round_s: float, min_range_s: int) -> None:
    """An agent reads every 120 s if a reading takes 0.6 s: a range of 100 s would show no traffic of its node."""
    prometheus = FakePrometheus(
        {
            "netaware_traffic_bytes_total": [(agent_labels("10.1.0.1"), 100.0)],
            "netaware_traffic_round_seconds": [({}, round_s)],
        }
    )
    assert (await read_flows(prometheus, "", 60)).window_s == min_range_s
    prometheus.expressions.clear()
    await read_flows(prometheus, "conntrack", 3600)
    peaks = [expression for expression in prometheus.expressions if expression.startswith("quantile_over_time")]
    assert peaks
    assert all(f"[{max(min_range_s, 120)}s]" in expression for expression in peaks)
