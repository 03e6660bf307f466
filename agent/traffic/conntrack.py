"""Reads the kernel's connection tracking over netlink: dumps, and events of ended connections.

Layouts are those of linux/netfilter/nfnetlink_conntrack.h. A node may have 100,000 connections, so only the needed fields are
decoded: the tuple, which has one shape for each address family, and the counters. Connections without ports (ICMP, GRE) are
skipped. Needs NET_ADMIN in the node's network namespace.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agent.netlink import HEADER, KernelError, call_when_readable, each_datagram, each_message, open_netlink

NETLINK_NETFILTER = 12
_SOL_NETLINK, _ADD_MEMBERSHIP, _DESTROY_GROUP = 270, 1, 3
_SO_RCVBUFFORCE = 33
_EVENT_BUFFER_BYTES = 4 << 20
_DUMP_BUFFER_BYTES = 1 << 16
_RECV_TIMEOUT_S = 10.0

_NEW, _DELETE = 0x100, 0x102  # NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_*
_GET = 0x101
_ERROR, _DONE = 2, 3
_REQUEST_DUMP = 0x301
_FAMILY = struct.Struct("=BBH")
_ERRNO = struct.Struct("=i")
_PORT = struct.Struct("!H")
_BYTES = struct.Struct("!Q")
_FIXED = HEADER.size + _FAMILY.size

_ATTRIBUTE = struct.Struct("=HH")
"""struct nlattr: length, type."""
_TUPLE_ORIG, _TUPLE_REPLY, _TUPLE_IP = 0x8001, 0x8002, 0x8001
_COUNTERS_ORIG, _COUNTERS_REPLY, _COUNTERS_PACKETS = 0x8009, 0x800A, 1
"""CTA_* with NLA_F_NESTED, but for the last one."""
_PROTO_BYTES, _COUNTERS_BYTES = 28, 28


class Entry(NamedTuple):
    """A connection, and the bytes of each direction (IP headers included); None if the kernel does not count them.

    ``server`` and ``port`` are the source of the reply tuple: the pod after DNAT, not the Service.
    """

    client: bytes
    server: bytes
    port: int
    request_bytes: int | None
    response_bytes: int | None


_PREFIX_BYTES = 3 * _ATTRIBUTE.size
"""The headers of a tuple, of its addresses, and of the source address, which follows."""


class _TupleLayout(NamedTuple):
    """How a tuple with ports begins in each direction, its size, and the offset of its source port."""

    original_prefix: bytes
    reply_prefix: bytes
    address_bytes: int
    size: int
    source_port: int


def _tuple_layout(address_bytes: int) -> _TupleLayout:
    """The layout for addresses of a size: nested IP (source, destination), nested PROTO (number, source port, destination port)."""
    header = _ATTRIBUTE.size
    ip_bytes = header + 2 * (header + address_bytes)
    size = header + ip_bytes + _PROTO_BYTES
    ip = _ATTRIBUTE.pack(ip_bytes, _TUPLE_IP) + _ATTRIBUTE.pack(header + address_bytes, 1 if address_bytes == 4 else 3)
    original, reply = (_ATTRIBUTE.pack(size, type_) + ip for type_ in (_TUPLE_ORIG, _TUPLE_REPLY))
    # The source port comes after the headers of tuple and PROTO, and the attribute of the protocol's number.
    return _TupleLayout(original, reply, address_bytes, size, header + ip_bytes + header + 2 * header + header)


_LAYOUT_BY_PREFIX = {layout.original_prefix: layout for layout in (_tuple_layout(4), _tuple_layout(16))}
_COUNTERS_PREFIX_END = _ATTRIBUTE.pack(_ATTRIBUTE.size + 8, _COUNTERS_PACKETS)
_ORIG_COUNTERS_PREFIX = _ATTRIBUTE.pack(_COUNTERS_BYTES, _COUNTERS_ORIG) + _COUNTERS_PREFIX_END
_REPLY_COUNTERS_PREFIX = _ATTRIBUTE.pack(_COUNTERS_BYTES, _COUNTERS_REPLY) + _COUNTERS_PREFIX_END
_BYTE_COUNTER_OFFSET = _COUNTERS_BYTES - _BYTES.size


def read_entries(data: bytes) -> Iterator[Entry]:
    """The connections in a datagram of a dump or of events.

    Raises:
        KernelError: the kernel answered with an error.
    """
    for kind, begin, end in each_message(data):
        if kind == _ERROR:
            code = -_ERRNO.unpack_from(data, begin)[0] if begin + _ERRNO.size <= end else errno.EBADMSG
            if code:
                raise KernelError(f"connection tracking: {errno.errorcode.get(code, code)}", code)
        elif kind in (_NEW, _DELETE):
            entry = _read_entry(data, begin + _FAMILY.size, end)
            if entry is not None:
                yield entry


def _read_entry(data: bytes, begin: int, end: int) -> Entry | None:
    layout = _LAYOUT_BY_PREFIX.get(data[begin : begin + _PREFIX_BYTES])
    if layout is None:
        return None
    reply = begin + layout.size
    if data[reply : reply + _PREFIX_BYTES] != layout.reply_prefix or reply + layout.size > end:
        return None
    client, server = begin + _PREFIX_BYTES, reply + _PREFIX_BYTES
    rest = reply + layout.size
    return Entry(
        data[client : client + layout.address_bytes],
        data[server : server + layout.address_bytes],
        _PORT.unpack_from(data, reply + layout.source_port)[0],
        _read_byte_counter(data, _ORIG_COUNTERS_PREFIX, rest, end),
        _read_byte_counter(data, _REPLY_COUNTERS_PREFIX, rest, end),
    )


def _read_byte_counter(data: bytes, prefix: bytes, begin: int, end: int) -> int | None:
    position = data.find(prefix, begin, end)
    if position < 0 or position + _COUNTERS_BYTES > end:
        return None
    return int(_BYTES.unpack_from(data, position + _BYTE_COUNTER_OFFSET)[0])


async def dump() -> AsyncIterator[bytes]:
    """The whole table, a datagram of some 250 connections at a time, so that other tasks run in between.

    Raises:
        KernelError: it cannot be read.
    """
    loop = asyncio.get_running_loop()
    try:
        with open_netlink(NETLINK_NETFILTER) as netlink:
            netlink.send(HEADER.pack(_FIXED, _GET, _REQUEST_DUMP, 1, 0) + _FAMILY.pack(socket.AF_UNSPEC, 0, 0))
            while True:
                async with asyncio.timeout(_RECV_TIMEOUT_S):
                    data = await loop.sock_recv(netlink, _DUMP_BUFFER_BYTES)
                yield data
                if any(kind in (_DONE, _ERROR) for kind, _, _ in each_message(data)):
                    return
                # A dump can always be read, so without this no other task would run.
                await asyncio.sleep(0)
    except TimeoutError as error:
        raise KernelError("connection tracking: no response in time") from error
    except OSError as error:
        raise KernelError(f"connection tracking: {error.strerror}", error.errno or 0) from error


async def listen(on_datagram: Callable[[bytes], None], on_overflow: Callable[[], None]) -> None:
    """Call back with the kernel's events of ended connections until cancelled; ``on_overflow`` if it dropped some.

    Raises:
        KernelError: the socket cannot be opened or read.
    """

    def read(netlink: socket.socket) -> None:
        for data in each_datagram(netlink):
            if data is None:
                on_overflow()
            else:
                on_datagram(data)

    try:
        with open_netlink(NETLINK_NETFILTER) as netlink:
            netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _EVENT_BUFFER_BYTES)
            netlink.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _DESTROY_GROUP)
            await call_when_readable(netlink, read)
    except OSError as error:
        raise KernelError(f"connection tracking: {error.strerror}", error.errno or 0) from error


class TableState(NamedTuple):
    """State of the kernel's table; None is unknown.

    Attributes:
        accounting: whether bytes of new connections are counted (``nf_conntrack_acct``).
        events: whether their ends are reported (``nf_conntrack_events``).
        dropped: connections refused since the node started because the table was full.
        early_dropped: connections removed early to make room.
    """

    accounting: bool | None
    events: bool | None
    dropped: int | None
    early_dropped: int | None


def read_table_state(proc: Path) -> TableState:
    """Read the state of the table of this process's network namespace."""
    folder = proc / "sys/net/netfilter"
    accounting, events = _number(folder / "nf_conntrack_acct"), _number(folder / "nf_conntrack_events")
    dropped, early_dropped = _statistics(proc / "self/net/stat/nf_conntrack")
    return TableState(
        None if accounting is None else accounting > 0,
        None if events is None else events > 0,
        dropped,
        early_dropped,
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _statistics(path: Path) -> tuple[int | None, int | None]:
    """``drop`` and ``early_drop``: hexadecimal columns, one line for each processor, under a line of names."""
    try:
        names, *lines = path.read_text().splitlines()
        columns = [names.split().index(name) for name in ("drop", "early_drop")]
        dropped, early_dropped = (sum(int(line.split()[column], 16) for line in lines) for column in columns)
    except (OSError, ValueError, IndexError):
        return None, None
    return dropped, early_dropped
