"""Those who look at the page: each has a short queue of what changed; who does not keep up is let go and comes back by itself.

A browser reconnects an event stream on its own and says which version it has seen last, so dropping a slow one costs it a
second and never us memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUEUE_LENGTH = 16


class Viewer:
    """One open stream; messages are ready to be sent."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_LENGTH)

    async def next(self) -> bytes | None:
        """The next message, or None when the stream is to end."""
        return await self._messages.get()

    def start_with(self, message: bytes) -> None:
        """Forget what was queued so far, which is older, and queue this."""
        self._clear()
        self._messages.put_nowait(message)

    def offer(self, message: bytes) -> bool:
        """Queue a message; False when the viewer is too slow, and then its stream ends."""
        try:
            self._messages.put_nowait(message)
        except asyncio.QueueFull:
            self._clear()
            self._messages.put_nowait(None)
            return False
        return True

    def _clear(self) -> None:
        while not self._messages.empty():
            self._messages.get_nowait()


class Audience:
    """All viewers.

    Attributes:
        arrived: set while there is somebody.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._viewers = limit, set[Viewer]()
        self.arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._viewers)

    @property
    def full(self) -> bool:
        """No room for another."""
        return len(self._viewers) >= self._limit

    @contextmanager
    def seat(self) -> Iterator[Viewer]:
        """Take part for the time of the block."""
        viewer = Viewer()
        self._viewers.add(viewer)
        self.arrived.set()
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self.arrived.clear()

    def tell(self, message: bytes) -> int:
        """Offer a message to everybody; returns how many were too slow."""
        slow = [viewer for viewer in self._viewers if not viewer.offer(message)]
        self._viewers.difference_update(slow)
        return len(slow)
