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
        # The exponent is bounded, because 2.0 ** 1100 overflows after a long outage.
        full = min(self.cap_s, self.base_s * 2.0 ** min(self.failures - 1, 32))
        return full * self.rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Forget the failures: the next delay is the first again."""
        self.failures = 0


class CooperativeYield:
    """``await maybe_yield()`` in long work: yields to the event loop when its time slice is over.

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


async def until(
    check: Callable[[], object],
    what: str | Callable[[], str],
    deadline_s: float,
    *,
    every_s: float = 0.1,
    meanwhile: Callable[[], object] = lambda: None,
    error: type[KubekitError] = WaitTimeoutError,
) -> None:
    """Ask until the answer is true.

    Args:
        check: asked at once, then after each pause; may be awaitable.
        what: is waited for, after "timed out after 5 s waiting for"; called, where only the end shows what is missing.
        deadline_s: for how long, seconds.
        every_s: the pause, seconds.
        meanwhile: called after each answer that is not true; what it or ``check`` raises ends the wait.
        error: raised at the deadline.

    Raises:
        WaitTimeoutError: or ``error``.
    """
    ends = time.monotonic() + deadline_s
    while not (await found if inspect.isawaitable(found := check()) else found):
        meanwhile()
        if time.monotonic() > ends:
            raise error(f"timed out after {deadline_s:g} s waiting for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(every_s)
