"""Waits with timeouts, back-off, and cooperative yielding."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kubekit.errors import KubekitError

TIME_SLICE_S = 0.005


def backoff_s(failures: int, first_s: float, cap_s: float) -> float:
    """The delay after a number of failures in a row: ``first_s`` after the first, doubled after each further one, at most ``cap_s``."""
    # The exponent is bounded, because 2.0 ** 1024 overflows.
    return min(cap_s, first_s * 2.0 ** min(max(failures - 1, 0), 64))


@dataclass(slots=True)
class Backoff:
    """Delays that double from ``base_s`` to ``cap_s``, each shortened by up to half at random.

    Jitter spreads the retries of many agents after a restart of the API server.

    Attributes:
        base_s: the first delay before jitter, seconds.
        cap_s: the longest delay, seconds.
        rng: source of the jitter.
        failures: number of failures in a row.
    """

    base_s: float = 0.5
    cap_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next(self) -> float:
        """Count one failure and return how long to wait, in seconds."""
        self.failures += 1
        return backoff_s(self.failures, self.base_s, self.cap_s) * self.rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Set the failures to 0, after a success."""
        self.failures = 0


class CooperativeYield:
    """Yields to the event loop when a time slice is over: await an instance (``await maybe_yield()``) in long loops.

    Args:
        slice_s: length of a time slice.
        clock: a monotonic clock, seconds.
    """

    def __init__(self, slice_s: float = TIME_SLICE_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._slice_s, self._clock, self._slice_began = slice_s, clock, clock()

    async def __call__(self) -> None:
        """Yield to the event loop if the time slice is over."""
        if self._clock() - self._slice_began >= self._slice_s:
            await asyncio.sleep(0)
            self._slice_began = self._clock()


class WaitTimeoutError(KubekitError):
    """A condition was not true in time; the message has its description and the timeout."""


async def wait_until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event with a timeout; returns whether it was set."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def poll_until(
    check: Callable[[], object],
    description: str | Callable[[], str],
    timeout_s: float,
    *,
    every_s: float = 0.1,
    on_retry: Callable[[], object] = lambda: None,
    error: type[KubekitError] = WaitTimeoutError,
) -> None:
    """Call ``check`` until its result is true.

    Args:
        check: called at once, then after each interval; may be asynchronous.
        description: completes the message "timed out after 5 s waiting for"; or a function that returns it on timeout.
        timeout_s: after this time ``check`` is called for the last time.
        every_s: time between two checks, seconds.
        on_retry: called after each check that is not true. Exceptions of ``on_retry`` and ``check`` propagate.
        error: type of the error for a timeout.

    Raises:
        WaitTimeoutError: or ``error``: no check was true in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        result = check()
        if await result if inspect.isawaitable(result) else result:
            return
        on_retry()
        if time.monotonic() > deadline:
            text = description if isinstance(description, str) else description()
            raise error(f"timed out after {timeout_s:g} s waiting for {text}")
        await asyncio.sleep(every_s)
