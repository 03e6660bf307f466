"""Starts, watches and stops the programs of a lab, on the host or inside a node's network namespace.

Each program has a log file, and the kernel kills it when the lab dies (PR_SET_PDEATHSIG, by way of setpriv). What a lab that gets
SIGKILL leaves behind all the same, lab.processes finds.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import psutil

from lab import namespaces
from lab.errors import BootError
from lab.paths import LOGS
from lab.processes import LAB_VARIABLE

STOP_TIMEOUT_S = 15.0
_POLL_S = 0.02
_WATCH_S = 0.25
_LOG_TAIL_BYTES = 2000
# The same steps as `ip netns exec`, with util-linux alone: enter the namespace, then show its devices under /sys, where
# programs look for the speed of a network card.
_SHOW_OWN_SYSFS = (
    'mount -t sysfs netaware-lab /sys || echo "lab: /sys still shows the devices of the host" >&2; exec "$@"'
)


def agent_program(node: str) -> str:
    """Name of a node's agent among the lab's programs."""
    return f"agent-{node}"


def pythonpath_env() -> dict[str, str]:
    """The variable by which a Python that runs anywhere finds this project's packages, also from a plain checkout."""
    root = str(Path(__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


@dataclass
class Program:
    """One running, or ended, program.

    Attributes:
        name: what it is in this lab; unique among the running ones.
        log: file that holds its stdout and stderr.
        essential: its unexpected end is the end of the lab.
        stop_timeout_s: time to end after the signal, in seconds.
        again: starts the same command once more.
    """

    name: str
    log: Path
    essential: bool
    stop_timeout_s: float
    again: Callable[[], Program]
    _process: subprocess.Popen[bytes]
    _stopping: bool = False

    @property
    def pid(self) -> int:
        """Its process id, also that of its process group."""
        return self._process.pid

    def family(self) -> list[psutil.Process]:
        """Its process and all below it. Raises psutil.Error when it has ended."""
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]

    def poll(self) -> int | None:
        """Exit code, minus the signal's number when killed, ``None`` while it runs."""
        return self._process.poll()

    @property
    def failed(self) -> bool:
        """Whether it ended unexpectedly."""
        return not self._stopping and self.poll() is not None

    def log_tail(self) -> str:
        """The end of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()

    @property
    def log_excerpt(self) -> str:
        """The end of its log, as the second half of an error."""
        return f"the log of {self.name} ends:\n{self.log_tail()}"

    @property
    def exit_message(self) -> str:
        """Its exit code and the end of its log, as an error."""
        return f"{self.name} ended with code {self.poll()}; its log, {self.log}, ends:\n{self.log_tail()}"

    async def wait(self, timeout_s: float = math.inf) -> int | None:
        """Wait for its end, not longer than ``timeout_s``; return the exit code or ``None``."""
        deadline = time.monotonic() + timeout_s
        while True:
            code = self.poll()
            if code is not None or time.monotonic() >= deadline:
                return code
            # Polling keeps a program usable from any event loop: test fixtures outlive the loop of one test.
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL to its whole process group when it has not ended in time."""
        self._stopping = True
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            await self.wait(self.stop_timeout_s)
        # Also after a clean end: a child it left behind would keep the lab's namespaces in use.
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self.wait()


class Programs:
    """The programs of one lab, stopped in the reverse of the order in which they were started.

    Args:
        state_dir: where ``logs/`` goes.
        env: variables for every program, on top of this process's own.
    """

    def __init__(self, state_dir: Path, env: Mapping[str, str] | None = None) -> None:
        self._state_dir = state_dir
        self._env = {**os.environ, **(env or {}), LAB_VARIABLE: str(state_dir)}
        self._running: list[Program] = []

    def __iter__(self) -> Iterator[Program]:
        return iter(tuple(self._running))

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        netns: str | None = None,
        env: Mapping[str, str] | None = None,
        essential: bool = True,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> Program:
        """Start a program in the lab's state directory; call from the main thread, since the kernel ties its life to the thread that forks.

        Args:
            name: stem of its log file.
            argv: the command.
            netns: name of the network namespace to run in, as under /run/netns; ``None`` for the host's.
            env: more variables.
            essential: see Program.
            stop_timeout_s: see Program.

        Raises:
            BootError: the command does not exist.
        """
        log = self._state_dir / LOGS / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        full = [*_enter(netns), "setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    full,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._state_dir,
                    env={**self._env, **(env or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise BootError(f"{name}: {full[0]}: {error.strerror}") from error
        again = partial(
            self.start,
            name,
            argv,
            netns=netns,
            env=env,
            essential=essential,
            stop_timeout_s=stop_timeout_s,
        )
        program = Program(name, log, essential, stop_timeout_s, again, process)
        self._running.append(program)
        return program

    def check(self) -> None:
        """Raise BootError, with the end of its log, for the first essential program that ended by itself."""
        for program in self._running:
            if program.essential and program.failed:
                raise BootError(program.exit_message)

    async def watch(self) -> None:
        """Return never; raise BootError when an essential program ends by itself."""
        while True:
            self.check()
            await asyncio.sleep(_WATCH_S)

    async def stop(self, program: Program) -> None:
        """Stop one program."""
        await program.stop()
        if program in self._running:
            self._running.remove(program)

    async def restart(self, program: Program) -> Program:
        """Stop one program where it still runs, and start the same command again; call from the main thread."""
        await self.stop(program)
        return program.again()

    async def stop_all(self) -> None:
        """Stop every program, last started first, one after the other."""
        while self._running:
            await self.stop(self._running[-1])


async def run_to_end(
    words: Sequence[str | Path], what: str, timeout_s: float, env: Mapping[str, str] | None = None
) -> bytes:
    """Run a command that ends by itself; what it prints on stdout.

    Args:
        words: program and arguments.
        what: how errors name it.
        timeout_s: after this time it is killed.
        env: added to our own environment.

    Raises:
        BootError: it failed, with what it said, or it did not end in time.
    """
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        raise BootError(f"{what}: no end after {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BootError(f"{what}: {(errors or output).decode(errors='replace').strip()}")
    return output


def _enter(netns: str | None) -> list[str]:
    if netns is None:
        return []
    enter = [*namespaces.enter_command(netns), "--", "unshare", "--mount", "--"]
    return [*enter, "sh", "-c", _SHOW_OWN_SYSFS, "sh"]


async def is_ready(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a server answers this with 200, and in time."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(url) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
