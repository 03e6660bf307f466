"""The built-in prober for nodes without netperf: round trips over TCP, or over UDP with loss and jitter.

It runs in the agent's own event loop, so its numbers include some tens of microseconds of Python on both ends; it is
named in the sample so that nobody mistakes them for netperf's. Unlike netperf it is paced and leaves the CPU alone.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import socket
import time
from itertools import pairwise
from typing import ClassVar

from kubekit.waiting import comes
from netperf.histogram import rank_of
from netperf.plans import ProbeSettings
from netperf.probers.contention import (
    CpuUse,
    difference,
    own_cpu_stat,
    read_cpu_use,
    read_throttled_us,
    with_circumstances,
)
from netperf.probers.echo_wire import (
    FRAME_BYTES,
    GREETING_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    Datagram,
    decode_datagram,
    derive_key,
    encode_datagram,
    prove,
)
from netperf.probers.prober import ProbeFailedError
from netperf.sample import Measurement, ProberName, Test

TCP_PACE_S = 0.002
UDP_PACE_S = 0.004
UDP_GRACE_S = 1.0
DEADLINE_ALLOWANCE_S = 5.0


def summarise(test: Test, rtts_us: list[float], duration_s: float, sent: int | None = None) -> Measurement:
    """The measurement that a list of round trips makes, in the order in which they were asked for.

    Args:
        test: what was run.
        rtts_us: round trips, microseconds, lost ones left out.
        duration_s: length of the run.
        sent: datagrams sent; None where nothing can be lost.

    Raises:
        ProbeFailedError: ``too-few-samples`` with fewer than two; ``timeout`` when all datagrams were lost.
    """
    if sent and not rtts_us:
        raise ProbeFailedError("timeout", f"none of {sent} datagrams came back")
    if len(rtts_us) < 2:
        raise ProbeFailedError("too-few-samples", f"{len(rtts_us)} transactions")
    steps = [abs(after - before) for before, after in pairwise(rtts_us)]
    ranked, mean_us = sorted(rtts_us), sum(rtts_us) / len(rtts_us)
    p50_us, p90_us, p99_us = (ranked[rank_of(percent, len(ranked)) - 1] for percent in (50, 90, 99))
    return Measurement(
        prober="echo",
        test=test,
        min_us=ranked[0],
        mean_us=mean_us,
        max_us=ranked[-1],
        stddev_us=math.sqrt(sum((rtt_us - mean_us) ** 2 for rtt_us in rtts_us) / len(rtts_us)),
        p50_us=p50_us,
        p90_us=p90_us,
        p99_us=p99_us,
        transactions=len(rtts_us),
        duration_s=duration_s,
        transactions_per_s=len(rtts_us) / duration_s,
        loss_ratio=(sent - len(rtts_us)) / sent if sent else None,
        jitter_us=sum(steps) / len(steps),
    )


class EchoProber:
    """Measures against an `EchoServer` that shares the secret."""

    name: ClassVar[ProberName] = "echo"
    tests: ClassVar[tuple[Test, ...]] = ("TCP_RR", "UDP_RR")

    def __init__(self, secret: bytes) -> None:
        self._key = derive_key(secret)
        self._cpu_stat = own_cpu_stat()

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        """Run once: TCP_RR or UDP_RR.

        Raises:
            ProbeFailedError: see `prober.Prober`; ``failed`` for TCP_STREAM, which only netperf has.
        """
        if settings.test == "TCP_STREAM":
            raise ProbeFailedError("failed", "the echo prober has no TCP_STREAM")
        throttled_before, cpu_before = read_throttled_us(self._cpu_stat), read_cpu_use()
        try:
            async with asyncio.timeout(settings.duration_s + UDP_GRACE_S + DEADLINE_ALLOWANCE_S):
                measurement = await self._run(address, settings)
        except TimeoutError:
            raise ProbeFailedError("timeout", "no end within the deadline") from None
        except ConnectionRefusedError as error:
            raise ProbeFailedError("refused", str(error.strerror)) from None
        except (ConnectionResetError, BrokenPipeError) as error:
            raise ProbeFailedError("reset", str(error.strerror)) from None
        except OSError as error:
            raise ProbeFailedError("unreachable", str(error.strerror)) from None
        throttled_us = difference(read_throttled_us(self._cpu_stat), throttled_before)
        return with_circumstances(measurement, throttled_us, _spent(cpu_before, read_cpu_use()))

    async def _run(self, address: str, settings: ProbeSettings) -> Measurement:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)  # noqa: FBT003  the name of the argument is not part of the socket interface
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(connection, (address, settings.echo_port))
            session = await self._authenticate(connection)
            if settings.test == "TCP_RR":
                return await _tcp_round_trips(connection, settings.duration_s)
            return await self._udp_round_trips(address, settings, session)

    async def _authenticate(self, connection: socket.socket) -> bytes:
        """Prove that we know the secret, and see that the other end does; the session for datagrams."""
        loop = asyncio.get_running_loop()
        greeting = await _receive(connection, GREETING_BYTES)
        if len(greeting) < GREETING_BYTES:
            raise ProbeFailedError("reset", "the peer hung up before it greeted")
        if not greeting.startswith(MAGIC):
            raise ProbeFailedError("failed", "what listens there is no echo server")
        server_nonce, client_nonce = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
        await loop.sock_sendall(connection, client_nonce + prove(self._key, b"client", server_nonce, client_nonce))
        try:
            proof = await _receive(connection, PROOF_BYTES)
        except ConnectionResetError:
            proof = b""
        if not hmac.compare_digest(proof, prove(self._key, b"server", server_nonce, client_nonce)):
            raise ProbeFailedError("unauthenticated", "the two ends do not share a secret")
        return client_nonce[:8]

    async def _udp_round_trips(self, address: str, settings: ProbeSettings, session: bytes) -> Measurement:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: _UdpClient(self._key, session), remote_addr=(address, settings.echo_port)
        )
        try:
            started = loop.time()
            while (sent_for_s := loop.time() - started) < settings.duration_s:
                protocol.send(transport)
                await asyncio.sleep(max(0.0, protocol.sent * UDP_PACE_S - sent_for_s))
            await protocol.wait_for_rest(UDP_GRACE_S)
        finally:
            transport.close()
        return summarise("UDP_RR", protocol.rtts_us(), settings.duration_s, sent=protocol.sent)


async def _tcp_round_trips(connection: socket.socket, duration_s: float) -> Measurement:
    loop = asyncio.get_running_loop()
    rtts_us: list[float] = []
    started = time.perf_counter()
    while (now := time.perf_counter()) - started < duration_s:
        await loop.sock_sendall(connection, len(rtts_us).to_bytes(FRAME_BYTES, "big"))
        frame = await _receive(connection, FRAME_BYTES)
        rtts_us.append((time.perf_counter() - now) * 1e6)
        if len(frame) < FRAME_BYTES:
            raise ProbeFailedError("reset", f"the peer hung up after {len(rtts_us) - 1} transactions")
        if int.from_bytes(frame, "big") != len(rtts_us) - 1:
            raise ProbeFailedError("failed", "the peer echoed something else")
        await asyncio.sleep(max(0.0, now + TCP_PACE_S - time.perf_counter()))
    return summarise("TCP_RR", rtts_us, time.perf_counter() - started)


async def _receive(connection: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes, or fewer if the peer closes."""
    data = b""
    while len(data) < count:
        chunk = await asyncio.get_running_loop().sock_recv(connection, count - len(data))
        if not chunk:
            break
        data += chunk
    return data


class _UdpClient(asyncio.DatagramProtocol):
    """Sends numbered requests and notes when each came back; duplicates and strangers are ignored."""

    def __init__(self, key: bytes, session: bytes) -> None:
        self._key, self._session = key, session
        self._sent_at: list[float] = []
        self._rtts_us: dict[int, float] = {}
        self._all_back = asyncio.Event()

    @property
    def sent(self) -> int:
        return len(self._sent_at)

    def send(self, transport: asyncio.DatagramTransport) -> None:
        request = encode_datagram(self._key, b"client", Datagram(self._session, self.sent))
        self._sent_at.append(time.perf_counter())
        transport.sendto(request)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        del addr
        now = time.perf_counter()
        reply = decode_datagram(self._key, b"server", data)
        if reply is None or reply.session != self._session or reply.number >= self.sent:
            return
        self._rtts_us.setdefault(reply.number, (now - self._sent_at[reply.number]) * 1e6)
        if len(self._rtts_us) == self.sent:
            self._all_back.set()

    async def wait_for_rest(self, grace_s: float) -> None:
        """Wait for replies that are still on their way, no longer than ``grace_s``."""
        if len(self._rtts_us) < self.sent:
            self._all_back.clear()
            await comes(self._all_back, grace_s)

    def rtts_us(self) -> list[float]:
        """Round trips in the order of sending."""
        return [self._rtts_us[number] for number in sorted(self._rtts_us)]


def _spent(before: CpuUse | None, after: CpuUse | None) -> CpuUse | None:
    if before is None or after is None:
        return None
    return CpuUse(max(0.0, after.cpu_us - before.cpu_us), max(0.0, after.run_queue_us - before.run_queue_us))
