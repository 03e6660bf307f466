"""An HTTP proxy in front of a real API server that can also cut, freeze and slow connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 16_384


class Tunnels:
    """Knows CONNECT alone, and by any name leads to one port of the loopback.

    Attributes:
        asked: the targets of every CONNECT.
        credentials: of these that had any.
        bytes_down: what came from the server.
        bytes_per_s: how fast each tunnel brings what the server says; None for as fast as it can.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[str] = []
        self.credentials: list[str] = []
        self.bytes_down = 0
        self.bytes_per_s: float | None = None
        self._carried: list[asyncio.StreamWriter] = []
        self._flows: set[asyncio.Event] = set()
        self._served: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve; yields ``address:port``."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            open_ones = list(self._carried)
            self.cut()
            for writer in open_ones:
                writer.transport.abort()
            if self._served:
                await asyncio.wait(self._served, timeout=5)

    def cut(self) -> None:
        """End every connection that is carried."""
        for flow in self._flows:
            flow.set()
        for writer in self._carried:
            writer.close()
        self._carried.clear()

    def freeze(self) -> None:
        """From now on nothing passes through the tunnels that there are; they stay open, and new ones work."""
        for flow in self._flows:
            flow.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        self._carried.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split()
            assert method == "CONNECT", head[0]
            self.asked.append(target)
            self.credentials += [line.split(" ", 1)[1] for line in head if line.lower().startswith("proxy-auth")]
            await self._carry(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            beyond, onward = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        flow = asyncio.Event()
        flow.set()
        self._flows.add(flow)
        self._carried.append(onward)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(self._pump(reader, onward, flow, down=False), self._pump(beyond, writer, flow, down=True))
        self._flows.discard(flow)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event, *, down: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await flow.wait()
                if down:
                    self.bytes_down += len(data)
                    if self.bytes_per_s is not None:
                        await asyncio.sleep(len(data) / self.bytes_per_s)
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()
