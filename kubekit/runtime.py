"""Runs a program: one event loop, cancellation by SIGTERM and SIGINT, supervised tasks, exit codes, and memory.

Exit codes: 0 finished, or stopped by a signal; 1 failed; 2 wrong configuration; 130 SIGINT before its handler is installed.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubekit import logs
from kubekit.errors import ConfigError, KubekitError

log = logs.get("kubekit.runtime")

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
MEMORY_GROWTH_FACTOR, MEMORY_CHECK_INTERVAL_S = 1.1, 30.0
"""`run_memory_compaction` checks in this interval whether memory is more than 1.1 times its size after the last compaction."""
_NO_FULL_COLLECTIONS = 2**31 - 1  # a threshold that is never reached


def run_program(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``main`` until it returns or fails, or until a signal cancels it; returns the exit code."""
    try:
        with asyncio.Runner() as runner:
            return runner.run(_run_until_signal(main))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


async def _run_until_signal(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(main(), name="main")
    received_signals: list[signal.Signals] = []

    def stop(signal_: signal.Signals) -> None:
        if not received_signals:
            received_signals.append(signal_)
            log.info("stopping", signal=signal_.name)
            task.cancel()

    for signal_ in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_, stop, signal_)
    try:
        await task
    except asyncio.CancelledError as error:
        return 0 if received_signals else _report_errors([error])
    except BaseExceptionGroup as error_group:
        return _report_errors(_leaf_errors(error_group))
    except Exception as error:
        return _report_errors([error])
    return 0


def _leaf_errors(error_group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    errors: list[BaseException] = []
    for error in error_group.exceptions:
        errors += _leaf_errors(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors


def _report_errors(errors: list[BaseException]) -> int:
    """Print the errors if all are ConfigErrors, else log them; returns the exit code."""
    if all(isinstance(e, ConfigError) for e in errors):
        for error in errors:
            print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    for error in errors:
        if isinstance(error, KubekitError):
            log.error("program failed", error=error)
        else:
            log.log_exception("program failed", error)
    return EXIT_FAILED


async def supervise(tasks: Mapping[str, Awaitable[None]]) -> None:
    """Run named tasks that never end; if one ends, cancel all and raise.

    Raises:
        BaseExceptionGroup: with the exceptions of the tasks, and a RuntimeError for a task that returned.
    """

    async def run_forever(name: str, work: Awaitable[None]) -> None:
        await work
        raise RuntimeError(f"task {name} ended by itself")

    async with asyncio.TaskGroup() as group:
        for name, work in tasks.items():
            group.create_task(run_forever(name, work), name=name)


async def run_best_effort(
    work: Awaitable[object], caller_log: logs.Log, topic: str, *, failure_message: str, recovery_message: str
) -> bool:
    """Await ``work`` and log an exception instead of raising it; returns whether it succeeded.

    Failures and recovery are logged under this topic by `kubekit.logs.Log.log_change`: once until the error changes.
    """
    try:
        await work
    except Exception as error:
        caller_log.log_change(topic, repr(error), failure_message, error=repr(error))
        return False
    caller_log.log_change(topic, "", recovery_message)
    return True


def compact_memory(*, everything: bool = True) -> None:
    """Collect garbage, exclude the remaining objects from later collections, and disable automatic full collections.

    An automatic full collection stops every thread, with 10,000 nodes for several hundred milliseconds. Without such collections, cycles of
    older objects are freed only by the next call of this function, with ``everything`` also those that an earlier call excluded.
    """
    if everything:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NO_FULL_COLLECTIONS)


async def run_memory_compaction() -> None:
    """Call `compact_memory` now, and whenever memory has grown by the factor `MEMORY_GROWTH_FACTOR` since, until cancelled."""
    compacted_pages = 0
    while True:
        # /proc cannot be read if no file descriptor is free, or outside Linux.
        with suppress(OSError):
            if _resident_pages() > MEMORY_GROWTH_FACTOR * compacted_pages:
                compact_memory()
                compacted_pages = _resident_pages()
        await asyncio.sleep(MEMORY_CHECK_INTERVAL_S)


def _resident_pages() -> int:
    """Resident memory in pages."""
    return int(Path("/proc/self/statm").read_text().split()[1])
