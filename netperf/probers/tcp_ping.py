"""Measures a round trip by the handshake of a TCP connection."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import suppress
from typing import NamedTuple

from netperf.probers.failure import ProbeFailedError

PING_TIMEOUT_S = 2.0
"""Long enough for one retransmission of a lost SYN, after a second. A longer wait would take too much of the probe's slot."""
PING_RETRIES = 2
"""Number of further pings after a handshake with a retransmission."""
PING_RETRY_TIMEOUT_S = 0.5
"""Shorter than the second of a retransmission, so that a further ping with one fails."""
_TCP_INFO = struct.Struct("@68xI28xI")
"""The fields tcpi_rtt (microseconds, at offset 68) and tcpi_total_retrans (at 100) of tcp_info (linux/tcp.h)."""


class Connection(NamedTuple):
    """An open TCP connection; ``connect_s`` is the time that its opening took."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connect_s: float


async def connect(address: str, port: int, timeout_s: float) -> Connection:
    """Open a connection; fails as `tcp_ping` does."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        raise ProbeFailedError("timeout", f"no connection within {timeout_s:.0f} s") from None
    except ConnectionRefusedError as error:
        raise ProbeFailedError("refused", error.strerror or str(error)) from None
    except OSError as error:
        raise ProbeFailedError("unreachable", error.strerror or str(error)) from None
    return Connection(reader, writer, time.monotonic() - started)


async def tcp_ping(address: str, port: int) -> float:
    """Connect, and return the round trip of the handshake in seconds, as the kernel measured it.

    Connects again after a retransmission, because the kernel's number may include the second of waiting for it.

    Raises:
        ProbeFailedError: ``timeout``, ``refused`` or ``unreachable``.
    """
    rtt_s, retransmits = await _ping_once(address, port, PING_TIMEOUT_S)
    for _ in range(PING_RETRIES):
        if not retransmits:
            break
        with suppress(ProbeFailedError):
            retry_s, retransmits = await _ping_once(address, port, PING_RETRY_TIMEOUT_S)
            rtt_s = min(rtt_s, retry_s)
    return rtt_s


async def _ping_once(address: str, port: int, timeout_s: float) -> tuple[float, int]:
    """The round trip of a handshake in seconds, and its number of retransmissions; fails as `tcp_ping` does."""
    connection = await connect(address, port, timeout_s)
    tcp_socket = connection.writer.get_extra_info("socket")
    info = tcp_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    connection.writer.close()
    rtt_us, retransmits = _TCP_INFO.unpack(info) if len(info) == _TCP_INFO.size else (0, 0)
    # Without TCP timestamps the kernel does not know which of two segments was answered, and reports 0.
    return rtt_us / 1e6 or connection.connect_s, retransmits
