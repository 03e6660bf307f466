"""Connections in the kernel's table, and byte totals and metrics by client and server."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from agent.netlink import KernelError
from agent.traffic.collector import MAX_TOTALS_AGE_S, TrafficCollector, find_workloads
from agent.traffic.conntrack import Connection, ConntrackState, parse_connections, read_conntrack_state
from agent.traffic.edges import (
    ADDRESS_EXPIRY_S,
    MAX_EDGES,
    OUTSIDE,
    OVERFLOW_EDGE,
    EdgeTotals,
    TrafficEdge,
    WorkloadReference,
)
from kubekit.wire import Pod

CLIENT, SERVER = socket.inet_aton("10.9.0.2"), socket.inet_aton("10.9.1.2")
READ_AT_S = 1_800_000_000.25
WEB, CART = WorkloadReference("shop", "Deployment", "web"), WorkloadReference("shop", "Deployment", "cart")


def encode_message(
    connection: Connection, kind: int = 0x100, *, family: int = socket.AF_INET, first: bytes = b""
) -> bytes:
    """A netlink message in the kernel's layout (checked against the kernel itself in the integration tests)."""

    def attribute(type_: int, payload: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(payload), type_) + payload + b"\0" * (-len(payload) % 4)

    def encode_tuple(type_: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> bytes:
        v4 = family == socket.AF_INET
        ip = attribute(1 if v4 else 3, source) + attribute(2 if v4 else 4, destination)
        proto = attribute(1, b"\6") + b"".join(
            attribute(2 + i, struct.pack("!H", port)) for i, port in enumerate(ports)
        )
        return attribute(type_, attribute(0x8001, ip) + attribute(0x8002, proto))

    def counter(type_: int, size: int | None) -> bytes:
        return b"" if size is None else attribute(type_, attribute(1, bytes(8)) + attribute(2, struct.pack("!Q", size)))

    service = bytes(len(connection.client))
    body = struct.pack("=BBH", family, 0, 0) + encode_tuple(0x8001, connection.client, service, (40_000, 80))
    body += encode_tuple(0x8002, connection.server, connection.client, (connection.port, 40_000))
    body += first + attribute(3, bytes(4))
    body += counter(0x8009, connection.request_bytes) + counter(0x800A, connection.response_bytes)
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


@pytest.mark.parametrize("kind", [0x100, 0x102], ids=["dump", "end"])
def test_a_connection_is_read_with_the_pod_that_answers_and_both_counters(kind: int) -> None:
    client, server = (socket.inet_pton(socket.AF_INET6, text) for text in ("fd00::1", "fd00::2"))
    ipv6 = Connection(client, server, 443, 1, 2)
    ipv4 = Connection(CLIENT, SERVER, 8080, 1424, 50_424)
    uncounted = ipv4._replace(request_bytes=None, response_bytes=None)
    # An unknown attribute comes first, because the kernel's order may change.
    data = encode_message(ipv4, kind, first=struct.pack("=HHI", 8, 12, 7))
    data += encode_message(ipv6, kind, family=socket.AF_INET6) + encode_message(uncounted, kind)
    assert list(parse_connections(data)) == [ipv4, ipv6, uncounted]


def test_messages_that_are_cut_or_have_no_ports_are_skipped_and_errors_are_raised() -> None:
    whole = encode_message(Connection(CLIENT, SERVER, 80, 5, 6))
    assert list(parse_connections(whole[:60])) == []
    assert list(parse_connections(struct.pack("=IHHII", 3, 0x100, 0, 1, 0))) == []
    assert len(list(parse_connections(whole + whole[:2]))) == 1
    # A tuple of a protocol without ports, such as ICMP, is of another length.
    assert list(parse_connections(whole.replace(struct.pack("=HH", 52, 0x8001), struct.pack("=HH", 60, 0x8001)))) == []
    assert list(parse_connections(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, 0))) == []
    with pytest.raises(KernelError, match="EPERM"):
        list(parse_connections(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1)))


def make_connection(
    request: int | None, response: int = 0, *, client: bytes = CLIENT, server: bytes = SERVER
) -> Connection:
    return Connection(client, server, 80, request, response)


def run_round(edges: EdgeTotals, *live: Connection, now_s: float = 0.0) -> dict[TrafficEdge, tuple[int, int]]:
    edges.begin_round(now_s, READ_AT_S)
    for connection in live:
        edges.add_live(connection)
    edges.end_round()
    return {edge: (request, response) for edge, request, response in edges.last_round.totals}


@pytest.fixture
def edges() -> EdgeTotals:
    totals = EdgeTotals()
    totals.set_workloads({CLIENT: WEB}, 0)
    run_round(totals)
    return totals


EDGE = TrafficEdge(WEB, "10.9.1.2", 80)


def test_bytes_from_before_the_agents_start_are_not_counted() -> None:
    edges = EdgeTotals()
    edges.set_workloads({CLIENT: WEB}, 0)
    assert run_round(edges, make_connection(1000, 9000)) == {EDGE: (0, 0)}
    assert run_round(edges, make_connection(1300, 9500)) == {EDGE: (300, 500)}


def test_a_connection_counts_once_whether_it_ends_before_or_after_the_dump_that_sees_it(edges: EdgeTotals) -> None:
    assert run_round(edges, make_connection(100)) == {EDGE: (100, 0)}
    edges.add_ended(make_connection(150))  # ended after the dump
    assert run_round(edges) == {EDGE: (150, 0)}
    edges.add_ended(make_connection(70))  # lived between two dumps
    assert run_round(edges, make_connection(1)) == {EDGE: (221, 0)}


def test_an_end_during_a_dump_neither_counts_twice_nor_lowers_the_counter(edges: EdgeTotals) -> None:
    assert run_round(edges, make_connection(100), make_connection(5))[EDGE] == (105, 0)
    edges.begin_round(1, READ_AT_S)
    edges.add_live(make_connection(5))
    edges.add_ended(make_connection(100))  # gone before the dump came to it: neither live nor ended in this round
    edges.end_round()
    assert edges.last_round.totals[0][1] == 105
    assert run_round(edges, make_connection(9))[EDGE] == (109, 0)


def test_counters_go_on_after_the_kernel_dropped_events(edges: EdgeTotals) -> None:
    assert run_round(edges, make_connection(1000), make_connection(10))[EDGE] == (1010, 0)
    assert run_round(edges, make_connection(20))[EDGE] == (1010, 0)
    assert run_round(edges, make_connection(50))[EDGE] == (1040, 0)
    assert run_round(edges, make_connection(60), make_connection(None), make_connection(None))[EDGE] == (1050, 0)
    assert edges.uncounted_connections == 2, "without counters"


def test_only_the_clients_node_counts_and_the_servers_node_names_the_server(edges: EdgeTotals) -> None:
    server = EdgeTotals()
    server.set_workloads({SERVER: CART}, 0)
    assert run_round(server, make_connection(100)) == {}
    assert server.responding_addresses == {SERVER}
    assert run_round(edges, make_connection(100)) == {EDGE: (100, 0)}
    assert edges.responding_addresses == set()


def test_public_addresses_are_one_edge_and_a_flood_of_edges_is_bounded(edges: EdgeTotals) -> None:
    to_public_addresses = [make_connection(1, server=socket.inet_aton(f"8.8.{i}.1")) for i in range(200)]
    assert run_round(edges, *to_public_addresses) == {TrafficEdge(WEB, OUTSIDE, 0): (200, 0)}
    many = [make_connection(1, server=socket.inet_aton(f"10.1.{i >> 8}.{i & 255}")) for i in range(3 * MAX_EDGES)]
    bytes_by_edge = run_round(edges, *many)
    assert len(bytes_by_edge) == MAX_EDGES + 1
    assert sum(request for request, _ in bytes_by_edge.values()) == 3 * MAX_EDGES + 200


def test_memory_does_not_grow_with_the_connections_that_end_in_a_round(edges: EdgeTotals) -> None:
    run_round(edges)
    tracemalloc.start()
    for number in range(60_000):
        edges.add_ended(make_connection(70, server=socket.inet_aton(f"10.1.{number >> 8}.{number & 255}")))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert sum(request_bytes for request_bytes, _ in run_round(edges).values()) == 60_000 * 70


def test_an_edge_that_leaves_the_overflow_edge_is_not_counted_twice(edges: EdgeTotals) -> None:
    others = [make_connection(1, server=socket.inet_aton(f"10.1.{i >> 8}.{i & 255}")) for i in range(MAX_EDGES)]
    assert run_round(edges, *others, make_connection(100)) == run_round(edges, *others, make_connection(100))
    assert run_round(edges, make_connection(100), now_s=3601)[OVERFLOW_EDGE] == (100, 0)
    edges.begin_round(3601, READ_AT_S)  # the dump of this round fails
    assert run_round(edges, make_connection(100), now_s=3602) == {OVERFLOW_EDGE: (100, 0), EDGE: (0, 0)}
    assert run_round(edges, make_connection(150), now_s=3603)[EDGE] == (50, 0)


def test_an_address_belongs_to_its_deleted_pod_for_a_while_unless_another_pod_gets_it(edges: EdgeTotals) -> None:
    edges.set_workloads({}, 10)
    edges.add_ended(make_connection(70))
    assert run_round(edges, now_s=10) == {EDGE: (70, 0)}
    edges.set_workloads({CLIENT: CART}, 20)
    assert run_round(edges, make_connection(5), now_s=20)[TrafficEdge(CART, "10.9.1.2", 80)] == (5, 0)
    edges.set_workloads({}, 30)
    edges.set_workloads({}, 31 + ADDRESS_EXPIRY_S)
    assert CLIENT not in edges.workload_by_address


def test_an_edge_is_forgotten_after_an_hour_without_traffic(edges: EdgeTotals) -> None:
    edges.add_ended(make_connection(70))
    assert run_round(edges, now_s=0)
    assert run_round(edges, now_s=3600)
    assert not run_round(edges, now_s=3601)


def test_running_pods_with_a_network_of_their_own_have_a_workload() -> None:
    owner = [{"kind": "ReplicaSet", "name": "web-5d", "controller": True}]
    meta = {"namespace": "shop", "name": "web-5d-x", "labels": {"pod-template-hash": "5d"}, "ownerReferences": owner}
    status = {"podIP": "10.9.0.2", "podIPs": [{"ip": "10.9.0.2"}, {"ip": "fd00::2"}]}
    pods = [
        {"metadata": meta, "status": status},
        {"metadata": {"namespace": "x", "name": "agent"}, "spec": {"hostNetwork": True}, "status": status},
        {"metadata": {"namespace": "x", "name": "new"}},
        {"metadata": {"namespace": "x", "name": "done"}, "status": {"podIP": "10.9.0.3", "phase": "Succeeded"}},
    ]
    assert find_workloads([msgspec.convert(pod, Pod) for pod in pods]) == {
        CLIENT: WEB,
        socket.inet_pton(socket.AF_INET6, "fd00::2"): WEB,
    }


def test_the_state_is_read_and_a_problem_names_the_setting_that_causes_it(tmp_path: Path) -> None:
    assert read_conntrack_state(tmp_path).has_accounting is None
    stat = (
        "entries  found drop early_drop\n00000001  00000000 0000000a 00000001\n00000001  00000000 00000010 00000002\n"
    )
    settings = tmp_path / "sys/net/netfilter"
    for path, text in (
        (settings / "nf_conntrack_acct", "0\n"),
        (settings / "nf_conntrack_events", "2\n"),
        (tmp_path / "self/net/stat/nf_conntrack", stat),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_conntrack_state(tmp_path) == (False, True, 26, 3)
    assert "nf_conntrack_acct is 0; set it to 1" in ConntrackState(has_accounting=False).problem
    assert "nf_conntrack_events is 0; set it to 1" in ConntrackState(has_accounting=True, has_events=False).problem


def test_exported_bytes_are_those_of_the_last_complete_round_with_its_time(tmp_path: Path) -> None:
    clock, registry = [READ_AT_S], CollectorRegistry()
    collector = TrafficCollector(lambda: "z1", tmp_path, lambda: clock[0])
    registry.register(collector)
    collector.edges.set_workloads({CLIENT: WEB, SERVER: CART}, 0)
    run_round(collector.edges)
    collector.add_events(encode_message(make_connection(100, 900), 0x102))
    run_round(collector.edges)

    def scrape(after_s: float) -> list[Sample]:
        clock[0] = READ_AT_S + after_s
        return [s for family in collector.collect() if family.name == "netaware_traffic_bytes" for s in family.samples]

    labels = {"client_namespace": "shop", "client_kind": "Deployment", "client_workload": "web", "client_zone": "z1"}
    labels |= {"server": "10.9.1.2", "port": "80"}
    assert [(s.labels, s.value, s.timestamp) for s in scrape(29)] == [
        (labels | {"direction": "request"}, 100, READ_AT_S),
        (labels | {"direction": "response"}, 900, READ_AT_S),
    ]
    server = {"server_namespace": "shop", "server_kind": "Deployment", "server_workload": "cart", "server_zone": "z1"}
    assert registry.get_sample_value("netaware_traffic_server_info", {"server": "10.9.1.2"} | server) == 1
    assert "tracks no connections" in collector.state.problem
    # Prometheus refuses samples that are much older.
    assert len(scrape(MAX_TOTALS_AGE_S)) == 2
    assert scrape(MAX_TOTALS_AGE_S + 1) == []
    collector.edges.begin_round(30, READ_AT_S + 30)
    collector.edges.add_live(make_connection(5000, 5000))
    assert [(s.timestamp, s.value) for s in scrape(31)] == [(READ_AT_S, 100), (READ_AT_S, 900)]
    collector.edges.end_round()
    assert [(s.timestamp, s.value) for s in scrape(31)] == [(READ_AT_S + 30, 5100), (READ_AT_S + 30, 5900)]
