"""Child processes that cannot outlive the agent, and runs that cannot outlive their deadline."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from netperf.probers.contention import CpuUse, follow_cpu_use

OUTPUT_LIMIT = 65536
STOP_GRACE_S = 2.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Finished(NamedTuple):
    """A run that ended by itself."""

    status: int
    stdout: str
    stderr: str
    cpu: CpuUse | None


def die_with_parent() -> None:
    """Called between fork and exec: the kernel kills the child when the agent's main thread ends, even by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def child_environment() -> dict[str, str]:
    """Only what a measuring program needs; messages in English, since we read them."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
    return {**kept, "LC_ALL": "C"}


async def start(arguments: Sequence[str], *, stdout: int = DEVNULL) -> Process:
    """Start a child that dies with us.

    Raises:
        OSError: the program cannot be started.
    """
    return await asyncio.create_subprocess_exec(
        *arguments,
        stdin=DEVNULL,
        stdout=stdout,
        stderr=PIPE,
        env=child_environment(),
        limit=OUTPUT_LIMIT,
        preexec_fn=die_with_parent,
    )


async def run(arguments: Sequence[str], deadline_s: float) -> Finished:
    """Run a program to its end.

    Raises:
        TimeoutError: it did not end in time, and was killed.
        OSError: it cannot be started.
    """
    process = await start(arguments, stdout=PIPE)
    last: list[CpuUse] = []
    watcher = asyncio.create_task(follow_cpu_use(process.pid, lambda use: last.__setitem__(slice(None), [use])))
    try:
        async with asyncio.timeout(deadline_s):
            stdout, stderr = await process.communicate()
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        await stop(process)
    return Finished(
        process.returncode if process.returncode is not None else -1,
        stdout[:OUTPUT_LIMIT].decode("utf-8", "replace"),
        stderr[:OUTPUT_LIMIT].decode("utf-8", "replace"),
        last[0] if last else None,
    )


async def stop(process: Process) -> None:
    """End a child: ask, wait two seconds, kill. Does nothing to one that has ended."""
    if process.returncode is not None:
        return
    for send in (process.terminate, process.kill):
        with suppress(ProcessLookupError):
            send()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            continue
        return
