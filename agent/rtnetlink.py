"""Asks and changes over rtnetlink, with decoders that read only the fields asked for.

pyroute2 decodes every attribute of every message, 200 ms for a node with 110 limited pods, and takes 7 MB. Layouts are those of linux/netlink.h, linux/if_link.h, linux/rtnetlink.h and linux/pkt_sched.h.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from agent.netlink import HEADER, KernelError, open_netlink

T = TypeVar("T")
Parse = Callable[[bytes, int, int], T | None]
"""Reads one message: the datagram, where its body begins (after nlmsghdr), and where it ends."""
Spans = dict[int, tuple[int, int]]
"""Attributes by number: begin and end of the payload; of repeated ones the last."""

RTM_GETLINK, RTM_GETROUTE, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER = 18, 26, 38, 42, 46
IFF_UP, IFF_LOOPBACK = 1, 8
IFINFO, TC = struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
"""struct ifinfomsg (family, type, index, flags, change), struct tcmsg (family, index, handle, parent, info)."""
ALL_LINKS, ALL_ROUTES = bytes(IFINFO.size), bytes(12)
"""Bodies of requests: struct ifinfomsg and struct rtmsg without a condition."""

DEADLINE_S = 10.0
_TRIES = 3
_RTM_GETNSID, _NETNSA_NSID, _NETNSA_PID = 90, 1, 2
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 1, 4, 0x300, 0x10
_NLM_F_CAPPED, _NLM_F_ACK_TLVS, _ERROR_TEXT = 0x100, 0x200, 1
_SOL_NETLINK, _NETLINK_EXT_ACK = 270, 11
_NLMSG_ERROR, _NLMSG_DONE, _FIRST_TYPE = 2, 3, 16
_READ_BYTES = 1 << 16
_ATTRIBUTE = struct.Struct("=HH")
_U32, _I32 = struct.Struct("=I"), struct.Struct("=i")
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


@asynccontextmanager
async def rtnetlink(what: str) -> AsyncIterator[Rtnetlink]:
    """A socket for some requests, all of them within ten seconds. The kernel is asked for its reasons.

    Raises:
        KernelError: a request failed, or got no answer in time; begins with ``what``.
    """
    try:
        with open_netlink(socket.NETLINK_ROUTE) as netlink:
            with suppress(OSError):  # before Linux 4.12 it gives none
                netlink.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
            async with asyncio.timeout(DEADLINE_S):
                yield Rtnetlink(netlink)
    except KernelError as error:
        raise KernelError(f"{what}: {error}", error.code) from error
    except TimeoutError as error:  # which is an OSError, too
        raise KernelError(f"{what}: no answer in time") from error
    except OSError as error:
        raise KernelError(f"{what}: {error.strerror}", error.errno or 0) from error


class Rtnetlink:
    """Asks the kernel over a socket."""

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink, self._sequence = netlink, 0

    async def dump(self, type_: int, body: bytes, parse: Parse[T]) -> list[T]:
        """Ask for a dump and read each message with ``parse``; those that it gives None for are left out.

        A dump that a change interrupted is taken again. What the third brings counts: the change is told, and looked at, too.

        Args:
            type_: of the question, RTM_GET*.
            body: of the question.
            parse: reads an answer.

        Raises:
            KernelError: the kernel refused.
        """
        for _ in range(_TRIES - 1):
            found, interrupted = await self._dump_once(type_, body, parse)
            if not interrupted:
                return found
        return (await self._dump_once(type_, body, parse))[0]

    async def change(self, type_: int, body: bytes, flags: int = 0) -> None:
        """Change something, and wait until it is done.

        Raises:
            KernelError: the kernel refused.
        """
        sequence = await self._send(type_, body, _NLM_F_REQUEST | _NLM_F_ACK | flags)
        async for _ in self._answers(sequence):
            return

    async def namespace_number(self, pid: int) -> int | None:
        """The number that this namespace has for a process's network namespace; None without one, and when it has ended."""
        body = bytes(4) + _ATTRIBUTE.pack(8, _NETNSA_PID) + _U32.pack(pid)
        sequence = await self._send(_RTM_GETNSID, body, _NLM_F_REQUEST)
        try:
            async for data, _, _, begin, end in self._answers(sequence):
                number = read_u32(data, attributes(data, begin + 4, end), _NETNSA_NSID)
                return None if number is None or number == 0xFFFFFFFF else number
        except KernelError:
            pass  # the process ended meanwhile
        return None

    async def _dump_once(self, type_: int, body: bytes, parse: Parse[T]) -> tuple[list[T], bool]:
        sequence = await self._send(type_, body, _NLM_F_REQUEST | _NLM_F_DUMP)
        found: list[T] = []
        interrupted = False
        async for data, kind, flags, begin, end in self._answers(sequence):
            interrupted = interrupted or bool(flags & _NLM_F_DUMP_INTR)
            if kind == _NLMSG_DONE:
                break
            if kind >= _FIRST_TYPE and (one := parse(data, begin, end)) is not None:
                found.append(one)
        return found, interrupted

    async def _send(self, type_: int, body: bytes, flags: int) -> int:
        self._sequence += 1
        request = HEADER.pack(HEADER.size + len(body), type_, flags, self._sequence, 0) + body
        await asyncio.get_running_loop().sock_sendall(self._netlink, request)
        return self._sequence

    async def _answers(self, sequence: int) -> AsyncIterator[tuple[bytes, int, int, int, int]]:
        """Datagram, type, flags, begin and end of the body of each message that answers a request.

        Raises:
            KernelError: one is an error, also at the end of a dump.
        """
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(self._netlink, _READ_BYTES)
            offset = 0
            while offset + HEADER.size <= len(data):
                length, kind, flags, number, _ = HEADER.unpack_from(data, offset)
                if length < HEADER.size:
                    break
                begin, end = offset + HEADER.size, min(offset + length, len(data))
                if number == sequence:
                    if kind in {_NLMSG_ERROR, _NLMSG_DONE}:
                        _check(data, flags, begin, end)
                    yield data, kind, flags, begin, end
                offset += (length + 3) & ~3


def _check(data: bytes, flags: int, begin: int, end: int) -> None:
    """Raise what an error (struct nlmsgerr, which repeats the request), or the end of a dump, says; 0 is fine."""
    code = -_I32.unpack_from(data, begin)[0] if begin + _I32.size <= end else 0
    if not code:
        return
    reason = ""
    if flags & _NLM_F_ACK_TLVS and begin + _I32.size + HEADER.size <= end:
        repeated = HEADER.size if flags & _NLM_F_CAPPED else HEADER.unpack_from(data, begin + _I32.size)[0]
        reason = read_text(data, attributes(data, begin + _I32.size + ((repeated + 3) & ~3), end), _ERROR_TEXT)
    raise KernelError(reason or os.strerror(code), code)


def encode_attribute(kind: int, payload: bytes) -> bytes:
    """An attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def encode_text(kind: int, text: str) -> bytes:
    """An attribute that is a text."""
    return encode_attribute(kind, text.encode() + b"\0")


def encode_u32(kind: int, number: int) -> bytes:
    """An attribute that is an unsigned 32-bit number."""
    return encode_attribute(kind, _U32.pack(number))


def tc_request(index: int = 0, parent: int = 0) -> bytes:
    """The question for queueing disciplines, classes or filters, of one device or (0) of all."""
    return TC.pack(0, index, 0, parent, 0)


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
