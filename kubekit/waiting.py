"""Back-off between retries, cooperative yielding, and waiting with a timeout or for the end of another coroutine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

TIME_SLICE_S = 0.005
"""Time after which long work yields to the event loop."""


def backoff_delay_s(failures: int, base_s: float, cap_s: float) -> float:
    """Delay after a number of failures in a row: ``base_s`` after the first, twice as long after each further one, at most ``cap_s``."""
    # The exponent is bounded, because 2.0 ** 1024 overflows.
    return min(cap_s, base_s * 2.0 ** min(max(failures - 1, 0), 64))


@dataclass(slots=True)
class Backoff:
    """Delays that double from ``base_s`` to ``cap_s``, each shortened by up to half at random.

    Jitter spreads the retries of many agents after a restart of the API server.

    Attributes:
        base_s: the first delay, without jitter.
        cap_s: the longest delay.
        rng: source of the jitter.
        failures: number of failures in a row.
    """

    base_s: float = 0.5
    cap_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_delay_s(self) -> float:
        """Count a failure; returns the seconds to wait."""
        self.failures += 1
        return backoff_delay_s(self.failures, self.base_s, self.cap_s) * self.rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Forget the failures, after a success."""
        self.failures = 0


class CooperativeYield:
    """Yields to the event loop when a time slice is over. Long loops await an instance: ``await maybe_yield()``."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._slice_began_at = clock, clock()

    async def __call__(self) -> None:
        """Yield to the event loop if the time slice is over."""
        if self._clock() - self._slice_began_at >= TIME_SLICE_S:
            await asyncio.sleep(0)
            self._slice_began_at = self._clock()


async def wait_until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event with a timeout; returns whether it was set."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def run_until(end: Coroutine[Any, Any, None], *work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until ``end`` returns, then cancel it.

    Raises:
        ExceptionGroup: ``work`` or ``end`` failed; the rest was cancelled.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
        await end
        for task in tasks:
            task.cancel()
