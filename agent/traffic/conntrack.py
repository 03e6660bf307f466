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

from agent.netlink import HEADER, KernelError, each_datagram, each_message, follow, open_netlink

NETLINK_NETFILTER = 12
_SOL_NETLINK, _ADD_MEMBERSHIP, _DESTROY_GROUP = 270, 1, 3
_SO_RCVBUFFORCE = 33
_EVENT_BUFFER_BYTES = 4 << 20
_DUMP_BUFFER_BYTES = 1 << 16
DEADLINE_S = 10.0

_NEW, _DELETE = 0x100, 0x102  # NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_*
_GET = 0x101
_ERROR, _DONE = 2, 3
_REQUEST_DUMP = 0x301
_FAMILY = struct.Struct("=BBH")
_ERRNO = struct.Struct("=i")
_PORT = struct.Struct("!H")
_BYTES = struct.Struct("!Q")
_FIXED = HEADER.size + _FAMILY.size

_U16 = struct.Struct("=HH")
_ORIGINAL, _REPLY, _IP, _PROTO = 0x8001, 0x8002, 0x8001, 0x8002


class Entry(NamedTuple):
    """A connection: its client, the pod that answers, and the bytes of each direction (IP headers included).

    ``server`` is the source of answers, so a pod and not a Service. Counters are None if the kernel does not count this connection.
    """

    client: bytes
    server: bytes
    port: int
    request_bytes: int | None
    response_bytes: int | None


class _Shape(NamedTuple):
    """Offsets of the fields of a tuple with ports."""

    original: bytes
    reply: bytes
    size: int
    address: int
    source_port: int


def _shape(width: int) -> _Shape:
    """The layout for addresses of ``width`` bytes: nested IP (source, destination), nested PROTO (number, source port, destination port)."""
    addresses = 4 + 2 * (4 + width)
    size = 4 + addresses + 28
    ip = _U16.pack(addresses, _IP) + _U16.pack(4 + width, 1 if width == 4 else 3)
    return _Shape(_U16.pack(size, _ORIGINAL) + ip, _U16.pack(size, _REPLY) + ip, size, 12, 4 + addresses + 4 + 8 + 4)


_SHAPES = {4: _shape(4), 6: _shape(16)}
_BY_HEAD = {shape.original: (shape, width) for shape, width in ((_SHAPES[4], 4), (_SHAPES[6], 16))}
_HEAD_BYTES = 12
_COUNTED_REQUEST = _U16.pack(28, 0x8009) + _U16.pack(12, 1)
_COUNTED_RESPONSE = _U16.pack(28, 0x800A) + _U16.pack(12, 1)
_TO_BYTES = 4 + 12 + 4  # header, packets, header of bytes


def read_entries(data: bytes) -> Iterator[Entry]:
    """The connections in a datagram of a dump or of events.

    Raises:
        KernelError: the kernel answered with an error.
    """
    for kind, begin, end in each_message(data):
        if kind == _ERROR:
            # A truncated error is an error too.
            code = -_ERRNO.unpack_from(data, begin)[0] if begin + _ERRNO.size <= end else errno.EBADMSG
            if code:
                raise KernelError(f"connection tracking: {errno.errorcode.get(code, code)}", code)
        elif kind in (_NEW, _DELETE):
            entry = _read_entry(data, begin + _FAMILY.size, end)
            if entry is not None:
                yield entry


def _read_entry(data: bytes, begin: int, end: int) -> Entry | None:
    known = _BY_HEAD.get(data[begin : begin + _HEAD_BYTES])
    if known is None:
        return None
    shape, width = known
    reply = begin + shape.size
    if data[reply : reply + _HEAD_BYTES] != shape.reply or reply + shape.size > end:
        return None
    client, server = begin + shape.address, reply + shape.address
    behind = reply + shape.size
    return Entry(
        data[client : client + width],
        data[server : server + width],
        _PORT.unpack_from(data, reply + shape.source_port)[0],
        _counted(data, _COUNTED_REQUEST, behind, end),
        _counted(data, _COUNTED_RESPONSE, behind, end),
    )


def _counted(data: bytes, head: bytes, begin: int, end: int) -> int | None:
    position = data.find(head, begin, end)
    return None if position < 0 or position + 28 > end else int(_BYTES.unpack_from(data, position + _TO_BYTES)[0])


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
                async with asyncio.timeout(DEADLINE_S):
                    data = await loop.sock_recv(netlink, _DUMP_BUFFER_BYTES)
                yield data
                if any(kind in (_DONE, _ERROR) for kind, _, _ in each_message(data)):
                    return
                # A dump can always be read, so without this no other task would run.
                await asyncio.sleep(0)
    except TimeoutError as error:
        raise KernelError("connection tracking: no answer in time") from error
    except OSError as error:
        raise KernelError(f"connection tracking: {error.strerror}", error.errno or 0) from error


async def listen(take: Callable[[bytes], None], lost: Callable[[], None]) -> None:
    """Pass on the kernel's events of ended connections until cancelled; calls ``lost`` if it dropped some.

    Raises:
        KernelError: listening is not permitted.
    """

    def read(netlink: socket.socket) -> None:
        for data in each_datagram(netlink):
            if data is None:
                lost()
            else:
                take(data)

    try:
        with open_netlink(NETLINK_NETFILTER) as netlink:
            netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _EVENT_BUFFER_BYTES)
            netlink.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _DESTROY_GROUP)
            await follow(netlink, read)
    except OSError as error:
        raise KernelError(f"connection tracking: {error.strerror}", error.errno or 0) from error


class TableState(NamedTuple):
    """State of the kernel's table; None is unknown.

    Attributes:
        accounting: whether bytes of new connections are counted (``nf_conntrack_acct``).
        events: whether their ends are reported (``nf_conntrack_events``).
        dropped: connections refused since the node started because the table was full.
        pushed_out: connections removed early to make room.
    """

    accounting: bool | None
    events: bool | None
    dropped: int | None
    pushed_out: int | None


def read_table_state(proc: Path) -> TableState:
    """Read the state of the table of this process's network namespace."""
    folder = proc / "sys/net/netfilter"
    accounting, events = _number(folder / "nf_conntrack_acct"), _number(folder / "nf_conntrack_events")
    dropped, pushed_out = _statistics(proc / "self/net/stat/nf_conntrack")
    return TableState(
        None if accounting is None else accounting > 0,
        None if events is None else events > 0,
        dropped,
        pushed_out,
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
        dropped, pushed_out = (sum(int(line.split()[column], 16) for line in lines) for column in columns)
    except (OSError, ValueError, IndexError):
        return None, None
    return dropped, pushed_out
