"""What scheduling counts: decisions, refusals, time per verb, gated pods, plans. Bounded labels only."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_LADDER_S = tuple(50e-6 * 2**i for i in range(16))


class ExtenderMetrics:
    """Of the extender process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "netaware_extender_duration_seconds",
            "Time to answer one request once it has arrived.",
            ["verb"],
            buckets=_LADDER_S,
            registry=registry,
        )
        self.decisions = Counter(
            "netaware_extender_decisions",
            "Answers by verb and result: neutral, passed, refused-some, ruled, planned, error.",
            ["verb", "result"],
            registry=registry,
        )
        self.refused = Counter("netaware_extender_nodes_refused", "Nodes refused by the filter.", registry=registry)
        self.errors = Counter(
            "netaware_extender_errors", "Requests that could not be answered.", ["verb", "status"], registry=registry
        )
        self.fallbacks = Counter(
            "netaware_extender_fallbacks",
            "Decisions by the plain rule although plans are on.",
            ["cause"],
            registry=registry,
        )

    def count_filter(self, refused: int) -> None:
        """Count one filter answer."""
        self.decisions.labels("filter", "refused-some" if refused else "passed").inc()
        if refused:
            self.refused.inc(refused)
