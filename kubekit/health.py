"""Metrics of a program's event loop and stores, and the health check of stores.

Lease renewals, watches and health checks wait while a callback blocks the event loop. So work on thousands of objects runs in a thread, or
yields (`kubekit.waiting.CooperativeYield`). `EventLoopMonitor` shows work that does neither.
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

CHECK_INTERVAL_S = 0.02
_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class EventLoopMonitor:
    """Measures the CPU time of the event loop's thread between two checks, `CHECK_INTERVAL_S` apart.

    Each callback between the checks took at most this CPU time. Load of other processes does not increase it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._busy_time = Histogram(
            "netaware_loop_busy_seconds",
            "CPU time of the event loop's thread between two checks, 20 ms apart.",
            registry=registry,
            buckets=_BUCKETS_S,
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        cpu_before_s = time.thread_time()
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            cpu_after_s = time.thread_time()
            self._busy_time.observe(cpu_after_s - cpu_before_s)
            cpu_before_s = cpu_after_s


def describe_stale_stores(stores: Iterable[object]) -> str:
    """Text with the `Reflector.staleness` of each stale store; empty if none is. Stores that no watch fills are never stale."""
    return ", ".join(text for store in stores if isinstance(store, Reflector) and (text := store.staleness))


class InformerMetrics(Collector):
    """Exports the numbers of objects and of malformed objects of each store, by its name in the result of ``get_stores``."""

    def __init__(self, get_stores: Callable[[], Mapping[str, Any]]) -> None:
        self._get_stores = get_stores

    def collect(self) -> Iterator[Metric]:
        """Collect both metrics of all stores."""
        objects = GaugeMetricFamily("netaware_informer_objects", "Objects in memory.", labels=["kind"])
        malformed = GaugeMetricFamily("netaware_malformed_objects", "Objects that cannot be decoded.", labels=["kind"])
        for name, store in self._get_stores().items():
            objects.add_metric([name], len(store))
            malformed.add_metric([name], len(store.decode_error_by_key))
        yield from (objects, malformed)
