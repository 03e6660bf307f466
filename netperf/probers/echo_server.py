"""The answering end of the built-in echo: TCP and UDP on one port of the node's own address."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from contextlib import suppress
from typing import cast

from kubekit import logs
from netperf.probers.echo_wire import (
    FRAME_BYTES,
    HELLO_BYTES,
    MAGIC,
    NONCE_BYTES,
    decode_datagram,
    derive_key,
    encode_datagram,
    prove,
)
from netperf.probers.timestamps import now_ns, open_udp, receive

log = logs.get("netperf.echo")

BATCH = 64
MOST_CONNECTIONS = 32
HANDSHAKE_DEADLINE_S = 5.0
LONGEST_CONNECTION_S = 70.0
"""A run lasts 60 s at most, which the plan's format sees to."""


class EchoServer:
    """Answers echo probers that know the secret.

    Args:
        address: the node's own address, a literal.
        port: for TCP and UDP; 0 takes a free one, see ``port``.
        secret: shared with the probers.

    Attributes:
        key: what proofs are made with.
        rejected: connections and datagrams without a valid proof.
    """

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        self._address, self.port, self.key = address, port, derive_key(secret)
        self._connections: set[_TcpEcho] = set()
        self._ready = asyncio.Event()
        self.rejected = 0

    @property
    def listening(self) -> bool:
        """Whether both sockets are open."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Wait until both sockets are open; put it under a deadline."""
        await self._ready.wait()

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            OSError: the address is not ours, or the port is taken.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _TcpEcho(self), self._address, self.port)
        try:
            self.port = server.sockets[0].getsockname()[1]
            with open_udp(self._address, self.port) as udp:
                loop.add_reader(udp, _UdpEcho(self, udp).answer)
                try:
                    self._ready.set()
                    await asyncio.get_running_loop().create_future()
                finally:
                    loop.remove_reader(udp)
        finally:
            self._ready.clear()
            server.close()
            for connection in list(self._connections):
                connection.abort()

    def admit(self, connection: _TcpEcho) -> bool:
        """Count a connection in, if there is room."""
        if len(self._connections) >= MOST_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: _TcpEcho) -> None:
        """Count a connection out."""
        self._connections.discard(connection)

    def reject(self, peer: object) -> None:
        """Count a peer without a valid proof."""
        self.rejected += 1
        log.change("echo/rejected", "rejecting", "echo peer without a valid proof", peer=peer)


class _TcpEcho(asyncio.Protocol):
    """One connection: greeting, proof, then frames. Answers from ``data_received``, with no task switch in between."""

    def __init__(self, server: EchoServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._pending = b""
        self._proven = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.admit(self):
            self._transport.abort()
            return
        self._limit_life(HANDSHAKE_DEADLINE_S)
        self._transport.write(MAGIC + self._nonce)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._pending += data
        if not self._proven:
            if len(self._pending) < HELLO_BYTES:
                return
            self._check_hello(self._transport, self._pending[:HELLO_BYTES])
            self._pending = self._pending[HELLO_BYTES:]
        whole = len(self._pending) // FRAME_BYTES * FRAME_BYTES
        if self._proven and whole:
            self._transport.write(self._pending[:whole])
            self._pending = self._pending[whole:]

    def _check_hello(self, transport: asyncio.Transport, hello: bytes) -> None:
        client_nonce, proof = hello[:NONCE_BYTES], hello[NONCE_BYTES:]
        if not hmac.compare_digest(proof, prove(self._server.key, b"client", self._nonce, client_nonce)):
            self._server.reject(transport.get_extra_info("peername"))
            transport.close()
            return
        self._proven = True
        self._limit_life(LONGEST_CONNECTION_S)
        transport.write(prove(self._server.key, b"server", self._nonce, client_nonce))

    def pause_writing(self) -> None:
        """A peer that sends but does not read is no prober, and must not fill our memory."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _limit_life(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)


class _UdpEcho:
    """Answers each valid datagram by one; stays silent on others.

    The socket is read by ourselves, because only so the kernel's time of receipt comes along. What a full socket buffer does
    not take is dropped, as a full queue anywhere on the path would drop it.
    """

    def __init__(self, server: EchoServer, udp: socket.socket) -> None:
        self._server, self._socket = server, udp

    def answer(self) -> None:
        """Answer what has come, a batch at a time, so that a flood cannot keep the loop."""
        for _ in range(BATCH):
            try:
                data, received_ns, peer = receive(self._socket)
            except OSError:
                return
            datagram = decode_datagram(self._server.key, b"client", data)
            if datagram is None:
                self._server.reject(peer)
                continue
            held_ns = now_ns() - received_ns
            answer = encode_datagram(self._server.key, b"server", datagram._replace(held_ns=held_ns))
            with suppress(OSError):
                self._socket.sendto(answer, peer)
