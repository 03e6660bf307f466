"""Long work yields to the event loop, and the time for which callbacks block the loop is measured."""

from __future__ import annotations

import asyncio
import itertools
import time

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.health import EventLoopMonitor
from kubekit.reflector import Reflector
from kubekit.waiting import TIME_SLICE_S, CooperativeYield
from kubekit.wire import CONFIGMAPS, ConfigMap


class IterationCounter:
    """Counts the iterations of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


def config_map(name: str, value: str = "a") -> ConfigMap:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "n", "resourceVersion": value}, "data": {"k": value}}, ConfigMap
    )


async def test_long_work_yields_after_each_time_slice_and_short_work_never() -> None:
    counter = IterationCounter()
    task = asyncio.create_task(counter.run())
    await asyncio.sleep(0)
    seconds = itertools.count(0, 0.003)
    maybe_yield = CooperativeYield(clock=lambda: next(seconds))
    before = counter.count
    for _ in range(100):
        await maybe_yield()
    # The clock advances 3 ms per reading, so every second call yields, and reads the clock again.
    assert counter.count - before == 50
    without_time = CooperativeYield(clock=lambda: 1.0)
    before = counter.count
    for _ in range(100):
        await without_time()
    assert counter.count == before
    task.cancel()


async def test_a_replacement_cancelled_between_objects_has_called_handlers_for_all_changes() -> None:
    store = Reflector(Client(ClusterConfig("http://127.0.0.1:1")), CONFIGMAPS, ConfigMap)
    reported: dict[str, ConfigMap] = {}

    def on_change(key: str, _: ConfigMap | None, new: ConfigMap | None) -> None:
        until = time.perf_counter() + 2 * TIME_SLICE_S
        while time.perf_counter() < until:
            pass
        if new is None:
            reported.pop(key)
        else:
            reported[key] = new

    store.subscribe(on_change)
    await store._replace({f"n/{i}": config_map(str(i)) for i in range(3)}, {})
    replacement = asyncio.create_task(store._replace({f"n/{i}": config_map(str(i), "b") for i in range(1, 5)}, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    replacement.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replacement
    assert dict(store.items) == reported
    assert "n/0" not in reported
    assert reported["n/2"].metadata.resource_version == "a", "the replacement was cancelled before this object"
    await store._replace({f"n/{i}": config_map(str(i), "b") for i in range(1, 5)}, {})
    assert dict(store.items) == reported
    assert {key: found.metadata.resource_version for key, found in reported.items()} == dict.fromkeys(
        ("n/1", "n/2", "n/3", "n/4"), "b"
    )


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
