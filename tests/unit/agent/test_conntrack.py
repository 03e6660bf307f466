"""Messages of the kernel about connections are parsed, and the state of connection tracking is read."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from agent.netlink import KernelError
from agent.traffic.conntrack import Connection, ConntrackState, parse_connections, read_conntrack_state
from tests.support.conntrack_messages import CT_DELETE, CT_NEW, CTA_TUPLE_ORIG, encode_attribute, encode_connection

IPV4 = Connection(socket.inet_aton("10.9.0.2"), socket.inet_aton("10.9.1.2"), 8080, 1424, 50_424)
NLMSG_ERROR = 2
TUPLE_BYTES = 52
"""Size of a tuple of TCP over IPv4."""


def encode_error(code: int) -> bytes:
    return struct.pack("=IHHIIi", 20, NLMSG_ERROR, 0, 1, 0, code)


@pytest.mark.parametrize("kind", [CT_NEW, CT_DELETE], ids=["dump", "end"])
def test_a_connection_is_read_with_the_pod_that_answers_and_both_counters(kind: int) -> None:
    client, server = (socket.inet_pton(socket.AF_INET6, address) for address in ("fd00::1", "fd00::2"))
    ipv6 = Connection(client, server, 443, 1, 2)
    uncounted = IPV4._replace(request_bytes=None, response_bytes=None)
    unknown_attribute = encode_attribute(12, bytes(4))  # the kernel's order may change

    datagram = encode_connection(IPV4, kind, unknown_attribute)
    datagram += encode_connection(ipv6, kind) + encode_connection(uncounted, kind)
    assert list(parse_connections(datagram)) == [IPV4, ipv6, uncounted]


def test_messages_that_are_cut_or_have_no_ports_are_skipped() -> None:
    message = encode_connection(IPV4, CT_NEW)
    assert list(parse_connections(message[:60])) == []
    assert list(parse_connections(struct.pack("=IHHII", 3, CT_NEW, 0, 1, 0))) == [], "shorter than its header"
    assert list(parse_connections(message + message[:2])) == [IPV4]

    # A tuple of a protocol without ports, such as ICMP, is of another length.
    tcp_tuple, icmp_tuple = (struct.pack("=HH", size, CTA_TUPLE_ORIG) for size in (TUPLE_BYTES, TUPLE_BYTES + 8))
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
