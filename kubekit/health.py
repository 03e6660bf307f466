"""Health checks and metrics of a program: load of the event loop, staleness of stores.

Lease renewals, watches and health checks all wait for the event loop. So work on thousands of objects runs in a thread, or yields
(`kubekit.waiting.CooperativeYield`). A metric shows the longest steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kubekit.reflector import Reflector

TICK_S = 0.02
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class EventLoopMonitor:
    """Measures the CPU time of the event loop's thread between two checks, 20 ms apart.

    It is an upper bound for each step in between. Other load of the machine does not increase it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._busy = Histogram(
            "netaware_loop_busy_seconds",
            "CPU time of the event loop's thread between two checks, 20 ms apart.",
            registry=registry,
            buckets=_BUCKETS,
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        cpu_s = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.thread_time()
            self._busy.observe(now_s - cpu_s)
            cpu_s = now_s


def describe_stale(stores: Iterable[object]) -> str:
    """The stale reflectors among the stores, with reasons, as text; empty without any."""
    return ", ".join(text for store in stores if isinstance(store, Reflector) and (text := store.staleness))


class InformerMetrics(Collector):
    """Numbers of objects and of malformed objects of each store."""

    def __init__(self, stores: Callable[[], Mapping[str, Any]]) -> None:
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        """Collect both metrics of all stores."""
        objects = GaugeMetricFamily("netaware_informer_objects", "Objects in memory.", labels=["kind"])
        malformed = GaugeMetricFamily("netaware_malformed_objects", "Objects that cannot be decoded.", labels=["kind"])
        for name, store in self._stores().items():
            objects.add_metric([name], len(store))
            malformed.add_metric([name], len(store.malformed))
        yield from (objects, malformed)
