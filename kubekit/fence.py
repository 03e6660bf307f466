"""The leader's permission to write, which expires by a local clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kubekit.errors import NotLeaderError
from kubekit.waiting import wait_until_set


def boot_clock() -> float:
    """Seconds of a monotonic clock that includes suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class WriteFence:
    """A permission to write that expires, for `kubekit.client.Client.with_fence`. None is given before the first `extend`.

    Args:
        clock: a monotonic clock, seconds.
        reserve_s: length of the last part of the permission, in which no write may start.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock, *, reserve_s: float = 0.0) -> None:
        self._clock, self._reserve_s, self._permitted_until = clock, reserve_s, float("-inf")
        self._writes_in_flight, self._no_writes_in_flight = 0, asyncio.Event()
        self._no_writes_in_flight.set()
        self._last_unanswered_at = float("-inf")

    @property
    def is_held(self) -> bool:
        """Whether the permission lasts, also in its last ``reserve_s``, in which `check_permission` refuses writes."""
        return self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """Seconds until the permission ends; 0 or less after its end."""
        return self._permitted_until - self._clock()

    def extend(self, until: float) -> None:
        """Permit writes until this time of the clock."""
        self._permitted_until = until

    def revoke(self) -> None:
        """Withdraw the permission."""
        self._permitted_until = float("-inf")

    def check_permission(self) -> float:
        """Check that a write may start now; returns the seconds until the permission ends.

        Raises:
            NotLeaderError: not more than ``reserve_s`` remain.
        """
        remaining_s = self.remaining_s
        if remaining_s <= self._reserve_s:
            raise NotLeaderError("this replica is not the leader and must not write")
        return remaining_s

    @contextmanager
    def track_write(self) -> Iterator[None]:
        """Context that counts a write. If its block raises, the write has no response, and may still take effect."""
        self._writes_in_flight += 1
        self._no_writes_in_flight.clear()
        try:
            yield
        except BaseException:
            # The write may have been sent at any time until now.
            self._last_unanswered_at = self._clock()
            raise
        finally:
            self._writes_in_flight -= 1
            if not self._writes_in_flight:
                self._no_writes_in_flight.set()

    async def wait_for_writes(self, timeout_s: float, within_s: float) -> bool:
        """Wait for writes in flight, at most ``timeout_s``; returns whether all writes of the last ``within_s`` had a response."""
        has_ended = await wait_until_set(self._no_writes_in_flight, timeout_s)
        return has_ended and self._last_unanswered_at < self._clock() - within_s
