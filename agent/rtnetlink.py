"""Dumps of rtnetlink through pyroute2, with decoders that read only the fields asked for.

pyroute2 decodes every attribute of every message: 200 ms for a node with 110 limited pods, where a fifth of a percent of a
core is what an idle agent may take. Its requests take a parser of one's own, which is used here; layouts are those of
linux/if_link.h, linux/rtnetlink.h and linux/pkt_sched.h.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkRequest

from agent.errors import KernelError

T = TypeVar("T")
Parse = Callable[[bytes, int, int], T | None]
"""Reads one message: the datagram, where its body begins (after nlmsghdr), and where it ends."""
Spans = dict[int, tuple[int, int]]
"""Attributes by number: begin and end of the payload; of repeated ones the last."""

DEADLINE_S = 10.0
_HEADER = struct.Struct("=IHHI")
_HEADER_BYTES = 16
_ATTRIBUTE = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_FIRST_REAL_TYPE = 16
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


@asynccontextmanager
async def rtnetlink(what: str) -> AsyncIterator[AsyncIPRoute]:
    """A socket for some requests, all of them within ten seconds.

    Raises:
        KernelError: a request failed, or got no answer in time; begins with ``what``.
    """
    try:
        async with asyncio.timeout(DEADLINE_S), AsyncIPRoute() as netlink:
            yield netlink
    except NetlinkError as error:
        raise KernelError(f"{what}: {error}", error.code) from error
    except OSError as error:
        raise KernelError(f"{what}: {error}", error.errno or 0) from error
    except TimeoutError as error:
        raise KernelError(f"{what}: no answer in time") from error


async def dump(netlink: AsyncIPRoute, request: Any, type_: int, parse: Parse[T]) -> list[T]:
    """Ask for a dump and read each message with ``parse``; those that it gives None for are left out."""

    def read(data: bytes, offset: int, length: int) -> Any:
        _, kind, flags, sequence = _HEADER.unpack_from(data, offset)
        if kind < _FIRST_REAL_TYPE:
            return netlink.marshal.parse_one_message(kind, flags, sequence, data, offset, length)
        header = {"type": kind, "flags": flags, "sequence_number": sequence, "error": None}
        return {"header": header, "value": parse(data, offset + _HEADER_BYTES, offset + length)}

    sent = NetlinkRequest(netlink, request, msg_type=type_, msg_flags=NLM_F_REQUEST | NLM_F_DUMP, parser=read)
    await sent.send()
    return [message["value"] async for message in sent.response() if message.get("value") is not None]


def attributes(data: bytes, begin: int, end: int) -> Spans:
    """The attributes between two places, as in nested attributes or behind a message's fixed part."""
    found: Spans = {}
    while begin + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < 4 or begin + length > end:
            break
        found[kind & _TYPE_MASK] = (begin + 4, begin + length)
        begin += (length + 3) & ~3
    return found


def read_u32(data: bytes, spans: Spans, kind: int) -> int | None:
    """An attribute that is an unsigned 32-bit number."""
    span = spans.get(kind)
    return None if span is None or span[1] - span[0] < 4 else int(_U32.unpack_from(data, span[0])[0])


def read_text(data: bytes, spans: Spans, kind: int) -> str:
    """An attribute that is a text; empty without it."""
    span = spans.get(kind)
    return "" if span is None else data[span[0] : span[1]].rstrip(b"\0").decode("utf-8", "replace")


def nested(data: bytes, spans: Spans, kind: int) -> Spans:
    """The attributes inside an attribute; none without it."""
    span = spans.get(kind)
    return {} if span is None else attributes(data, *span)
