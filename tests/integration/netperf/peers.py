"""Runs servers for probers on the loopback, misbehaving peers, and relays that simulate lossy paths."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder
from tests.support.tasks import running_tasks

PASSPHRASE = b"a passphrase of the integration tests"
ADDRESS = "127.0.0.1"
RELAY_ADDRESS = "127.0.0.2"


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as tcp:
        tcp.bind((ADDRESS, 0))
        return int(tcp.getsockname()[1])


@asynccontextmanager
async def running_server(server: Netserver | DatagramResponder) -> AsyncIterator[None]:
    """Run a server that listens during the block."""
    async with running_tasks(server.run()):
        async with asyncio.timeout(60):
            await server.listening.wait()
        yield


@asynccontextmanager
async def misbehaving_peer(port: int, fault: str, address: str = ADDRESS) -> AsyncIterator[None]:
    """A peer that accepts connections and ``hangs``, or that ``resets`` or ``closes`` them after the first data."""
    is_ending = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await (is_ending.wait() if fault == "hangs" else reader.read(64))
            if fault == "resets":
                writer.transport.abort()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, address, port)
    try:
        yield
    finally:
        is_ending.set()
        server.close()


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends or either connection fails, then close the writer."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def tcp_relay(port: int) -> AsyncIterator[None]:
    """Relay connections from `RELAY_ADDRESS` to `ADDRESS`."""
    opened: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.add(writer)
        server_reader, server_writer = await asyncio.open_connection(ADDRESS, port)
        opened.add(server_writer)
        await asyncio.gather(copy_stream(reader, server_writer), copy_stream(server_reader, writer))

    server = await asyncio.start_server(serve, RELAY_ADDRESS, port)
    try:
        yield
    finally:
        server.close()
        for writer in opened:  # ends the tasks that read from them
            writer.close()


class _UdpRelay(asyncio.DatagramProtocol):
    """Relays datagrams between a client and the server, except those whose index ``drops`` selects."""

    def __init__(self, server: tuple[str, int], drops: Callable[[int], bool]) -> None:
        self._server, self._drops, self._count = server, drops, 0
        self._client: tuple[str | object, int] | None = None
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        assert self._transport is not None
        if addr == self._server:
            if self._client is not None:
                self._transport.sendto(data, self._client)
            return
        self._client = addr
        self._count += 1
        if not self._drops(self._count):
            self._transport.sendto(data, self._server)


@asynccontextmanager
async def lossy_relay(port: int, drops: Callable[[int], bool]) -> AsyncIterator[None]:
    """A path that loses requests by their number, counted from 1; TCP on the same port passes unharmed."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _UdpRelay((ADDRESS, port), drops), local_addr=(RELAY_ADDRESS, port)
    )
    try:
        async with tcp_relay(port):
            yield
    finally:
        transport.close()


def _remove_group(group: Path) -> None:
    """Remove a cgroup after its last process, which ends slowly because of the quota."""
    deadline_s = time.monotonic() + 30
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _create_group(quota_ratio: float) -> Path | None:
    quota_us = int(100_000 * quota_ratio)
    for parent, file, quota in (
        ("/sys/fs/cgroup", "cpu.max", f"{quota_us} 100000"),
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", str(quota_us)),
        ("/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us", str(quota_us)),
    ):
        group = Path(parent, f"netaware-test-{free_port()}")
        if (group.parent / "cgroup.procs").exists():  # a plain directory takes any file
            with suppress(OSError):
                group.mkdir()
                (group / file).write_text(quota)
                return group
            with suppress(OSError):
                group.rmdir()
    return None


@contextmanager
def cpu_group(quota_ratio: float) -> Iterator[Path]:
    """A new cgroup with a CPU quota, version 2 or 1; the test is skipped if the machine does not allow one."""
    group = _create_group(quota_ratio)
    if group is None:
        pytest.skip("no cgroup CPU controller that we may use")
    try:
        yield group
    finally:
        _remove_group(group)
