"""Health checks and metrics of a program: load of the event loop, age of stores.

A lease, a watch and a health check all wait for the loop. So work on thousands of objects runs in a thread, or yields
(`kubekit.waiting.CooperativeYield`), and metrics of the controller's programs show whether that holds.
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
    """Measures the event loop that `run` runs in, fifty times a second.

    CPU time of the loop's thread between two checks, which no step in between can have exceeded; a busy machine does not raise it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._busy = Histogram(
            "netaware_loop_busy_seconds",
            "CPU time of the event loop's thread between two checks, 20 ms apart.",
            registry=registry,
            buckets=_BUCKETS,
        )

    async def run(self) -> None:
        """Look until cancelled."""
        cpu_s = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.thread_time()
            self._busy.observe(now_s - cpu_s)
            cpu_s = now_s


def stale(stores: Iterable[object]) -> str:
    """Stores that are stale, with the reason. Filtered stores do not count."""
    return ", ".join(text for m in stores if isinstance(m, Reflector) and (text := m.staleness))


class InformerMetrics(Collector):
    """Metrics of stores: objects, undecodable objects."""

    def __init__(self, stores: Callable[[], Mapping[str, Any]]) -> None:
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        """Both families over all stores."""
        objects = GaugeMetricFamily("netaware_informer_objects", "Objects in memory.", labels=["kind"])
        malformed = GaugeMetricFamily("netaware_malformed_objects", "Objects that cannot be decoded.", labels=["kind"])
        for name, store in self._stores().items():
            objects.add_metric([name], len(store))
            malformed.add_metric([name], len(store.malformed))
        yield from (objects, malformed)
