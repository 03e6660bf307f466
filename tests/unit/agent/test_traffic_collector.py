"""The traffic of running pods' workloads is exported as of the last complete round."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from agent.traffic.collector import MAX_TOTALS_AGE_S, TrafficCollector, find_workloads
from kubekit.wire import Pod
from tests.unit.agent.connections import (
    CART,
    CLIENT,
    CT_DELETE,
    READ_AT_S,
    SERVER,
    WEB,
    encode_connection,
    make_connection,
    run_round,
)


def list_byte_samples(collector: TrafficCollector) -> list[Sample]:
    return [s for family in collector.collect() if family.name == "netaware_traffic_bytes" for s in family.samples]


def test_running_pods_with_a_network_of_their_own_have_a_workload() -> None:
    metadata = {
        "namespace": "shop",
        "name": "web-5d-x",
        "labels": {"pod-template-hash": "5d"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d", "controller": True}],
    }
    status = {"podIP": "10.9.0.2", "podIPs": [{"ip": "10.9.0.2"}, {"ip": "fd00::2"}]}
    pods = [
        {"metadata": metadata, "status": status},
        {"metadata": {"namespace": "x", "name": "agent"}, "spec": {"hostNetwork": True}, "status": status},
        {"metadata": {"namespace": "x", "name": "without-address"}},
        {"metadata": {"namespace": "x", "name": "done"}, "status": {"podIP": "10.9.0.3", "phase": "Succeeded"}},
    ]
    assert find_workloads([msgspec.convert(pod, Pod) for pod in pods]) == {
        CLIENT: WEB,
        socket.inet_pton(socket.AF_INET6, "fd00::2"): WEB,
    }


def test_exported_bytes_are_those_of_the_last_complete_round_with_its_time(tmp_path: Path) -> None:
    now_s = READ_AT_S + 29
    collector = TrafficCollector(lambda: "z1", tmp_path, lambda: now_s)
    collector.edges.set_workloads({CLIENT: WEB}, 0)
    run_round(collector.edges)
    collector.add_events(encode_connection(make_connection(100, 900), CT_DELETE))
    run_round(collector.edges)
    labels = {"client_namespace": "shop", "client_kind": "Deployment", "client_workload": "web", "client_zone": "z1"}
    labels |= {"server": "10.9.1.2", "port": "80"}
    assert [(sample.labels, sample.value, sample.timestamp) for sample in list_byte_samples(collector)] == [
        (labels | {"direction": "request"}, 100, READ_AT_S),
        (labels | {"direction": "response"}, 900, READ_AT_S),
    ]

    collector.edges.begin_round(30, READ_AT_S + 30)
    collector.edges.add_live(make_connection(5000, 5000))
    assert [sample.value for sample in list_byte_samples(collector)] == [100, 900]
    collector.edges.end_round()
    assert [sample.value for sample in list_byte_samples(collector)] == [5100, 5900]
    assert {sample.timestamp for sample in list_byte_samples(collector)} == {READ_AT_S + 30}

    # Prometheus refuses samples that are much older.
    now_s = READ_AT_S + 30 + MAX_TOTALS_AGE_S
    assert len(list_byte_samples(collector)) == 2
    now_s += 1
    assert list_byte_samples(collector) == []


def test_the_servers_node_names_the_workload_of_an_address_that_answers(tmp_path: Path) -> None:
    collector, registry = TrafficCollector(lambda: "z1", tmp_path), CollectorRegistry()
    registry.register(collector)
    collector.edges.set_workloads({SERVER: CART}, 0)
    run_round(collector.edges, make_connection(100))

    labels = {"server_namespace": "shop", "server_kind": "Deployment", "server_workload": "cart", "server_zone": "z1"}
    assert registry.get_sample_value("netaware_traffic_server_info", {"server": "10.9.1.2"} | labels) == 1
