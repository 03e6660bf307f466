"""What the responder logs of datagrams that it rejects."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from netperf.probers.responder import DatagramResponder


async def test_each_rejected_sender_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    responder = DatagramResponder("127.0.0.1", 0, b"secret" * 8)
    serving = asyncio.create_task(responder.run())
    await responder.wait_ready()
    for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((host, 0))
            sender.sendto(b"no tag", ("127.0.0.1", responder.port))
            await asyncio.sleep(0.05)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert [record.message for record in caplog.records] == ["datagram without a valid tag"] * 2
