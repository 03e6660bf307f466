"""Requests over rtnetlink through pyroute2, and dumps of it with decoders that read only the fields asked for.

pyroute2 decodes every attribute of every message: 200 ms for a node with 110 limited pods, where a fifth of a percent of a
core is what an idle agent may take. Its requests take a parser of one's own, which is used here; layouts are those of
linux/if_link.h, linux/rtnetlink.h and linux/pkt_sched.h.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_MIN_TYPE
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkRequest
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from agent.netlink import KernelError

T = TypeVar("T")
Parse = Callable[[bytes, int, int], T | None]
"""Reads one message: the datagram, where its body begins (after nlmsghdr), and where it ends."""
Spans = dict[int, tuple[int, int]]
"""Attributes by number: begin and end of the payload; of repeated ones the last."""

IFINFO, TC = struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
"""struct ifinfomsg (family, type, index, flags, change), struct tcmsg (family, index, handle, parent, info)."""

DEADLINE_S = 10.0
_TRIES = 3
_HEADER = struct.Struct("=IHHI")
_HEADER_BYTES = 16
_ATTRIBUTE = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_ERRNO = struct.Struct("=i")
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


@asynccontextmanager
async def rtnetlink(what: str) -> AsyncIterator[AsyncIPRoute]:
    """A socket for some requests, all of them within ten seconds. The kernel is asked for its reasons.

    Raises:
        KernelError: a request failed, or got no answer in time; begins with ``what``.
    """
    try:
        async with asyncio.timeout(DEADLINE_S), AsyncIPRoute(ext_ack=True) as netlink:
            yield netlink
    except NetlinkError as error:
        raise KernelError(f"{what}: {error.args[1]}", error.code) from error
    except TimeoutError as error:  # which is an OSError, too
        raise KernelError(f"{what}: no answer in time") from error
    except OSError as error:
        raise KernelError(f"{what}: {error.strerror}", error.errno or 0) from error


async def dump(netlink: AsyncIPRoute, request: Callable[[], Any], type_: int, parse: Parse[T]) -> list[T]:
    """Ask for a dump and read each message with ``parse``; those that it gives None for are left out.

    A dump that a change interrupted is taken again. What the third brings counts: the change is told, and looked at, too.

    Args:
        netlink: where to ask.
        request: makes the question, afresh for each try.
        type_: of the question, RTM_GET*.
        parse: reads an answer.
    """
    for _ in range(_TRIES - 1):
        found, interrupted = await _dump_once(netlink, request(), type_, parse)
        if not interrupted:
            return found
    return (await _dump_once(netlink, request(), type_, parse))[0]


async def _dump_once(netlink: AsyncIPRoute, request: Any, type_: int, parse: Parse[T]) -> tuple[list[T], bool]:
    interrupted = False

    def read(data: bytes, offset: int, length: int) -> Any:
        nonlocal interrupted
        _, kind, flags, sequence = _HEADER.unpack_from(data, offset)
        interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
        if kind < NLMSG_MIN_TYPE:
            if kind == NLMSG_DONE and not flags & NLM_F_ACK_TLVS:
                _check_end(data, offset + _HEADER_BYTES, offset + length)
            return netlink.marshal.parse_one_message(kind, flags, sequence, data, offset, length)
        header = {"type": kind, "flags": flags, "sequence_number": sequence, "error": None}
        return {"header": header, "value": parse(data, offset + _HEADER_BYTES, offset + length)}

    sent = NetlinkRequest(netlink, request, msg_type=type_, msg_flags=NLM_F_REQUEST | NLM_F_DUMP, parser=read)
    await sent.send()
    found = [message["value"] async for message in sent.response() if message.get("value") is not None]
    return found, interrupted


def _check_end(data: bytes, begin: int, end: int) -> None:
    """Raise what the end of a dump says, which pyroute2 0.9 reads only where the kernel explains it; 0 is fine."""
    code = -_ERRNO.unpack_from(data, begin)[0] if begin + _ERRNO.size <= end else 0
    if code:
        raise NetlinkError(code)


def tc_request(index: int = 0, parent: int = 0) -> tcmsg:
    """The question for queueing disciplines, classes or filters, of one device or (0) of all."""
    request = tcmsg()
    request["index"], request["parent"] = index, parent
    return request


def attributes(data: bytes, begin: int, end: int) -> Spans:
    """The attributes between two places, as in nested attributes or behind a message's fixed part."""
    return dict(each_attribute(data, begin, end))


def each_attribute(data: bytes, begin: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Number and span of each attribute, repeated ones included."""
    while begin + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < 4 or begin + length > end:
            return
        yield kind & _TYPE_MASK, (begin + 4, begin + length)
        begin += (length + 3) & ~3


def nested(data: bytes, spans: Spans, kind: int) -> Spans:
    """The attributes inside an attribute; none without it."""
    span = spans.get(kind)
    return {} if span is None else attributes(data, *span)


def read_u32(data: bytes, spans: Spans, kind: int) -> int | None:
    """An attribute that is an unsigned 32-bit number."""
    span = spans.get(kind)
    return None if span is None or span[1] - span[0] < 4 else int(_U32.unpack_from(data, span[0])[0])


def read_number(data: bytes, spans: Spans, kind: int) -> int | None:
    """An attribute that is an unsigned number of any width, in the machine's byte order."""
    span = spans.get(kind)
    return None if span is None or span[0] == span[1] else int.from_bytes(data[slice(*span)], sys.byteorder)


def read_text(data: bytes, spans: Spans, kind: int) -> str:
    """An attribute that is a text; empty without it."""
    span = spans.get(kind)
    return "" if span is None else data[span[0] : span[1]].rstrip(b"\0").decode("utf-8", "replace")
