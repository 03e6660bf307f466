"""rtnetlink requests through pyroute2, and dumps whose messages our own parsers read.

pyroute2 decodes every attribute of every message, which takes 200 ms for a node with 110 limited pods. Our parsers read only the
attributes we need. Layouts: linux/if_link.h, linux/rtnetlink.h, linux/pkt_sched.h.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pyroute2.iproute.linux import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_MIN_TYPE
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkRequest
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from agent.netlink import HEADER, KernelError

T = TypeVar("T")
Parse = Callable[[bytes, int, int], T | None]
"""Parses one message: the datagram, the offset of its body (after nlmsghdr), and the offset of its end."""
Spans = dict[int, tuple[int, int]]
"""Attribute number -> begin and end of its payload; the last one if an attribute repeats."""

IFINFO, TC = struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
"""struct ifinfomsg (family, type, index, flags, change), struct tcmsg (family, index, handle, parent, info)."""

DEADLINE_S = 10.0
_TRIES = 3
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


@asynccontextmanager
async def rtnetlink(what: str) -> AsyncIterator[AsyncIPRoute]:
    """An rtnetlink socket; all requests on it must end within ten seconds. Asks the kernel for extended errors.

    Raises:
        KernelError: a request failed or timed out; the message begins with ``what``.
    """
    try:
        async with asyncio.timeout(DEADLINE_S), AsyncIPRoute(ext_ack=True) as netlink:
            yield netlink
    except NetlinkError as error:
        raise KernelError(f"{what}: {error.args[1]}", error.code) from error
    except TimeoutError as error:  # Before OSError, which it is a subclass of.
        raise KernelError(f"{what}: no response in time") from error
    except OSError as error:
        raise KernelError(f"{what}: {error.strerror}", error.errno or 0) from error


async def dump(netlink: AsyncIPRoute, request: Callable[[], Any], type_: int, parse: Parse[T]) -> list[T]:
    """Request a dump and parse each message; results that are None are dropped.

    A dump that was interrupted by a change is repeated, at most twice; a later event reports the change anyway.

    Args:
        netlink: the socket.
        request: builds the request, once per attempt.
        type_: of the request, RTM_GET*.
        parse: parses one message.
    """
    for _ in range(_TRIES - 1):
        results, interrupted = await _dump_once(netlink, request(), type_, parse)
        if not interrupted:
            return results
    return (await _dump_once(netlink, request(), type_, parse))[0]


async def _dump_once(netlink: AsyncIPRoute, request: Any, type_: int, parse: Parse[T]) -> tuple[list[T], bool]:
    interrupted = False

    def read(data: bytes, offset: int, length: int) -> Any:
        nonlocal interrupted
        _, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
        interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
        if kind < NLMSG_MIN_TYPE:
            if kind == NLMSG_DONE and not flags & NLM_F_ACK_TLVS:
                _check_end(data, offset + HEADER.size, offset + length)
            return netlink.marshal.parse_one_message(kind, flags, sequence, data, offset, length)
        header = {"type": kind, "flags": flags, "sequence_number": sequence, "error": None}
        return {"header": header, "value": parse(data, offset + HEADER.size, offset + length)}

    sent = NetlinkRequest(netlink, request, msg_type=type_, msg_flags=NLM_F_REQUEST | NLM_F_DUMP, parser=read)
    await sent.send()
    values = [message["value"] async for message in sent.response() if message.get("value") is not None]
    return values, interrupted


def _check_end(data: bytes, begin: int, end: int) -> None:
    """Raise the error code at the end of a dump, which pyroute2 0.9 ignores unless the kernel adds an extended error."""
    code = -_ERRNO.unpack_from(data, begin)[0] if begin + _ERRNO.size <= end else 0
    if code:
        raise NetlinkError(code)


def tc_request(index: int = 0, parent: int = 0) -> tcmsg:
    """A request for qdiscs, classes or filters, of one device or (0) of all."""
    request = tcmsg()
    request["index"], request["parent"] = index, parent
    return request


def attributes(data: bytes, begin: int, end: int) -> Spans:
    """The attributes between two offsets."""
    spans: Spans = {}
    while begin + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < 4 or begin + length > end:
            break
        spans[kind & _TYPE_MASK] = begin + 4, begin + length
        begin += (length + 3) & ~3
    return spans


def nested(data: bytes, spans: Spans, kind: int) -> Spans:
    """The attributes nested in an attribute; empty if it is missing."""
    span = spans.get(kind)
    return {} if span is None else attributes(data, *span)


def read_number(data: bytes, spans: Spans, kind: int) -> int | None:
    """An unsigned attribute of any width, in host byte order; None if it is missing."""
    span = spans.get(kind)
    return None if span is None or span[0] == span[1] else int.from_bytes(data[slice(*span)], sys.byteorder)


def read_text(data: bytes, spans: Spans, kind: int) -> str:
    """A string attribute; empty if it is missing."""
    span = spans.get(kind)
    return "" if span is None else data[span[0] : span[1]].rstrip(b"\0").decode("utf-8", "replace")
