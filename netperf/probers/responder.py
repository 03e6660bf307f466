"""Answers the authenticated datagrams of other agents on the node's own address."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from kubekit import logs
from netperf.probers.datagram_codec import decode_datagram, derive_key, encode_datagram
from netperf.probers.rejections import RejectionLog
from netperf.probers.timestamps import MAX_BATCH, now_ns, open_udp, receive

log = logs.get("netperf.responder")


class DatagramResponder:
    """Answers each valid datagram with one of the same size, and drops others.

    It also drops answers that do not fit into the socket's buffer. asyncio's transports do not return the kernel's timestamps.

    Args:
        address: the node's own address, a literal.
        port: UDP port; 0 for a free port, which the attribute ``port`` names once the socket is open.
        passphrase: the probing passphrase, which the other agents share.

    Attributes:
        listening: set while the socket is open.
    """

    def __init__(self, address: str, port: int, passphrase: bytes) -> None:
        self._address, self.port, self._key = address, port, derive_key(passphrase)
        self.listening = asyncio.Event()
        self._rejection_log = RejectionLog(log, "datagram without a valid tag")

    async def run(self) -> None:
        """Answer until cancelled.

        Raises:
            OSError: the address is not one of this node, or the port is in use.
        """
        loop = asyncio.get_running_loop()
        with open_udp(self._address, self.port) as udp:
            self.port = udp.getsockname()[1]
            loop.add_reader(udp, self._answer, udp)
            try:
                self.listening.set()
                await loop.create_future()
            finally:
                self.listening.clear()
                loop.remove_reader(udp)

    def _answer(self, udp: socket.socket) -> None:
        """Answer the datagrams in the socket's buffer, at most `MAX_BATCH`."""
        for _ in range(MAX_BATCH):
            try:
                data, received_ns, peer = receive(udp)
            except OSError:  # none is left, or an ICMP error for an earlier answer: asyncio calls again if any is left
                return
            datagram = decode_datagram(self._key, b"client", data)
            if datagram is None:
                self._rejection_log.add(peer[0])
                continue
            answer = encode_datagram(self._key, b"server", datagram._replace(responder_delay_ns=now_ns() - received_ns))
            with suppress(OSError):
                udp.sendto(answer, peer)
