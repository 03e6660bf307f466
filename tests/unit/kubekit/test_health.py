"""Long work yields to the event loop, and the time for which callbacks block the loop is measured."""

from __future__ import annotations

import asyncio
import itertools
import time

from prometheus_client import CollectorRegistry

from kubekit.health import EventLoopMonitor
from kubekit.waiting import CooperativeYield


class IterationCounter:
    """Counts the iterations of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


async def test_long_work_yields_after_each_time_slice_and_short_work_never() -> None:
    counter = IterationCounter()
    task = asyncio.create_task(counter.run())
    await asyncio.sleep(0)
    seconds = itertools.count(0, 0.003)
    maybe_yield = CooperativeYield(clock=lambda: next(seconds))
    count_before = counter.count
    for _ in range(100):
        await maybe_yield()
    # The clock advances 3 ms per reading, so every second call yields, and reads the clock again.
    assert counter.count - count_before == 50
    quick_yield = CooperativeYield(clock=lambda: 1.0)
    count_before = counter.count
    for _ in range(100):
        await quick_yield()
    assert counter.count == count_before
    task.cancel()


async def test_a_callback_that_blocks_the_event_loop_is_measured() -> None:
    registry = CollectorRegistry()
    monitor = asyncio.create_task(EventLoopMonitor(registry).run())
    await asyncio.sleep(0)
    blocked_until = time.thread_time() + 0.2
    while time.thread_time() < blocked_until:
        pass
    while not (count := registry.get_sample_value("netaware_loop_busy_seconds_count")):
        await asyncio.sleep(0.01)
    assert registry.get_sample_value("netaware_loop_busy_seconds_bucket", {"le": "0.1"}) != count
    monitor.cancel()
