"""rtnetlink requests through pyroute2, parsers of the messages of dumps, and the types `Qdisc` and `TbfParams`.

pyroute2 would decode every attribute of every message, which is slow on a node with many pods. Our parsers read only the attributes
we need (linux/if_link.h, linux/rtnetlink.h, linux/pkt_sched.h).
"""

from __future__ import annotations

import asyncio
import math
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from pyroute2.iproute.linux import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_MIN_TYPE
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkRequest
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from agent.netlink import ATTRIBUTE, ERRNO, HEADER, KernelError, align

T = TypeVar("T")
MessageParser = Callable[[bytes, int, int], T | None]
"""Parses one message, from the datagram and the offsets of the start and end of the message's body; None to leave it out."""
Spans = dict[int, tuple[int, int]]
"""Attribute number -> start and end of its payload; of repeated attributes, the last."""

IFINFO, TC = struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
"""struct ifinfomsg (family, type, index, flags, change), struct tcmsg (family, index, handle, parent, info)."""

IFLA_IFNAME, IFLA_LINK, IFLA_LINKINFO, IFLA_LINK_NETNSID = 3, 5, 18, 37
IFLA_INFO_KIND = 1
TCA_KIND, TCA_OPTIONS, _TCA_STATS2, _TCA_STATS_BASIC = 1, 2, 7, 1
ROOT = 0xFFFFFFFF
"""TC_H_ROOT, the parent of root qdiscs."""
_TCA_TBF_PARMS, _TCA_TBF_RATE64 = 1, 4
_TBF = struct.Struct("=8xI8xIIII")
"""struct tc_tbf_qopt: rate and peak rate (tc_ratespec, rate last), limit, buffer, mtu."""
_TICK_S = 64e-9  # /proc/net/psched
_BASIC_STATS = struct.Struct("=Q")
"""The start of struct gnet_stats_basic: bytes."""

DEADLINE_S = 10.0
_MAX_DUMP_ATTEMPTS = 3
_NLA_TYPE_MASK = 0x3FFF
"""Clears NLA_F_NESTED and NLA_F_NET_BYTEORDER."""


@asynccontextmanager
async def open_rtnetlink(error_prefix: str) -> AsyncIterator[AsyncIPRoute]:
    """Open an rtnetlink socket with extended errors; all requests on it must end within `DEADLINE_S`.

    Raises:
        KernelError: a request failed or timed out; the message begins with ``error_prefix``.
    """
    try:
        async with asyncio.timeout(DEADLINE_S), AsyncIPRoute(ext_ack=True) as netlink:
            yield netlink
    except NetlinkError as error:
        raise KernelError(f"{error_prefix}: {error.args[1]}") from error
    except TimeoutError as error:  # a subclass of OSError
        raise KernelError(f"{error_prefix}: no response in time") from error
    except OSError as error:
        raise KernelError(f"{error_prefix}: {error.strerror}") from error


async def dump(
    netlink: AsyncIPRoute, request: Callable[[], Any], message_type: int, parse: MessageParser[T]
) -> list[T]:
    """Request a dump and parse each message; ``request`` builds the request of ``message_type`` (RTM_GET*) for each attempt.

    A dump that a change interrupted is repeated, at most twice; the last is returned even so, because an event about the change follows.
    """
    results: list[T] = []
    for _ in range(_MAX_DUMP_ATTEMPTS):
        results, is_interrupted = await _dump_once(netlink, request(), message_type, parse)
        if not is_interrupted:
            break
    return results


async def _dump_once(
    netlink: AsyncIPRoute, request: Any, message_type: int, parse: MessageParser[T]
) -> tuple[list[T], bool]:
    """Dump once; returns the results, and whether a change interrupted the dump."""
    is_interrupted = False

    def parse_message(data: bytes, offset: int, length: int) -> Any:
        nonlocal is_interrupted
        _, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
        is_interrupted = is_interrupted or bool(flags & NLM_F_DUMP_INTR)
        if kind < NLMSG_MIN_TYPE:
            if kind == NLMSG_DONE and not flags & NLM_F_ACK_TLVS:
                _raise_dump_error(data, offset + HEADER.size, offset + length)
            # Control messages end or fail the request in pyroute2, so it parses them; it expects ours in its shape, as below.
            return netlink.marshal.parse_one_message(kind, flags, sequence, data, offset, length)
        header = {"type": kind, "flags": flags, "sequence_number": sequence, "error": None}
        return {"header": header, "value": parse(data, offset + HEADER.size, offset + length)}

    dump_request = NetlinkRequest(
        netlink, request, msg_type=message_type, msg_flags=NLM_F_REQUEST | NLM_F_DUMP, parser=parse_message
    )
    await dump_request.send()
    values = [message["value"] async for message in dump_request.response() if message.get("value") is not None]
    return values, is_interrupted


def _raise_dump_error(data: bytes, begin: int, end: int) -> None:
    """Raise the error in a dump's last message, if there is one, which pyroute2 0.9 ignores unless the kernel adds an extended error."""
    code = -ERRNO.unpack_from(data, begin)[0] if begin + ERRNO.size <= end else 0
    if code:
        raise NetlinkError(code)


def make_tc_request(index: int = 0, parent: int = 0) -> tcmsg:
    """Make a request for qdiscs, classes or filters of a device, or of all devices (0)."""
    request = tcmsg()
    request["index"], request["parent"] = index, parent
    return request


def parse_attributes(data: bytes, begin: int, end: int) -> Spans:
    """Parse the attributes between two offsets; stops at the first invalid one."""
    spans: Spans = {}
    while begin + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(data, begin)
        if length < ATTRIBUTE.size or begin + length > end:
            break
        spans[kind & _NLA_TYPE_MASK] = begin + ATTRIBUTE.size, begin + length
        begin += align(length)
    return spans


def parse_nested(data: bytes, spans: Spans, kind: int) -> Spans:
    """Parse the attributes nested in an attribute; empty if the outer attribute is missing."""
    span = spans.get(kind)
    return {} if span is None else parse_attributes(data, *span)


def read_number(data: bytes, spans: Spans, kind: int) -> int | None:
    """Read an unsigned attribute of any width, in host byte order; None if it is missing or empty."""
    span = spans.get(kind)
    return None if span is None or span[0] == span[1] else int.from_bytes(data[slice(*span)], sys.byteorder)


def read_text(data: bytes, spans: Spans, kind: int) -> str:
    """Read a string attribute; empty if it is missing."""
    span = spans.get(kind)
    return "" if span is None else data[span[0] : span[1]].rstrip(b"\0").decode("utf-8", "replace")


class TbfParams(msgspec.Struct, frozen=True, kw_only=True):
    """A token bucket as the kernel holds it.

    Attributes:
        rate_bytes_per_s: the limit.
        buffer_ticks: time that the bucket's bytes take at that rate, in ticks of 64 ns.
        limit_bytes: maximum length of the queue.
    """

    rate_bytes_per_s: int
    buffer_ticks: int
    limit_bytes: int

    @property
    def burst_s(self) -> float:
        """Duration of the burst at the limit's rate."""
        return self.buffer_ticks * _TICK_S

    @property
    def burst_bytes(self) -> int:
        """The effective burst, as ``tc`` shows it."""
        return int(self.rate_bytes_per_s * self.burst_s)

    @property
    def queue_s(self) -> float:
        """Longest wait of a packet once the bucket is empty; infinite at rate 0."""
        return self.limit_bytes / self.rate_bytes_per_s if self.rate_bytes_per_s else math.inf


class Qdisc(msgspec.Struct, frozen=True, kw_only=True):
    """A queueing discipline.

    Attributes:
        device_index: of its device.
        kind: such as ``tbf`` or ``fq``.
        handle, parent: its handle, and that of the class or hook that it is attached to.
        params: of a token bucket; None for other kinds, or if the kernel sent none.
        sent_bytes: bytes sent so far.
    """

    device_index: int
    kind: str
    handle: int
    parent: int
    params: TbfParams | None = None
    sent_bytes: int = 0


def parse_qdisc(data: bytes, begin: int, end: int) -> Qdisc:
    """Parse an RTM_NEWQDISC message: struct tcmsg and TCA_* attributes."""
    _, index, handle, parent, _ = TC.unpack_from(data, begin)
    spans = parse_attributes(data, begin + TC.size, end)
    kind = read_text(data, spans, TCA_KIND)
    params = _read_tbf_params(data, parse_nested(data, spans, TCA_OPTIONS)) if kind == "tbf" else None
    sent_bytes = read_counted_bytes(data, parse_nested(data, spans, _TCA_STATS2))
    return Qdisc(device_index=index, kind=kind, handle=handle, parent=parent, params=params, sent_bytes=sent_bytes)


def read_counted_bytes(data: bytes, statistics: Spans) -> int:
    """Read the bytes in the basic statistics of a qdisc or an action (linux/gen_stats.h); 0 if they are missing."""
    begin, end = statistics.get(_TCA_STATS_BASIC, (0, 0))
    return int(_BASIC_STATS.unpack_from(data, begin)[0]) if end - begin >= _BASIC_STATS.size else 0


def _read_tbf_params(data: bytes, options: Spans) -> TbfParams | None:
    """Read the parameters of a tbf qdisc; None if they are missing."""
    begin, end = options.get(_TCA_TBF_PARMS, (0, 0))
    if end - begin < _TBF.size:
        return None
    rate, _, limit, buffer, _ = _TBF.unpack_from(data, begin)
    rate_bytes_per_s = read_number(data, options, _TCA_TBF_RATE64) or rate
    return TbfParams(rate_bytes_per_s=rate_bytes_per_s, buffer_ticks=buffer, limit_bytes=limit)
