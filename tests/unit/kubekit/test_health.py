"""Long work yields to the event loop, and the time for which callbacks block the loop is measured."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from prometheus_client import CollectorRegistry

from kubekit.health import EventLoopMonitor
from kubekit.waiting import CooperativeYield


# The clock advances by this time per reading. A call that yields reads the clock again, so with 3 ms every second call yields.
@pytest.mark.parametrize(("reading_takes_s", "yield_count"), [(0.003, 50), (0.0, 0)])
async def test_long_work_yields_after_each_time_slice_and_short_work_never(
    reading_takes_s: float, yield_count: int
) -> None:
    iterations = 0

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count_iterations())
    seconds = itertools.count(0, reading_takes_s)
    maybe_yield = CooperativeYield(clock=lambda: next(seconds))
    for _ in range(100):
        await maybe_yield()
    task.cancel()
    assert iterations == yield_count


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
