"""Starts, confines and stops child processes, which the kernel kills when the agent ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import stat
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from netperf.probers.contention import poll_run_queue_us

MAX_OUTPUT_BYTES = 65536
STOP_GRACE_S = 2.0
"""Time from SIGTERM to SIGKILL, and time to wait after SIGKILL."""
NOBODY_ID = 65534
"""UID and GID of the user nobody."""
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
"""Options of prctl(2), linux/prctl.h."""
_LIMITS = {
    resource.RLIMIT_AS: 128 << 20,
    resource.RLIMIT_CPU: 120,
    resource.RLIMIT_NOFILE: 32,
    resource.RLIMIT_CORE: 0,
}
"""Resource limits of a confined child: address space in bytes, CPU time in seconds, open files, and no core dumps."""
_libc = ctypes.CDLL(None, use_errno=True)


class CompletedRun(NamedTuple):
    """The result of a process; ``run_queue_us`` is the time that the process waited for a CPU, None if unknown."""

    returncode: int
    stdout: str
    stderr: str
    run_queue_us: float | None


def die_with_parent() -> None:
    """Have the kernel kill this child when the agent's main thread ends, even by SIGKILL. Called between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _confine() -> None:
    """Drop privileges and set limits of this child. Called between fork and exec; an exception prevents the exec."""
    Path("/proc/self/oom_score_adj").write_text("1000")  # killed first if the container runs out of memory
    if os.geteuid() == 0:  # as root, netserver overwrites and deletes other users' files
        os.setgroups([])
        os.setgid(NOBODY_ID)
        os.setuid(NOBODY_ID)  # this drops all capabilities
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    die_with_parent()  # a change of user resets it
    # Last: until exec this is a copy of the agent, which is larger.
    for kind, maximum in _LIMITS.items():
        resource.setrlimit(kind, (maximum, maximum))


def _is_executable_by_others(program: str) -> bool:
    """Whether users other than the owner can reach and execute a program."""
    path = Path(program).resolve()
    return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


def child_environment() -> dict[str, str]:
    """The environment variables of a child."""
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
    return {**inherited, "LC_ALL": "C"}  # error messages are parsed


async def start_confined(program: str, *arguments: str, stdin: int) -> Process:
    """Start an unprivileged child with resource limits, to serve other hosts; the kernel kills it when the agent ends.

    Raises:
        OSError: the program cannot be started.
        SubprocessError: the child cannot be confined; root needs CAP_SETUID and CAP_SETGID.
    """
    descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # If the user nobody cannot reach the program, execute it through an open descriptor.
        path = program if _is_executable_by_others(program) else f"/proc/self/fd/{descriptor}"
        return await asyncio.create_subprocess_exec(
            Path(program).name,
            *arguments,
            executable=path,
            pass_fds=() if path == program else (descriptor,),
            stdin=stdin,
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd="/",
            env=child_environment(),
            preexec_fn=_confine,
        )
    finally:
        os.close(descriptor)


async def run_to_end(arguments: Sequence[str], deadline_s: float) -> CompletedRun:
    """Run a program until it ends. The kernel kills it when the agent ends. Both its outputs are cut to `MAX_OUTPUT_BYTES`.

    Raises:
        TimeoutError: the program did not end in time, and was stopped.
        OSError: the program cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=child_environment(), preexec_fn=die_with_parent
    )
    try:
        async with asyncio.timeout(deadline_s):
            returncode, stdout, stderr, run_queue_us = await asyncio.gather(
                process.wait(), _read_start(process.stdout), _read_start(process.stderr), poll_run_queue_us(process.pid)
            )
    finally:
        await stop(process)
    return CompletedRun(returncode, stdout, stderr, run_queue_us)


async def _read_start(stream: asyncio.StreamReader | None) -> str:
    """The first `MAX_OUTPUT_BYTES` of a stream; reads to its end, so that the child does not block."""
    output = b""
    while stream is not None and (chunk := await stream.read(MAX_OUTPUT_BYTES)):
        output = (output + chunk)[:MAX_OUTPUT_BYTES]
    return output.decode("utf-8", "replace")


async def stop(process: Process) -> None:
    """Stop a child by SIGTERM, and if that is not enough by SIGKILL. Does nothing if the child has ended."""
    if process.returncode is not None:
        return
    for send_signal in (process.terminate, process.kill):
        with suppress(ProcessLookupError):
            send_signal()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            continue
        return
