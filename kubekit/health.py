"""Health checks and metrics of a program: event loop delay, age of stores.

A lease, a watch and a health check all wait for the loop. So work on thousands of objects runs in a thread, or takes breaths
(`kubekit.waiting.CooperativeYield`), and metrics of the controller's programs show whether that holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kubekit.reflector import Reflector

TICK_S = 0.02
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def count_tasks(registry: CollectorRegistry) -> None:
    """Export the number of the loop's tasks, because leaked tasks show in memory only late.

    Raises:
        RuntimeError: no loop is running.
    """
    loop = asyncio.get_running_loop()
    tasks = Gauge("netaware_loop_tasks", "Running tasks of the event loop.", registry=registry)
    tasks.set_function(lambda: len(asyncio.all_tasks(loop)))


class EventLoopMonitor:
    """Measures the event loop that `run` runs in, fifty times a second.

    Two figures, since a busy machine is not our doing: by how much the loop was late, and how much CPU its own thread took
    between two looks, which no step in between can have exceeded.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._late = Histogram(
            "netaware_loop_delay_seconds",
            "Delay of the event loop at these checks.",
            registry=registry,
            buckets=_BUCKETS,
        )
        self._busy = Histogram(
            "netaware_loop_busy_seconds",
            "CPU time of the event loop's thread between two checks, 20 ms apart.",
            registry=registry,
            buckets=_BUCKETS,
        )

    async def run(self) -> None:
        """Look until cancelled."""
        due, cpu_s = time.monotonic() + TICK_S, time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now, cpu_now_s = time.monotonic(), time.thread_time()
            self._late.observe(max(0.0, now - due))
            self._busy.observe(cpu_now_s - cpu_s)
            due, cpu_s = now + TICK_S, cpu_now_s


def stale(stores: Iterable[object]) -> str:
    """Stores that are stale, with the reason. Filtered stores do not count."""
    return ", ".join(text for m in stores if isinstance(m, Reflector) and (text := m.staleness))


class InformerMetrics(Collector):
    """Metrics of stores: objects, undecodable objects, age."""

    def __init__(self, stores: Callable[[], Mapping[str, Any]]) -> None:
        self._stores = stores

    def describe(self) -> Iterator[Metric]:
        """No names in advance: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Three families over all stores."""
        objects = GaugeMetricFamily("netaware_informer_objects", "Objects in memory.", labels=["kind"])
        malformed = GaugeMetricFamily("netaware_malformed_objects", "Objects that cannot be decoded.", labels=["kind"])
        age = GaugeMetricFamily(
            "netaware_informer_age_seconds",
            "Time since the API server last sent something on this watch; at least once a minute.",
            labels=["kind"],
        )
        for name, store in self._stores().items():
            objects.add_metric([name], len(store))
            malformed.add_metric([name], len(store.malformed))
            if isinstance(store, Reflector):
                age.add_metric([name], store.age_s)
        yield from (objects, malformed, age)
