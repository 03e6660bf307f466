"""netserver as a supervised child: on the node's own address, only while the agent runs, with a passphrase that rotates.

Restarting the listener does not disturb a run in progress, since netserver serves each client from a process of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress

from kubekit import logs
from kubekit.waiting import Backoff
from netperf.probers import child
from netperf.probers.passphrase import EPOCH_S, derive_passphrase, epoch_at

log = logs.get("netperf.netserver")

STEADY_S = 10.0
START_DEADLINE_S = 5.0
START_POLL_S = 0.05


class Netserver:
    """Keeps one netserver listening.

    Args:
        binary: path of netserver, see `netperf.probers.netperf.find_binary`.
        address: the node's own address, a literal; never all addresses.
        port: control port.
        secret: what passphrases are derived from.
        wall_clock: seconds since 1970, decides the passphrase's epoch; the listener is started anew when that ends.

    Attributes:
        restarts: starts after the first, not counting those for a new passphrase.
        failure: why it does not run, or empty; for a readiness check.
    """

    def __init__(
        self,
        binary: str,
        address: str,
        port: int,
        secret: bytes,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._binary, self._address, self._port, self._secret = binary, address, port, secret
        self._wall_clock, self._backoff = wall_clock, Backoff()
        self._ready = asyncio.Event()
        self.restarts = 0
        self.failure = "not started"

    @property
    def listening(self) -> bool:
        """Whether the child runs and accepted a connection since it was started."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Wait until netserver listens; put it under a deadline."""
        await self._ready.wait()

    async def run(self) -> None:
        """Keep netserver running until cancelled; never returns by itself."""
        while True:
            started = time.monotonic()
            rotated = False
            try:
                rotated = await self._run_one_epoch()
            except OSError as error:
                self.failure = f"cannot start {self._binary}: {error.strerror}"
            finally:
                self._ready.clear()
            if rotated:
                continue
            if time.monotonic() - started > STEADY_S:
                self._backoff.reset()
            self.restarts += 1
            log.change(f"netserver/{self._address}", self.failure, "netserver ended", port=self._port)
            await asyncio.sleep(self._backoff.next())

    async def _run_one_epoch(self) -> bool:
        """Run one child until it ends or its passphrase does; tell whether it was the passphrase."""
        epoch = epoch_at(self._wall_clock())
        command = [self._binary, "-D", "-L", self._address, "-p", str(self._port)]
        process = await child.start([*command, "-Z", derive_passphrase(self._secret, epoch)])
        ended = asyncio.create_task(_last_words(process))
        try:
            await self._watch_start(ended)
            while not ended.done():
                left_s = (epoch + 1) * EPOCH_S - self._wall_clock()
                if left_s <= 0:
                    return True
                # The wall clock may be set meanwhile, so it is looked at again every minute.
                await asyncio.wait([ended], timeout=min(left_s, 60.0))
            self.failure = ended.result()
            return False
        finally:
            await child.stop(process)
            ended.cancel()
            with suppress(asyncio.CancelledError):
                await ended

    async def _watch_start(self, ended: asyncio.Task[str]) -> None:
        """Set readiness once the port accepts a connection, unless the child ends first."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not ended.done() and time.monotonic() < deadline:
            # Not ours if the child has ended meanwhile: then somebody else listens on this port.
            if await _accepts(self._address, self._port):
                await asyncio.wait([ended], timeout=START_POLL_S)
                if not ended.done():
                    self.failure = ""
                    self._ready.set()
                    log.change(f"netserver/{self._address}", "", "netserver listens again", port=self._port)
                return
            await asyncio.sleep(START_POLL_S)


async def _last_words(process: Process) -> str:
    """Wait for the child's end; its last line of stderr, or its exit status."""
    words = b""
    if process.stderr is not None:
        while chunk := await process.stderr.read(4096):
            words = (words + chunk)[-4096:]
    status = await process.wait()
    last = words.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"exit status {status}" + (f": {last[:200]}" if last else "")


async def _accepts(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(str(ipaddress.ip_address(address)), port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
