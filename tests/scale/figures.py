"""Computes the figures of a scale run from metrics before and after it.

Objectives are those of the Kubernetes project (community repository, sig-scalability/slos/api_call_latency.md): p99 of
mutating calls of each resource and verb at most 1 s; of reads at most 1 s for one object, 30 s for a namespace or the
whole cluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.scale.populate import Sizes

_CALL_SECONDS, _REQUESTS = "apiserver_request_sli_duration_seconds", "apiserver_request_total"
_PUTS, _ZONE_PAIRS = "etcd_mvcc_put_total", "netaware_zone_pairs"
_LOOP_SECONDS = "netaware_loop_busy_seconds"
_PLAN_SECONDS = "netaware_placement_plan_duration_seconds"
_GATE_SECONDS = "netaware_gate_wait_seconds"
FAMILIES = (_CALL_SECONDS, _REQUESTS, _PUTS, _ZONE_PAIRS, _LOOP_SECONDS, _PLAN_SECONDS, _GATE_SECONDS)
_LONG_RUNNING_VERBS = frozenset({"WATCH", "CONNECT", "WATCHLIST", "PROXY"})
_OBJECT_OBJECTIVE_S, _LIST_OBJECTIVE_S = 1.0, 30.0

Readings = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Samples by name and labels."""
Buckets = Sequence[tuple[Mapping[str, str], float]]
"""Labels and values of a histogram's buckets."""


class ControllerUsage(msgspec.Struct, frozen=True):
    """At a moment, the controller's resident memory, and its processor time with children."""

    at_s: float
    rss_bytes: int
    cpu_s: float


class ScaleReport(msgspec.Struct, frozen=True):
    """The figures of a run.

    Attributes:
        call_p99_s: p99 of the duration of calls to the API server, by verb, and by scope for reads.
        slow_calls: keys of ``call_p99_s`` that miss their objective.
        loop_p99_s: p99 of the processor time of one turn of the controller's event loop.
        lease_transitions: of the controller's Lease during the measurement.
        rss_mib: largest resident memory of the controller.
        cores: mean processor usage of the controller.
        plans_s: median and p99 of the duration of placement plans.
        gate_wait_s: median and p99 of the time from a pod's creation to its release.
        plan_bytes_per_minute: of probe plans to all agents together.
        zone_pairs: number of pairs at the end, by basis of their cost.
    """

    sizes: Sizes
    duration_s: float
    call_p99_s: dict[str, float]
    slow_calls: list[str]
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
    duration_s = usages[-1].at_s - usages[0].at_s
    increases = {key: value - before.readings.get(key, 0.0) for key, value in after.readings.items()}
    call_p99_s = {call: compute_quantile(buckets, 0.99) or 0.0 for call, buckets in _group_calls(increases).items()}
    return ScaleReport(
        sizes=sizes,
        duration_s=round(duration_s, 1),
        call_p99_s=call_p99_s,
        slow_calls=[call for call, p99_s in call_p99_s.items() if p99_s > _objective_s(call)],
        requests_per_s=round(sum(value for _, value in _iter_samples(increases, _REQUESTS)) / duration_s, 1),
        etcd_puts_per_s=round(sum(value for _, value in _iter_samples(increases, _PUTS)) / duration_s, 1),
        loop_p99_s=_compute_median_and_p99(increases, _LOOP_SECONDS)[1],
        lease_transitions=after.lease_transitions - before.lease_transitions,
        rss_mib=max(usage.rss_bytes for usage in usages) >> 20,
        cores=round((usages[-1].cpu_s - usages[0].cpu_s) / duration_s, 3),
        plans_s=_compute_median_and_p99(increases, _PLAN_SECONDS),
        gate_wait_s=_compute_median_and_p99(increases, _GATE_SECONDS),
        plan_bytes_per_minute=round(plan_bytes / duration_s * 60),
        zone_pairs={labels["basis"]: value for labels, value in _iter_samples(after.readings, _ZONE_PAIRS)},
        changes=dict(changes),
    )


def _objective_s(call: str) -> float:
    return _LIST_OBJECTIVE_S if "namespace" in call or "cluster" in call else _OBJECT_OBJECTIVE_S


def _compute_median_and_p99(increases: Readings, family: str) -> tuple[float | None, float | None]:
    buckets = list(_iter_samples(increases, f"{family}_bucket"))
    return compute_quantile(buckets, 0.5), compute_quantile(buckets, 0.99)


def _iter_samples(readings: Readings, name: str) -> Iterator[tuple[dict[str, str], float]]:
    return ((dict(labels), value) for (sample_name, labels), value in readings.items() if sample_name == name)


def _group_calls(increases: Readings) -> dict[str, Buckets]:
    """Buckets of calls by verb, and by scope for reads."""
    buckets_by_call: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for labels, value in _iter_samples(increases, f"{_CALL_SECONDS}_bucket"):
        if labels["verb"] not in _LONG_RUNNING_VERBS and value:
            is_read = labels["verb"] in {"GET", "LIST"}
            call = f"{labels['verb']} ({labels['scope']})" if is_read else labels["verb"]
            buckets_by_call[call].append((labels, value))
    return dict(sorted(buckets_by_call.items()))


def compute_quantile(buckets: Buckets, share: float) -> float | None:
    """Quantile of a histogram's cumulative buckets, interpolated as Prometheus does; None without observations."""
    count_by_upper_bound: dict[float, float] = defaultdict(float)
    for labels, value in buckets:
        count_by_upper_bound[float(labels["le"])] += value
    rank = share * max(count_by_upper_bound.values(), default=0.0)
    lower, count_below = 0.0, 0.0
    for upper, count in sorted(count_by_upper_bound.items()):
        if rank and count >= rank:
            share_of_bucket = (rank - count_below) / (count - count_below) if count > count_below else 1.0
            return round(lower if math.isinf(upper) else lower + (upper - lower) * share_of_bucket, 4)
        lower, count_below = upper, count
    return None
