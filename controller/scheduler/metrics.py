"""Metrics of scheduling."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_REQUEST_BUCKETS_S = tuple(50e-6 * 2**i for i in range(16))
_PLAN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
"""Up to two searches, each until the planner's deadline."""
_WAIT_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Up to the largest ``scheduler.gates.maxWaitS``."""


class ExtenderMetrics:
    """Metrics of the extender; the verb is filter, prioritize or preempt."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.request_duration = Histogram(
            "netaware_extender_duration_seconds",
            "Time to answer one request, after its body was read.",
            ["verb"],
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.decisions = Counter(
            "netaware_extender_decisions",
            "Answers, by result: planned; passed, refused-some, scored (by NetworkOverhead); neutral (all nodes score equally); error.",
            ["verb", "result"],
            registry=registry,
        )
        self.refused_nodes = Counter(
            "netaware_extender_nodes_refused", "Nodes refused by the filter.", registry=registry
        )
        self.errors = Counter(
            "netaware_extender_errors", "Requests that failed, by HTTP status.", ["verb", "status"], registry=registry
        )


class GateMetrics:
    """Metrics of gates and plans."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gated_pods = Gauge("netaware_gated_pods", "Pods that wait at our scheduling gate.", registry=registry)
        self.gate_wait = Histogram(
            "netaware_gate_wait_seconds",
            "Time from a pod's creation to the opening of its gate.",
            buckets=_WAIT_BUCKETS_S,
            registry=registry,
        )
        self.releases = Counter(
            "netaware_gate_releases",
            "Opened gates, by cause: turn, no-group, no-workload, waited (maxWaitS is over), unplaced (the plan has no node).",
            ["cause"],
            registry=registry,
        )
        self.plan_duration = Histogram(
            "netaware_placement_plan_duration_seconds",
            "Time to plan one group.",
            buckets=_PLAN_BUCKETS_S,
            registry=registry,
        )
        self.placed_pods = Counter(
            "netaware_placed_pods",
            "Placed pods of AppGroups, by result: as-planned, planned-zone, elsewhere, by-rule (without a plan).",
            ["result"],
            registry=registry,
        )
