"""What is told of a program's mirrors: which are old and why, for /readyz, and figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kubekit.reflector import Reflector


def stale(mirrors: Iterable[object]) -> str:
    """Which mirrors are old, and why; empty when none is. Views of a mirror are no mirrors."""
    return ", ".join(text for m in mirrors if isinstance(m, Reflector) and (text := m.staleness))


class MirrorMetrics(Collector):
    """How many objects are mirrored, how many could not be read, and when the server was last heard of."""

    def __init__(self, mirrors: Callable[[], Mapping[str, Any]]) -> None:
        self._mirrors = mirrors

    def describe(self) -> Iterator[Metric]:
        """No names in advance: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Three families over all mirrors."""
        objects = GaugeMetricFamily("netaware_mirrored_objects", "Objects in memory.", labels=["kind"])
        malformed = GaugeMetricFamily("netaware_malformed_objects", "Objects that cannot be read.", labels=["kind"])
        age = GaugeMetricFamily(
            "netaware_mirror_age_seconds",
            "Time since the API server was last heard of on this mirror's watch; quiet ones speak once a minute.",
            labels=["kind"],
        )
        for name, mirror in self._mirrors().items():
            objects.add_metric([name], len(mirror))
            malformed.add_metric([name], len(mirror.malformed))
            if isinstance(mirror, Reflector):
                age.add_metric([name], mirror.age_s)
        yield from (objects, malformed, age)
