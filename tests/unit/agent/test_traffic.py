"""Connections of the kernel's messages add up to byte totals by client workload and server, which are exported."""

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
    EDGE_EXPIRY_S,
    MAX_EDGES,
    OUTSIDE,
    OVERFLOW_EDGE,
    EdgeTotals,
    TrafficEdge,
    WorkloadReference,
)
from kubekit.wire import Pod
from tests.support.conntrack_messages import (
    CT_DELETE,
    CT_NEW,
    CTA_TUPLE_ORIG,
    CTA_TUPLE_REPLY,
    encode_attribute,
    encode_connection,
)

CLIENT, SERVER = socket.inet_aton("10.9.0.2"), socket.inet_aton("10.9.1.2")
WEB, CART = WorkloadReference("shop", "Deployment", "web"), WorkloadReference("shop", "Deployment", "cart")
EDGE = TrafficEdge(WEB, "10.9.1.2", 80)
READ_AT_S = 1_800_000_000.25
CONNECTION = Connection(CLIENT, SERVER, 8080, 1424, 50_424)
NLMSG_ERROR = 2
TUPLE_BYTES = 52
"""Size of a tuple of TCP over IPv4."""


@pytest.fixture
def edges() -> EdgeTotals:
    """The totals of the client's node, after a first round without connections."""
    totals = EdgeTotals()
    totals.set_workloads({CLIENT: WEB}, 0)
    run_round(totals)
    return totals


def make_connection(request_bytes: int | None, response_bytes: int = 0, *, server: bytes = SERVER) -> Connection:
    return Connection(CLIENT, server, 80, request_bytes, response_bytes)


def run_round(edges: EdgeTotals, *live: Connection, now_s: float = 0.0) -> dict[TrafficEdge, tuple[int, int]]:
    """Run a round with these live connections; returns the totals of requests and responses."""
    edges.begin_round(now_s, READ_AT_S)
    for connection in live:
        edges.add_live(connection)
    edges.end_round()
    return {edge: (request_bytes, response_bytes) for edge, request_bytes, response_bytes in edges.last_round.totals}


def make_connections(count: int, request_bytes: int = 1) -> list[Connection]:
    """Connections to different servers."""
    servers = [socket.inet_aton(f"10.1.{number >> 8}.{number & 255}") for number in range(count)]
    return [make_connection(request_bytes, server=server) for server in servers]


def encode_error(code: int) -> bytes:
    return struct.pack("=IHHIIi", 20, NLMSG_ERROR, 0, 1, 0, code)


def list_byte_samples(collector: TrafficCollector) -> list[Sample]:
    return [s for family in collector.collect() if family.name == "netaware_traffic_bytes" for s in family.samples]


@pytest.mark.parametrize("kind", [CT_NEW, CT_DELETE], ids=["dump", "end"])
def test_a_connection_is_read_with_the_pod_that_answers_and_both_counters(kind: int) -> None:
    client, server = (socket.inet_pton(socket.AF_INET6, address) for address in ("fd00::1", "fd00::2"))
    ipv6 = Connection(client, server, 443, 1, 2)
    uncounted = CONNECTION._replace(request_bytes=None, response_bytes=None)
    unknown_attribute = encode_attribute(12, bytes(4))  # the kernel's order may change

    datagram = encode_connection(CONNECTION, kind, unknown_attribute)
    datagram += encode_connection(ipv6, kind) + encode_connection(uncounted, kind)
    assert list(parse_connections(datagram)) == [CONNECTION, ipv6, uncounted]


def test_messages_that_are_cut_or_have_no_ports_are_skipped() -> None:
    message = encode_connection(CONNECTION, CT_NEW)
    assert list(parse_connections(message[:60])) == []
    assert list(parse_connections(struct.pack("=IHHII", 3, CT_NEW, 0, 1, 0))) == [], "shorter than its header"
    assert list(parse_connections(message + message[:2])) == [CONNECTION]

    for size in range(20, len(message), 4):
        *cut, whole = parse_connections(struct.pack("=I", size) + message[4:size] + message)
        assert whole == CONNECTION
        assert all(rest[:3] == CONNECTION[:3] and rest.response_bytes is None for rest in cut)

    # A tuple of a protocol without ports, such as ICMP, is of another length.
    for attribute in (CTA_TUPLE_ORIG, CTA_TUPLE_REPLY):
        tcp_tuple, icmp_tuple = (struct.pack("=HH", size, attribute) for size in (TUPLE_BYTES, TUPLE_BYTES + 8))
        assert list(parse_connections(message.replace(tcp_tuple, icmp_tuple))) == []


def test_an_error_is_raised_except_an_acknowledgement() -> None:
    assert list(parse_connections(encode_error(0))) == []
    with pytest.raises(KernelError, match="EPERM"):
        list(parse_connections(encode_error(-1)))


def test_the_state_is_read_and_a_problem_names_the_setting_that_causes_it(tmp_path: Path) -> None:
    assert read_conntrack_state(tmp_path).has_accounting is None
    settings = tmp_path / "sys/net/netfilter"
    counters_of_two_processors = "entries  found drop early_drop\n00000001  00000000 0000000a 00000001\n"
    counters_of_two_processors += "00000001  00000000 00000010 00000002\n"
    for path, content in (
        (settings / "nf_conntrack_acct", "0\n"),
        (settings / "nf_conntrack_events", "2\n"),
        (tmp_path / "self/net/stat/nf_conntrack", counters_of_two_processors),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    state = read_conntrack_state(tmp_path)
    assert state == ConntrackState(has_accounting=False, has_events=True, drop_count=0xA + 0x10, early_drop_count=1 + 2)
    assert "nf_conntrack_acct is 0; set it to 1" in state.problem
    assert "nf_conntrack_events is 0; set it to 1" in ConntrackState(has_accounting=True, has_events=False).problem


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
    assert run_round(edges, make_connection(1)) == {EDGE: (150 + 70 + 1, 0)}


def test_an_end_during_a_dump_neither_counts_twice_nor_lowers_the_counter(edges: EdgeTotals) -> None:
    assert run_round(edges, make_connection(100), make_connection(5)) == {EDGE: (105, 0)}
    edges.begin_round(1, READ_AT_S)
    edges.add_live(make_connection(5))
    edges.add_ended(make_connection(100))  # gone before the dump came to it: neither live nor ended in this round
    edges.end_round()
    assert edges.last_round.totals[0].request_bytes == 105
    assert run_round(edges, make_connection(9)) == {EDGE: (100 + 9, 0)}


def test_counters_continue_after_the_kernel_dropped_events(edges: EdgeTotals) -> None:
    assert run_round(edges, make_connection(1000), make_connection(10)) == {EDGE: (1010, 0)}
    # The event that the connection of 1000 bytes ended is lost. From the second low round on, growth counts.
    for live_bytes, counter in ((20, 1010), (50, 1010 + 30), (60, 1010 + 40)):
        assert run_round(edges, make_connection(live_bytes)) == {EDGE: (counter, 0)}


def test_connections_without_counters_are_counted_as_uncounted(edges: EdgeTotals) -> None:
    edges.add_ended(make_connection(None))
    assert run_round(edges, make_connection(60), make_connection(None), make_connection(None)) == {EDGE: (60, 0)}
    assert edges.uncounted_connections == 2


def test_only_the_clients_node_counts_and_the_servers_node_names_the_server(edges: EdgeTotals) -> None:
    edges_of_servers_node = EdgeTotals()
    edges_of_servers_node.set_workloads({SERVER: CART}, 0)
    assert run_round(edges_of_servers_node, make_connection(100)) == {}
    assert edges_of_servers_node.responding_addresses == {SERVER}
    assert run_round(edges, make_connection(100)) == {EDGE: (100, 0)}
    assert edges.responding_addresses == set()


def test_public_addresses_are_one_edge(edges: EdgeTotals) -> None:
    connections = [make_connection(1, server=socket.inet_aton(f"8.8.{number}.1")) for number in range(200)]
    assert run_round(edges, *connections) == {TrafficEdge(WEB, OUTSIDE, 0): (200, 0)}


def test_a_flood_of_edges_is_bounded(edges: EdgeTotals) -> None:
    bytes_by_edge = run_round(edges, *make_connections(3 * MAX_EDGES))
    assert len(bytes_by_edge) == MAX_EDGES + 1
    assert bytes_by_edge[OVERFLOW_EDGE] == (2 * MAX_EDGES, 0)


def test_memory_does_not_grow_with_the_connections_that_end_in_a_round(edges: EdgeTotals) -> None:
    ended_connections = make_connections(60_000, request_bytes=70)
    tracemalloc.start()
    for connection in ended_connections:
        edges.add_ended(connection)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 4 << 20
    assert sum(request_bytes for request_bytes, _ in run_round(edges).values()) == 60_000 * 70


def test_an_edge_that_leaves_the_overflow_edge_is_not_counted_twice(edges: EdgeTotals) -> None:
    connections = [*make_connections(MAX_EDGES), make_connection(100)]
    assert run_round(edges, *connections)[OVERFLOW_EDGE] == (100, 0)
    # All other edges expire, so the connection gets an edge of its own after this round.
    expired_s = EDGE_EXPIRY_S + 1
    assert run_round(edges, connections[-1], now_s=expired_s)[OVERFLOW_EDGE] == (100, 0)

    edges.begin_round(expired_s, READ_AT_S)  # the dump of this round fails
    assert run_round(edges, connections[-1], now_s=expired_s + 1) == {OVERFLOW_EDGE: (100, 0), EDGE: (0, 0)}
    assert run_round(edges, make_connection(150), now_s=expired_s + 2)[EDGE] == (50, 0)


def test_an_address_belongs_to_its_deleted_pod_for_a_while_unless_another_pod_gets_it(edges: EdgeTotals) -> None:
    edges.set_workloads({}, 10)
    edges.add_ended(make_connection(70))
    assert run_round(edges, now_s=10) == {EDGE: (70, 0)}
    edges.set_workloads({CLIENT: CART}, 20)
    assert run_round(edges, make_connection(5), now_s=20)[TrafficEdge(CART, "10.9.1.2", 80)] == (5, 0)

    edges.set_workloads({}, 30)
    edges.set_workloads({}, 29 + ADDRESS_EXPIRY_S)
    assert CLIENT in edges.workload_by_address
    edges.set_workloads({}, 31 + ADDRESS_EXPIRY_S)
    assert CLIENT not in edges.workload_by_address


def test_an_edge_is_forgotten_after_an_hour_without_traffic(edges: EdgeTotals) -> None:
    edges.add_ended(make_connection(70))
    assert run_round(edges, now_s=0)
    assert run_round(edges, now_s=EDGE_EXPIRY_S)
    assert not run_round(edges, now_s=EDGE_EXPIRY_S + 1)


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
    collector.edges.add_ended(make_connection(100, 900))
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
