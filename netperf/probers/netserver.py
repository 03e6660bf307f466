"""Serves netperf's control connections: checks the hourly passphrase, then hands the connection to a netserver process.

A listening netserver forks for every TCP connection, without a limit and before it reads a passphrase, so that anyone who reaches the port
could exhaust memory. Therefore the agent listens instead. It starts a process for a connection only if the first request, which has a fixed
size, contains the passphrase. The connection is the standard input of the process, as under inetd (``check_if_inetd`` in netserver.c).
The passphrase is not an argument, so the list of processes does not show it.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import Callable
from functools import partial
from subprocess import SubprocessError

from kubekit import logs
from kubekit.waiting import Backoff
from netperf.probers import child
from netperf.probers.passphrase import derive_hourly_passphrase, epoch_at
from netperf.probers.rejections import RejectionLog

log = logs.get("netperf.netserver")

REQUEST_BYTES, PASSPHRASE_OFFSET = 656, 8
"""Size of ``struct netperf_request`` of netperf 2.7.0 (netlib.h), and offset of the text in a PASSPHRASE request."""
MAX_PENDING_CONNECTIONS = 64
"""Maximum number of unauthenticated connections. A further connection replaces the oldest one of the peer with the most connections."""
REQUEST_TIMEOUT_S = 5.0
"""Time for a peer to send its first request."""
VERSION_TIMEOUT_S = 5.0
"""Time for ``netserver -V`` to end."""
MAX_RUNS = 8
"""Maximum number of runs at a time; a plan allows one, but clocks may differ."""
MAX_RUN_S = 120.0
"""Time after which a run is stopped; a plan allows 60 s."""


class Netserver:
    """Listens on one address and starts a netserver for each authenticated connection.

    Args:
        binary: path of netserver, see `netperf.probers.netperf.find_binary`.
        address: the node's own address, a literal; never all addresses.
        port: control port.
        passphrase: the probing passphrase, from which hourly ones are derived.
        wall_clock: seconds since 1970, for the epoch of the hourly passphrase.

    Attributes:
        listening: set while connections are accepted.
        failure: reason why connections are not accepted; empty while connections are accepted.
    """

    def __init__(
        self, binary: str, address: str, port: int, passphrase: bytes, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.listening = asyncio.Event()
        self.failure = "not started"
        self._binary, self._address, self._port, self._passphrase = binary, address, port, passphrase
        self._wall_clock, self._backoff = wall_clock, Backoff()
        self._rejection_log = RejectionLog(log, "netperf connection without a valid passphrase")
        self._peer_by_pending_task: dict[asyncio.Task[None], str] = {}
        self._run_tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until cancelled; then stop the runs in progress. If serving fails, set `failure` and try again with a back-off."""
        try:
            while True:
                try:
                    self.failure = await self._find_binary_problem()
                    if not self.failure:
                        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
                        with socket.create_server((self._address, self._port), family=family, backlog=128) as listener:
                            await self._accept(listener)
                except OSError as error:
                    self.failure = f"cannot serve on {self._address} port {self._port}: {error.strerror}"
                finally:
                    self.listening.clear()
                log.log_change(f"netserver/{self._address}", self.failure, "netserver cannot serve", error=self.failure)
                await asyncio.sleep(self._backoff.next_delay_s())
        finally:
            tasks = [*self._peer_by_pending_task, *self._run_tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_binary_problem(self) -> str:
        """Run ``netserver -V``; returns why it failed, or an empty text."""
        try:
            process = await child.start_confined(self._binary, "-V", stdin=DEVNULL)
        except SubprocessError:
            return f"cannot drop privileges for {self._binary}: CAP_SETUID and CAP_SETGID are needed"
        except OSError as error:
            return f"cannot start {self._binary}: {error.strerror}"
        try:
            async with asyncio.timeout(VERSION_TIMEOUT_S):
                code = await process.wait()
        except TimeoutError:
            return f"{self._binary} -V does not end"
        finally:
            await child.stop(process)
        return f"{self._binary} -V ended with code {code}" if code else ""

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)  # noqa: FBT003  the name of the argument is not part of the socket interface
        self.listening.set()
        self._backoff.reset()
        self.failure = ""
        log.log_change(f"netserver/{self._address}", "", "netserver serves again", port=self._port)
        loop = asyncio.get_running_loop()
        while True:
            connection, peer = await loop.sock_accept(listener)
            if len(self._peer_by_pending_task) >= MAX_PENDING_CONNECTIONS:
                largest_peer, _ = Counter(self._peer_by_pending_task.values()).most_common(1)[0]
                oldest = next(task for task, address in self._peer_by_pending_task.items() if address == largest_peer)
                del self._peer_by_pending_task[oldest]
                oldest.cancel()
            task = loop.create_task(self._admit(connection, str(peer[0])), name="netserver-admit")
            self._peer_by_pending_task[task] = str(peer[0])
            task.add_done_callback(partial(self._close_connection, connection))

    def _close_connection(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Close the connection of a finished task, also if the task was cancelled before it started."""
        self._peer_by_pending_task.pop(task, None)
        connection.close()

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        """Read the first request, and start a process if the request contains the passphrase."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _read_exactly(connection, REQUEST_BYTES)
        except (OSError, TimeoutError):
            return
        if len(request) < REQUEST_BYTES:
            return  # a TCP ping
        if not self._has_passphrase(request):
            self._rejection_log.add(peer)
            return
        if len(self._run_tasks) >= MAX_RUNS:
            log.log_change("runs", "full", "too many runs at the same time", max=MAX_RUNS)
            return
        log.log_change("runs", "", "runs are accepted again")
        # The process shares the open file description, and netserver needs a blocking socket.
        connection.setblocking(True)  # noqa: FBT003
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        run_connection = connection.dup()
        task = asyncio.get_running_loop().create_task(self._serve(run_connection), name="netserver-run")
        self._run_tasks.add(task)
        task.add_done_callback(self._run_tasks.discard)
        task.add_done_callback(lambda _: run_connection.close())  # also if the task is cancelled before it starts

    def _has_passphrase(self, request: bytes) -> bool:
        expected = derive_hourly_passphrase(self._passphrase, epoch_at(self._wall_clock())).encode() + b"\0"
        return hmac.compare_digest(request[PASSPHRASE_OFFSET : PASSPHRASE_OFFSET + len(expected)], expected)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                process = await child.start_confined(self._binary, "-N", stdin=connection.fileno())
        except (OSError, SubprocessError) as error:
            log.log_change("start", str(error), "cannot start netserver", binary=self._binary, error=error)
            return
        log.log_change("start", "", "netserver starts again", binary=self._binary)
        try:
            async with asyncio.timeout(MAX_RUN_S):
                await process.wait()
        except TimeoutError:
            log.warning("netserver took too long and was stopped", limit_s=MAX_RUN_S)
        finally:
            await child.stop(process)


async def _read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read ``count`` bytes, or fewer if the peer closes the connection."""
    data = b""
    while len(data) < count and (chunk := await asyncio.get_running_loop().sock_recv(connection, count - len(data))):
        data += chunk
    return data
