"""Reads connection tracking: dumps of the table and events about ended connections over netlink, settings and counters from procfs.

Layouts: linux/netfilter/nfnetlink_conntrack.h. A node may have 100,000 connections, so only the needed fields are decoded: the tuples,
which have one layout for each address family, and the counters. Connections without ports are skipped. Needs NET_ADMIN on the node.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agent.netlink import ATTRIBUTE, ERRNO, HEADER, KernelError, iter_messages, listen, open_socket

_NETLINK_NETFILTER, _CONNTRACK_DESTROY_GROUP = 12, 4
"""The group is that of the mask NF_NETLINK_CONNTRACK_DESTROY."""
_EVENT_BUFFER_BYTES = 4 << 20  # For bursts of ended connections.
_DUMP_BUFFER_BYTES = 1 << 16
_RECEIVE_TIMEOUT_S = 10.0

_CT_NEW, _CT_GET, _CT_DELETE = 0x100, 0x101, 0x102
"""NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_*."""
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""
_NFGENMSG = struct.Struct("=BBH")
"""struct nfgenmsg: family, version, resource."""
_PORT = struct.Struct("!H")
_BYTES = struct.Struct("!Q")

_TUPLE_ORIG, _TUPLE_REPLY, _TUPLE_IP = 0x8001, 0x8002, 0x8001
_COUNTERS_ORIG, _COUNTERS_REPLY, _COUNTERS_PACKETS = 0x8009, 0x800A, 1
"""CTA_TUPLE_*, CTA_TUPLE_IP (1, as CTA_TUPLE_ORIG) and CTA_COUNTERS_*, with NLA_F_NESTED; CTA_COUNTERS_PACKETS."""
_IPV4_SOURCE, _IPV6_SOURCE = 1, 3
"""CTA_IP_V4_SRC, CTA_IP_V6_SRC."""
_PREFIX_BYTES = 3 * ATTRIBUTE.size
"""The headers of a tuple, of its addresses, and of the source address, which follows."""
_PROTO_BYTES, _COUNTERS_BYTES = 28, 28
"""Sizes of the attributes of ports and of counters, with their headers."""


class Connection(NamedTuple):
    """A connection, and its bytes in each direction.

    Attributes:
        client: address of the client in network byte order.
        server, port: source of the reply tuple: after DNAT the pod, not the Service.
        request_bytes, response_bytes: with IP headers; None if the kernel does not count them.
    """

    client: bytes
    server: bytes
    port: int
    request_bytes: int | None
    response_bytes: int | None


class _TupleLayout(NamedTuple):
    """The layout of tuples with ports of one address family; prefixes are the first bytes of a tuple."""

    original_prefix: bytes
    reply_prefix: bytes
    address_bytes: int
    tuple_bytes: int
    source_port_offset: int


def _make_tuple_layout(address_bytes: int, source_type: int) -> _TupleLayout:
    """Make the layout of a tuple: nested IP (source, destination), nested PROTO (number, source port, destination port)."""
    header = ATTRIBUTE.size
    ip_bytes = header + 2 * (header + address_bytes)
    tuple_bytes = header + ip_bytes + _PROTO_BYTES
    ip = ATTRIBUTE.pack(ip_bytes, _TUPLE_IP) + ATTRIBUTE.pack(header + address_bytes, source_type)
    original, reply = (ATTRIBUTE.pack(tuple_bytes, type_) + ip for type_ in (_TUPLE_ORIG, _TUPLE_REPLY))
    protocol_number_bytes = header + 4  # One byte, padded to four.
    # Before the source port: the tuple's header, IP, PROTO's header, the protocol's number, the port's own header.
    source_port_offset = header + ip_bytes + header + protocol_number_bytes + header
    return _TupleLayout(original, reply, address_bytes, tuple_bytes, source_port_offset)


_LAYOUTS = _make_tuple_layout(4, _IPV4_SOURCE), _make_tuple_layout(16, _IPV6_SOURCE)
_LAYOUT_BY_PREFIX = {layout.original_prefix: layout for layout in _LAYOUTS}
_COUNTERS_PREFIX_END = ATTRIBUTE.pack(ATTRIBUTE.size + 8, _COUNTERS_PACKETS)
_ORIG_COUNTERS_PREFIX = ATTRIBUTE.pack(_COUNTERS_BYTES, _COUNTERS_ORIG) + _COUNTERS_PREFIX_END
_REPLY_COUNTERS_PREFIX = ATTRIBUTE.pack(_COUNTERS_BYTES, _COUNTERS_REPLY) + _COUNTERS_PREFIX_END
_BYTE_COUNTER_OFFSET = _COUNTERS_BYTES - _BYTES.size


def parse_connections(data: bytes) -> Iterator[Connection]:
    """Parse the connections in a datagram of a dump or of events.

    Raises:
        KernelError: the kernel answered with an error.
    """
    for kind, begin, end in iter_messages(data):
        if kind == _NLMSG_ERROR:
            code = -ERRNO.unpack_from(data, begin)[0] if begin + ERRNO.size <= end else errno.EBADMSG
            if code:
                raise KernelError(f"connection tracking: {errno.errorcode.get(code, code)}")
        elif kind in (_CT_NEW, _CT_DELETE):
            connection = _parse_connection(data, begin + _NFGENMSG.size, end)
            if connection is not None:
                yield connection


def _parse_connection(data: bytes, begin: int, end: int) -> Connection | None:
    """Parse the attributes of a connection; None if it has no ports or is cut."""
    layout = _LAYOUT_BY_PREFIX.get(data[begin : begin + _PREFIX_BYTES])
    if layout is None:
        return None
    reply_begin = begin + layout.tuple_bytes
    reply_end = reply_begin + layout.tuple_bytes
    if data[reply_begin : reply_begin + _PREFIX_BYTES] != layout.reply_prefix or reply_end > end:
        return None
    client_begin, server_begin = begin + _PREFIX_BYTES, reply_begin + _PREFIX_BYTES
    return Connection(
        data[client_begin : client_begin + layout.address_bytes],
        data[server_begin : server_begin + layout.address_bytes],
        _PORT.unpack_from(data, reply_begin + layout.source_port_offset)[0],
        _read_byte_counter(data, _ORIG_COUNTERS_PREFIX, reply_end, end),
        _read_byte_counter(data, _REPLY_COUNTERS_PREFIX, reply_end, end),
    )


def _read_byte_counter(data: bytes, prefix: bytes, begin: int, end: int) -> int | None:
    position = data.find(prefix, begin, end)
    if position < 0 or position + _COUNTERS_BYTES > end:
        return None
    return int(_BYTES.unpack_from(data, position + _BYTE_COUNTER_OFFSET)[0])


async def dump_table() -> AsyncIterator[bytes]:
    """Yield the whole table in datagrams of some 250 connections, as the kernel cuts it; other tasks run in between.

    Raises:
        KernelError: the table cannot be read.
    """
    loop = asyncio.get_running_loop()
    try:
        with open_socket(_NETLINK_NETFILTER) as netlink:
            header = HEADER.pack(HEADER.size + _NFGENMSG.size, _CT_GET, _REQUEST_DUMP, 1, 0)
            netlink.send(header + _NFGENMSG.pack(socket.AF_UNSPEC, 0, 0))
            while True:
                async with asyncio.timeout(_RECEIVE_TIMEOUT_S):
                    data = await loop.sock_recv(netlink, _DUMP_BUFFER_BYTES)
                yield data
                if any(kind in (_NLMSG_DONE, _NLMSG_ERROR) for kind, _, _ in iter_messages(data)):
                    return
                # The next datagram of a dump is always ready, so without this no other task would run.
                await asyncio.sleep(0)
    except TimeoutError as error:
        raise KernelError("connection tracking: no response in time") from error
    except OSError as error:
        raise KernelError(f"connection tracking: {error.strerror}") from error


async def listen_for_ends(on_datagram: Callable[[bytes | None], None]) -> None:
    """Call ``on_datagram`` with the kernel's events about ended connections until cancelled; with None if the kernel dropped events.

    Raises:
        KernelError: the socket cannot be opened or read.
    """
    try:
        await listen(_NETLINK_NETFILTER, _CONNTRACK_DESTROY_GROUP, _EVENT_BUFFER_BYTES, on_datagram)
    except OSError as error:
        raise KernelError(f"connection tracking: {error.strerror}") from error


class ConntrackState(NamedTuple):
    """The kernel's settings and counters of connection tracking; None for unknown ones.

    Attributes:
        has_accounting: bytes of new connections are counted (``nf_conntrack_acct``).
        has_events: the ends of connections are reported (``nf_conntrack_events``).
        drop_count: connections refused since the node started, because the table was full.
        early_drop_count: connections removed since the node started, to make room for new ones.
    """

    has_accounting: bool | None = None
    has_events: bool | None = None
    drop_count: int | None = None
    early_drop_count: int | None = None

    @property
    def problem(self) -> str:
        """Why counts are missing or incomplete, with the fix; empty if they are complete."""
        fix = "set it to 1 with sysctl on the node, and in sysctl.d for the next boot"
        if self.has_accounting is None:
            return "the kernel tracks no connections here (Cilium without kube-proxy does not)"
        if not self.has_accounting:
            return f"the kernel counts no bytes of connections: net.netfilter.nf_conntrack_acct is 0; {fix}"
        if self.has_events is False:
            return f"the kernel does not report ended connections: net.netfilter.nf_conntrack_events is 0; {fix}"
        return ""


def read_conntrack_state(proc: Path) -> ConntrackState:
    """Read the state of this process's network namespace."""
    settings = proc / "sys/net/netfilter"
    return ConntrackState(
        _read_switch(settings / "nf_conntrack_acct"),
        _read_switch(settings / "nf_conntrack_events"),
        *_read_drop_counts(proc / "self/net/stat/nf_conntrack"),
    )


def _read_switch(path: Path) -> bool | None:
    """Read a setting; None if the kernel does not have it. The value 2 (automatic) counts as on."""
    try:
        return int(path.read_text()) > 0
    except (OSError, ValueError):
        return None


def _read_drop_counts(path: Path) -> tuple[int | None, int | None]:
    """Read the sums of ``drop`` and ``early_drop``: hexadecimal columns, one line for each processor, under a line of names."""
    try:
        names, *lines = path.read_text().splitlines()
        columns = [names.split().index(name) for name in ("drop", "early_drop")]
        drops, early_drops = (sum(int(line.split()[column], 16) for line in lines) for column in columns)
    except (OSError, ValueError, IndexError):
        return None, None
    return drops, early_drops
