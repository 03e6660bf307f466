"""How a program starts and stops: one event loop, SIGTERM and SIGINT as cancellation, exit codes that scripts can use.

Exit 0 after a requested stop, 2 for wrong configuration, 1 when a task that should run for ever ended by itself.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from kubekit import logs
from kubekit.errors import ConfigError, KubekitError

log = logs.get("kubekit.runtime")

EXIT_FAILED, EXIT_USAGE = 1, 2


def run_program(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``main`` until it returns, fails, or a signal cancels it; return the exit code."""
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
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


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
    """Run named tasks that never end; if one does, end all and raise, since the program would be half alive.

    Raises:
        BaseExceptionGroup: with what the tasks raised.
        RuntimeError: (inside the group) a task returned.
    """

    async def guard(name: str, work: Awaitable[None]) -> None:
        await work
        msg = f"task {name} ended by itself"
        raise RuntimeError(msg)

    async with asyncio.TaskGroup() as group:
        for name, work in tasks.items():
            group.create_task(guard(name, work), name=name)


def settle_memory() -> None:
    """Call when the caches are full: their objects are left out of later garbage collections."""
    gc.collect()
    gc.freeze()
