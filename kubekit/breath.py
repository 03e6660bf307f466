"""How work on thousands of objects leaves the event loop to others: it takes a breath now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BREATH_S = 0.005


class Breath:
    """``await breath()`` in a long piece of work: lets the rest of the program run when enough time was taken.

    Args:
        every_s: so long a stretch may be.
        clock: seconds.
    """

    def __init__(self, every_s: float = BREATH_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._every_s, self._clock = every_s, clock
        self._since = clock()

    async def __call__(self) -> None:
        """Give way, if it is time to."""
        if self._clock() - self._since >= self._every_s:
            await asyncio.sleep(0)
            self._since = self._clock()
