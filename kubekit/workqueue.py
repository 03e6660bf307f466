"""A queue of keys to reconcile: the queue contains each key at most once, and at most one worker reconciles a key.

As in controller-runtime, a reconcile function takes a key, returns a requeue time or raises an error, and is idempotent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from kubekit import logs
from kubekit.errors import KubekitError
from kubekit.waiting import Backoff

log = logs.get("kubekit.workqueue")

Reconcile = Callable[[str], Awaitable[float | None]]


class WorkQueue:
    """A work queue, as in client-go. Its length is bounded by the number of different keys.

    Args:
        sort_key: returns the sort key of a key. Keys with equal sort keys, and by default all keys, leave in the order of addition.
    """

    def __init__(self, sort_key: Callable[[str], Any] | None = None) -> None:
        self._sort_key = sort_key
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._processing: set[str] = set()
        self._dirty: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, key: str) -> None:
        """Queue a key now; if a worker is reconciling it, when that worker is done."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._processing:
            self._dirty.add(key)
        else:
            self._queue.setdefault(key)
            self._wakeup.set()

    def add_after(self, key: str, delay_s: float) -> None:
        """Queue a key after a delay, unless it is queued or due earlier already."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if key in self._queue or (timer is not None and timer.when() <= loop.time() + delay_s):
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self._add_due, key)

    def _add_due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def get(self) -> str:
        """Wait for a key and take it; no other worker gets the key before `done`."""
        while not self._queue:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = next(iter(self._queue)) if self._sort_key is None else min(self._queue, key=self._sort_key)
        del self._queue[key]
        self._processing.add(key)
        return key

    def done(self, key: str) -> None:
        """Release a key after reconciling it, and queue it again if it was added meanwhile."""
        self._processing.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    async def work(self, reconcile: Reconcile, *, name: str, base_s: float = 0.2, cap_s: float = 60.0) -> None:
        """Reconcile keys until cancelled.

        ``reconcile`` returns None, or seconds after which the key is queued again. After a KubekitError it is queued again after a
        back-off from ``base_s`` to ``cap_s``, at least Retry-After; `add` during the back-off queues it at once. Other errors are raised.
        """
        while True:
            key = await self.get()
            try:
                requeue_after_s = await reconcile(key)
            except KubekitError as error:
                backoff = self._backoffs.setdefault(key, Backoff(base_s, cap_s))
                wait_s = max(error.retry_after_s or 0.0, backoff.next_delay_s())
                topic, message = f"{name}/{key}", "reconcile failed, retrying"
                log.log_change(topic, error.kind, message, worker=name, key=key, error=error)
                self.add_after(key, wait_s)
            else:
                self._backoffs.pop(key, None)
                log.log_change(f"{name}/{key}", "", "reconcile succeeded again", worker=name, key=key)
                if requeue_after_s is not None:
                    self.add_after(key, requeue_after_s)
            finally:
                self.done(key)
