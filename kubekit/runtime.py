"""Starts and stops a program: one event loop, cancellation by SIGTERM and SIGINT, exit codes.

Exit codes: 0 stopped or finished, 1 failed, 2 wrong configuration, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubekit import logs
from kubekit.errors import ConfigError, KubekitError

log = logs.get("kubekit.runtime")

EXIT_FAILED, EXIT_USAGE = 1, 2
MEMORY_GROWTH, MEMORY_CHECK_INTERVAL_S = 1.1, 30.0
_NEVER = 2**31 - 1


def run_program(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``main`` until it returns or fails, or a signal cancels it; returns the exit code."""
    try:
        with asyncio.Runner() as runner:
            return runner.run(_until_signal(main))
    except KeyboardInterrupt:
        return 130


async def _until_signal(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(main(), name="main")
    stopped_by: list[str] = []

    def stop(number: signal.Signals) -> None:
        if not stopped_by:
            stopped_by.append(number.name)
            log.info("stopping", signal=number.name)
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        return 0 if stopped_by else EXIT_FAILED
    except BaseExceptionGroup as group:
        return _report(_leaves(group))
    except Exception as error:
        return _report([error])
    return 0


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def _report(errors: list[BaseException]) -> int:
    if all(isinstance(e, ConfigError) for e in errors):
        for error in errors:
            print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    for error in errors:
        if isinstance(error, KubekitError):
            log.error("program failed", error=error)
        else:
            log.unexpected("program failed", error)
    return EXIT_FAILED


async def supervise(tasks: Mapping[str, Awaitable[None]]) -> None:
    """Run named tasks that never end; if one ends, cancels all and raises.

    Raises:
        BaseExceptionGroup: with the exceptions of the tasks, and a RuntimeError for a task that returned.
    """

    async def guard(name: str, work: Awaitable[None]) -> None:
        await work
        raise RuntimeError(f"task {name} ended by itself")

    async with asyncio.TaskGroup() as group:
        for name, work in tasks.items():
            group.create_task(guard(name, work), name=name)


async def run_best_effort(work: Awaitable[object], log: logs.Log, topic: str, *, broken: str, recovered: str) -> bool:
    """Await ``work`` and log an exception instead of raising it; returns whether it succeeded.

    Args:
        work: to await.
        log: gets a line if the error changes, and after recovery.
        topic: of `kubekit.logs.Log.change`.
        broken: the message of a failure.
        recovered: the message after recovery.
    """
    try:
        await work
    except Exception as error:
        log.change(topic, repr(error), broken, error=repr(error))
        return False
    log.change(topic, "", recovered)
    return True


def compact_memory(*, everything: bool = True) -> None:
    """Exclude all present objects from later garbage collections, and disable automatic full ones.

    A full collection stops every thread: with 10,000 nodes, every 3 s for 0.15 to 0.4 s. Without it, reference cycles that become
    garbage later are freed by the next call only, and with ``everything`` also those of objects that an earlier call excluded.
    """
    if everything:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


async def configure_gc() -> None:
    """Call `compact_memory` now, and whenever memory has grown by a tenth since the last call, until cancelled."""
    compacted_pages = 0
    while True:
        # /proc cannot be read if no file descriptor is free.
        with suppress(OSError):
            if _resident_pages() > MEMORY_GROWTH * compacted_pages:
                compact_memory()
                compacted_pages = _resident_pages()
        await asyncio.sleep(MEMORY_CHECK_INTERVAL_S)


def _resident_pages() -> int:
    """Resident memory in pages; on systems without /proc, the maximum so far, in another unit."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(Path("/proc/self/statm").read_text().split()[1])
