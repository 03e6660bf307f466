"""Long work yields to the event loop, and the time for which callbacks block the loop is measured."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from prometheus_client import CollectorRegistry

from kubekit.health import EventLoopMonitor
from kubekit.waiting import CooperativeYield
from lab.polling import poll_until
from tests.support.tasks import running_tasks


# A call that yields reads the clock again, so with 3 ms a reading every second of 100 calls yields.
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

    seconds = itertools.count(0, reading_takes_s)
    maybe_yield = CooperativeYield(clock=lambda: next(seconds))
    async with running_tasks(count_iterations()):
        for _ in range(100):
            await maybe_yield()
        assert iterations == yield_count


async def test_a_callback_that_blocks_the_event_loop_is_measured() -> None:
    registry = CollectorRegistry()
    async with running_tasks(EventLoopMonitor(registry).run()):
        await asyncio.sleep(0)
        blocked_until_s = time.thread_time() + 0.2
        while time.thread_time() < blocked_until_s:
            pass
        count = await poll_until(lambda: registry.get_sample_value("netaware_loop_busy_seconds_count"))
    count_up_to_100_ms = registry.get_sample_value("netaware_loop_busy_seconds_bucket", {"le": "0.1"})
    assert count_up_to_100_ms != count
