"""Computes the figures of a scale run from metrics before and after it.

Objectives are those of the Kubernetes project (community repository, sig-scalability/slos/api_call_latency.md): p99 of mutating calls
of each resource and verb at most 1 s; of reads at most 1 s for one object, 30 s for a namespace or the whole cluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.scale.populate import Sizes

_CALLS, _REQUESTS = "apiserver_request_sli_duration_seconds", "apiserver_request_total"
_PUTS, _PAIRS = "etcd_mvcc_put_total", "netaware_zone_pairs"
_LOOP, _PLANS, _GATES = (
    "netaware_loop_busy_seconds",
    "netaware_placement_plan_duration_seconds",
    "netaware_gate_wait_seconds",
)
FAMILIES = (_CALLS, _REQUESTS, _PUTS, _PAIRS, _LOOP, _PLANS, _GATES)
_LONG_RUNNING = frozenset({"WATCH", "CONNECT", "WATCHLIST", "PROXY"})

Readings = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Samples by name and labels."""


class ControllerUsage(msgspec.Struct, frozen=True):
    """The controller's resident bytes, and its processor time with children in seconds."""

    at_s: float
    rss: int
    cpu_s: float


class ScaleReport(msgspec.Struct, frozen=True):
    """The figures of a run.

    Attributes:
        sizes: of the cluster.
        seconds: duration of the measurement.
        calls: p99 in seconds of calls to the API server, by verb, and by scope for reads.
        too_slow: keys of ``calls`` that miss their objective.
        requests_per_s: to the API server.
        etcd_puts_per_s: writes of etcd.
        loop_p99_s: p99 of the processor time of one turn of the controller's event loop.
        lease_transitions: of the controller's Lease during the measurement.
        rss_mib: largest resident memory of the controller.
        cores: mean processor usage of the controller.
        plans_s: median and p99 of the duration of placement plans.
        gate_wait_s: median and p99 of the time from a pod's creation to its release.
        plan_bytes_per_minute: of probe plans to all agents together.
        zone_pairs: number of pairs at the end, by basis of their cost.
        changes: number of changes by kind.
    """

    sizes: Sizes
    seconds: float
    calls: dict[str, float]
    too_slow: list[str]
    requests_per_s: float
    etcd_puts_per_s: float
    loop_p99_s: float | None
    lease_transitions: int
    rss_mib: int
    cores: float
    plans_s: tuple[float | None, float | None]
    gate_wait_s: tuple[float | None, float | None]
    plan_bytes_per_minute: float
    zone_pairs: dict[str, float]
    changes: dict[str, int]


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """Metrics of all programs and the number of transitions of the Lease."""

    readings: Readings
    lease_transitions: int


def read_metrics(texts: Iterable[str]) -> Readings:
    """Samples of `FAMILIES`; an API server has a hundred thousand others."""
    readings: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for text in texts:
        lines = "\n".join(line for line in text.splitlines() if line.startswith(FAMILIES))
        for family in text_string_to_metric_families(f"{lines}\n"):
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                readings[key] = readings.get(key, 0.0) + sample.value
    return readings


def compute_report(
    sizes: Sizes,
    before: MetricsSnapshot,
    after: MetricsSnapshot,
    *,
    usages: Sequence[ControllerUsage],
    plan_bytes: int,
    changes: Mapping[str, int],
) -> ScaleReport:
    """Compute the figures of the time between two snapshots."""
    first, last = usages[0], usages[-1]
    seconds = last.at_s - first.at_s
    increases = {key: value - before.readings.get(key, 0.0) for key, value in after.readings.items()}
    calls = {name: quantile(buckets, 0.99) or 0.0 for name, buckets in _group_calls(increases).items()}

    def median_and_p99(family: str) -> tuple[float | None, float | None]:
        buckets = [(labels, value) for labels, value in _samples_of(increases, f"{family}_bucket")]
        return quantile(buckets, 0.5), quantile(buckets, 0.99)

    return ScaleReport(
        sizes=sizes,
        seconds=round(seconds, 1),
        calls=calls,
        too_slow=[
            name for name, p99 in calls.items() if p99 > (30.0 if "namespace" in name or "cluster" in name else 1)
        ],
        requests_per_s=round(sum(value for _, value in _samples_of(increases, _REQUESTS)) / seconds, 1),
        etcd_puts_per_s=round(sum(value for _, value in _samples_of(increases, _PUTS)) / seconds, 1),
        loop_p99_s=median_and_p99(_LOOP)[1],
        lease_transitions=after.lease_transitions - before.lease_transitions,
        rss_mib=max(usage.rss for usage in usages) >> 20,
        cores=round((last.cpu_s - first.cpu_s) / seconds, 3),
        plans_s=median_and_p99(_PLANS),
        gate_wait_s=median_and_p99(_GATES),
        plan_bytes_per_minute=round(plan_bytes / seconds * 60),
        zone_pairs={labels["basis"]: value for labels, value in _samples_of(after.readings, _PAIRS)},
        changes=dict(changes),
    )


Buckets = Sequence[tuple[Mapping[str, str], float]]


def _samples_of(readings: Readings, name: str) -> Iterator[tuple[dict[str, str], float]]:
    return ((dict(labels), value) for (sample_name, labels), value in readings.items() if sample_name == name)


def _group_calls(increases: Readings) -> dict[str, Buckets]:
    """Buckets of calls by verb, and by scope for reads."""
    buckets_by_call: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for labels, value in _samples_of(increases, f"{_CALLS}_bucket"):
        if labels["verb"] not in _LONG_RUNNING and value:
            is_read = labels["verb"] in {"GET", "LIST"}
            call = f"{labels['verb']} ({labels['scope']})" if is_read else labels["verb"]
            buckets_by_call[call].append((labels, value))
    return dict(sorted(buckets_by_call.items()))


def quantile(buckets: Buckets, share: float) -> float | None:
    """Quantile of a histogram's cumulative buckets, interpolated as Prometheus does; None without observations."""
    sums: dict[float, float] = defaultdict(float)
    for labels, value in buckets:
        sums[float(labels["le"])] += value
    rank, lower, below = share * max(sums.values(), default=0.0), 0.0, 0.0
    for upper, count in sorted(sums.items()):
        if rank and count >= rank:
            within = (rank - below) / (count - below) if count > below else 1.0
            return round(lower if math.isinf(upper) else lower + (upper - lower) * within, 4)
        lower, below = upper, count
    return None
