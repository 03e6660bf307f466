"""Encodes the kernel's messages about connections (linux/nfnetlink_conntrack.h)."""

from __future__ import annotations

import socket
import struct

from agent.traffic.conntrack import Connection

CT_NEW, CT_DELETE = 0x100, 0x102
"""Kinds of messages of a dump, and of events about ended connections (linux/nfnetlink_conntrack.h)."""
CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_COUNTERS_ORIG, CTA_COUNTERS_REPLY = 0x8001, 0x8002, 3, 0x8009, 0x800A
"""Attributes of a connection; with the flag NLA_F_NESTED (0x8000), except the status."""
CTA_TUPLE_IP, CTA_TUPLE_PROTO = 0x8001, 0x8002


def encode_attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def encode_connection(connection: Connection, kind: int, first_attribute: bytes = b"") -> bytes:
    """A message in the kernel's layout (checked against the kernel itself in the integration tests).

    ``first_attribute`` stands after the tuples, before all other attributes.
    """
    service = bytes(len(connection.client))
    body = struct.pack("=BBH", socket.AF_INET if len(service) == 4 else socket.AF_INET6, 0, 0)
    body += _encode_tuple(CTA_TUPLE_ORIG, connection.client, service, (40_000, 80))
    body += _encode_tuple(CTA_TUPLE_REPLY, connection.server, connection.client, (connection.port, 40_000))
    body += first_attribute + encode_attribute(CTA_STATUS, bytes(4))
    for counters, byte_count in (
        (CTA_COUNTERS_ORIG, connection.request_bytes),
        (CTA_COUNTERS_REPLY, connection.response_bytes),
    ):
        if byte_count is not None:
            packets_and_bytes = encode_attribute(1, bytes(8)) + encode_attribute(2, struct.pack("!Q", byte_count))
            body += encode_attribute(counters, packets_and_bytes)
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def _encode_tuple(kind: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> bytes:
    source_kind = 1 if len(source) == 4 else 3  # CTA_IP_V4_SRC or CTA_IP_V6_SRC; the destination's is the next number
    addresses = encode_attribute(source_kind, source) + encode_attribute(source_kind + 1, destination)
    tcp_ports = encode_attribute(1, bytes([socket.IPPROTO_TCP]))
    tcp_ports += b"".join(encode_attribute(2 + i, struct.pack("!H", port)) for i, port in enumerate(ports))
    return encode_attribute(
        kind, encode_attribute(CTA_TUPLE_IP, addresses) + encode_attribute(CTA_TUPLE_PROTO, tcp_ports)
    )
