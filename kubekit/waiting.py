"""Waiting with a deadline, back-off, and cooperative yielding.

A wait has a deadline and a retry a back-off. Jitter matters: when an API server comes back, ten thousand agents must not ask in
the same second. Work on thousands of objects leaves the event loop to others now and then.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kubekit.errors import KubekitError

YIELD_EVERY_S = 0.005


def backoff_s(failures: int, first_s: float, cap_s: float) -> float:
    """The delay after so many failures in a row: ``first_s`` after the first, doubled after each further one, at most ``cap_s``."""
    # The exponent is bounded, because 2.0 ** 1024 overflows.
    return min(cap_s, first_s * 2.0 ** min(max(failures - 1, 0), 64))


@dataclass(slots=True)
class Backoff:
    """Delays that double from ``base_s`` to ``cap_s``, each shortened by up to half at random.

    Attributes:
        base_s: the first delay before jitter, seconds.
        cap_s: no delay is longer, seconds.
        rng: source of the jitter; pass a seeded one where a test must repeat.
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
        """Forget the failures: the next delay is the first again."""
        self.failures = 0


class CooperativeYield:
    """Yields to the event loop when a time slice is over: call an instance (``await maybe_yield()``) inside long loops.

    Args:
        every_s: length of a time slice.
        clock: seconds.
    """

    def __init__(self, every_s: float = YIELD_EVERY_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._every_s, self._clock = every_s, clock
        self._since = clock()

    async def __call__(self) -> None:
        """Yield to the event loop if the time slice is over."""
        if self._clock() - self._since >= self._every_s:
            await asyncio.sleep(0)
            self._since = self._clock()


class WaitTimeoutError(KubekitError):
    """A condition did not hold in time; the text names it and the time."""


async def wait_for(event: asyncio.Event, within_s: float) -> bool:
    """Wait for an event with a timeout; returns whether it was set."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def poll_until(
    check: Callable[[], object],
    what: str | Callable[[], str],
    timeout_s: float,
    *,
    every_s: float = 0.1,
    meanwhile: Callable[[], object] = lambda: None,
    error: type[KubekitError] = WaitTimeoutError,
) -> None:
    """Call ``check`` until its answer is true.

    Args:
        check: called at once, then after each pause; may be asynchronous.
        what: text that completes "timed out after 5 s waiting for"; or a function for it, called only on timeout.
        timeout_s: for how long, seconds.
        every_s: the pause, seconds.
        meanwhile: called after each answer that is not true. An exception of it or of ``check`` ends the wait.
        error: raised on timeout.

    Raises:
        WaitTimeoutError: or ``error``.
    """
    ends = time.monotonic() + timeout_s
    while not (await answer if inspect.isawaitable(answer := check()) else answer):
        meanwhile()
        if time.monotonic() > ends:
            raise error(f"timed out after {timeout_s:g} s waiting for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(every_s)
