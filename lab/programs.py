"""Starts, watches and stops the programs of a lab, on the host or inside a node's network namespace.

Each program has a log file. The kernel kills a program when the lab's process ends (PR_SET_PDEATHSIG, set by setpriv). The
environment of all processes has `LAB_VARIABLE`, by which those that a lab left after SIGKILL are found.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from lab import namespaces
from lab.errors import BootError
from lab.paths import LOGS_FOLDER
from lab.polling import poll_until

LAB_VARIABLE = "NETAWARE_LAB"
"""Environment variable with the lab's state directory."""
STOP_TIMEOUT_S, _KILL_TIMEOUT_S = 15.0, 5.0
_POLL_S = 0.02
_WATCH_S = 0.25
_LOG_TAIL_BYTES = 2000
# Programs read the speed of network cards in sysfs, so it must show the namespace. `ip netns exec` mounts it likewise.
_MOUNT_SYSFS_AND_EXEC = (
    'mount -t sysfs netaware-lab /sys || echo "lab: /sys still shows the devices of the host" >&2; exec "$@"'
)


def agent_program_name(node: str) -> str:
    """Return the name of a node's agent among the lab's programs."""
    return f"agent-{node}"


def build_pythonpath_env() -> dict[str, str]:
    """Return the variable PYTHONPATH with this project's packages, which need not be installed."""
    root = str(Path(__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


@dataclass
class Program:
    """A started program.

    Attributes:
        name: its name, unique among the running programs.
        log: file with its stdout and stderr.
        stop_timeout_s: seconds between SIGTERM and SIGKILL.
        start_again: starts the same command again; returns the new program.
    """

    name: str
    log: Path
    stop_timeout_s: float
    start_again: Callable[[], Program]
    _process: subprocess.Popen[bytes]
    _is_stopping: bool = False

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group."""
        return self._process.pid

    def find_process_tree(self) -> list[psutil.Process]:
        """Return its process and all descendants. Raises psutil.Error if it has ended."""
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of the signal that killed it; None while it runs."""
        return self._process.poll()

    @property
    def has_failed(self) -> bool:
        """Whether it ended unexpectedly."""
        return not self._is_stopping and self.poll() is not None

    @property
    def log_excerpt(self) -> str:
        """The end of its log, for the end of an error message."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace").strip()
        return f"the log of {self.name}, {self.log}, ends:\n{tail}"

    async def wait(self, timeout_s: float = math.inf) -> int | None:
        """Wait up to ``timeout_s`` for its end; return as `poll`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            code = self.poll()
            if code is not None or time.monotonic() >= deadline_s:
                return code
            # Polling works from any event loop: the tests that use a fixture's program have different loops.
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Send SIGTERM, wait up to ``stop_timeout_s``, and send SIGKILL to its process group."""
        self._is_stopping = True
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            await self.wait(self.stop_timeout_s)
        # Also after a clean end, because a child that remains would keep the lab's namespaces in use.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.wait()


class Programs:
    """The running programs of a lab.

    Args:
        state_dir: working directory of the programs, and folder of ``logs``.
        env: variables for every program, added to this process's environment.
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
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> Program:
        """Start a program, in a network namespace (default: the host's), with further environment variables.

        Call from the main thread: the kernel kills the program when the thread that forked ends. Raises BootError if the command does not
        exist.
        """
        log = self._state_dir / LOGS_FOLDER / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [*_build_enter_prefix(netns), "setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._state_dir,
                    env={**self._env, **(env or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise BootError(f"{name}: {command[0]}: {error.strerror}") from error

        start_again = partial(self.start, name, argv, netns=netns, env=env, stop_timeout_s=stop_timeout_s)
        program = Program(name, log, stop_timeout_s, start_again, process)
        self._running.append(program)
        return program

    def check_running(self) -> None:
        """Raise BootError, with the end of its log, for the first program that ended unexpectedly."""
        for program in self._running:
            if program.has_failed:
                raise BootError(f"{program.name} ended with code {program.poll()}; {program.log_excerpt}")

    async def wait_until(
        self, check: Callable[[], Any], description: str | Callable[[], str], timeout_s: float, every_s: float = _POLL_S
    ) -> Any:
        """Poll as `poll_until`. Raises BootError after the timeout, or if a program ends unexpectedly."""
        on_retry = self.check_running
        return await poll_until(check, description, timeout_s, every_s=every_s, on_retry=on_retry, error=BootError)

    async def watch(self) -> None:
        """Wait until a program ends unexpectedly, then raise BootError as `check_running`."""
        while True:
            self.check_running()
            await asyncio.sleep(_WATCH_S)

    async def stop(self, program: Program) -> None:
        """Stop a program and remove it from the running programs."""
        await program.stop()
        if program in self._running:
            self._running.remove(program)

    async def restart(self, program: Program) -> Program:
        """Stop a program and start the same command again. Call from the main thread."""
        await self.stop(program)
        return program.start_again()

    async def stop_all(self) -> None:
        """Stop all programs one by one, in reverse order of their start."""
        while self._running:
            await self.stop(self._running[-1])


async def run_command(
    argv: Sequence[str | Path], description: str, timeout_s: float, env: Mapping[str, str] | None = None
) -> bytes:
    """Run a command with further environment variables; return its stdout.

    Raises BootError, with its description and output, if it fails, or if it was killed after the timeout.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        raise BootError(f"{description}: no end after {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BootError(f"{description}: {(errors or output).decode(errors='replace').strip()}")
    return output


def _build_enter_prefix(netns: str | None) -> list[str]:
    if netns is None:
        return []
    enter = [*namespaces.build_enter_command(netns), "--", "unshare", "--mount", "--"]
    return [*enter, "sh", "-c", _MOUNT_SYSFS_AND_EXEC, "sh"]


async def answers_ok(url: str, timeout_s: float = 2.0) -> bool:
    """Whether the server answers a GET request with status 200 in time."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(url) as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def find_processes(state_dir: Path) -> list[psutil.Process]:
    """Running processes of the lab at ``state_dir``, except this one."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(LAB_VARIABLE) == str(state_dir) and process.pid != os.getpid()
    ]


def kill_processes(state_dir: Path) -> int:
    """Send SIGKILL to all processes of a lab, wait for up to 5 s until they ended, and return their number."""
    killed: set[psutil.Process] = set()
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    # A process has no environment for a moment during execve; the next iteration finds it.
    while (processes := find_processes(state_dir)) or any(map(_is_running, killed)):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        killed |= set(processes)
        if time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    return len(killed)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
