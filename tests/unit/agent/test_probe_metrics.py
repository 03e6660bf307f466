"""Metrics of a zone pair show its newest run, and disappear with the pair."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.probing.metrics import ProbeMetrics
from agent.probing.plan_source import PlanSource
from tests.unit.agent.probing import PEERS, make_measurement, make_outcome, make_plan

PAIR = {"origin_zone": "z1", "destination_zone": "z2", "origin_region": "r1", "destination_region": "r1"}
LATENCY = "netaware_probe_latency_seconds"
PERCENTILES = {"p50_us": 400.0, "p90_us": 600.0, "p99_us": 900.0}


def make_metrics(plan_source: PlanSource | None = None) -> tuple[ProbeMetrics, CollectorRegistry]:
    registry, plan_source = CollectorRegistry(), plan_source or PlanSource("n1")
    metrics = ProbeMetrics(plan_source, lambda: False, registry)
    plan_source.on_change = metrics.apply_plan
    plan_source.set_plan(make_plan(*PEERS[:2], epoch=1))
    return metrics, registry


def test_latency_comes_from_the_newest_run_and_failures_are_counted() -> None:
    metrics, registry = make_metrics()
    metrics.add_outcome(make_outcome(PEERS[0], make_measurement(**PERCENTILES, transactions=20)))
    assert registry.get_sample_value(LATENCY, {**PAIR, "quantile": "0.99"}) is None, "too few for a p99"
    metrics.add_outcome(make_outcome(PEERS[0], make_measurement(**PERCENTILES)))
    metrics.add_outcome(make_outcome(PEERS[0], make_measurement(p50_us=9e5), pair_index=1))  # an additional node pair
    for _ in range(2):
        metrics.add_outcome(make_outcome(PEERS[0], result="timeout"))
    for quantile, value in (("0.5", 400e-6), ("0.9", 600e-6), ("0.99", 900e-6)):
        assert registry.get_sample_value(LATENCY, {**PAIR, "quantile": quantile}) == value
    assert registry.get_sample_value("netaware_probe_sample_timestamp_seconds", PAIR) == 1000
    assert registry.get_sample_value("netaware_probe_sample_trusted", PAIR) == 1
    for result in ("timeout", "ok"):
        labels = {**PAIR, "test": "TCP_RR", "outcome": result}
        assert registry.get_sample_value("netaware_probe_runs_total", labels) == 2


def test_the_histogram_doubles_from_50_microseconds_and_counts_medians() -> None:
    metrics, registry = make_metrics()
    for p50_us in (50.0, 51.0, 3_000_000.0):
        metrics.add_outcome(make_outcome(PEERS[0], make_measurement(**PERCENTILES | {"p50_us": p50_us})))
    bucket = "netaware_probe_rtt_seconds_bucket"
    assert registry.get_sample_value(bucket, {**PAIR, "le": "5e-05"}) == 1
    assert registry.get_sample_value(bucket, {**PAIR, "le": "0.0001"}) == 2
    assert registry.get_sample_value(bucket, {**PAIR, "le": "1.6384"}) == 2
    assert registry.get_sample_value(bucket, {**PAIR, "le": "+Inf"}) == 3


def test_series_disappear_with_their_pair_also_after_late_outcomes() -> None:
    plan_source = PlanSource("n1")
    metrics, registry = make_metrics(plan_source)
    for peer in PEERS[:2]:
        metrics.add_outcome(make_outcome(peer, make_measurement(**PERCENTILES)))
    plan_source.set_plan(make_plan(PEERS[1]))
    metrics.add_outcome(make_outcome(PEERS[0], make_measurement(**PERCENTILES)))
    exposition = generate_latest(registry).decode()
    assert 'destination_zone="z2"' not in exposition
    assert 'destination_zone="z3"' in exposition
    plan_source.set_plan(None)
    assert "destination_zone" not in generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("throttled_us", "p99_s"), [(0.0, 900e-6), (500_000.0, None)], ids=["p99 of netperf", "no p99 of a throttled run"]
)
def test_datagrams_give_jitter_loss_and_the_percentiles_that_they_support(
    throttled_us: float, p99_s: float | None
) -> None:
    metrics, registry = make_metrics()
    outcome = make_outcome(PEERS[0], make_measurement(**PERCENTILES, throttled_us=throttled_us))
    values = {"p50_us": 410.0, "p90_us": 500.0, "p99_us": 510.0, "loss_ratio": 0.02, "jitter_us": 30.0}
    datagrams = make_measurement(prober="datagrams", test="UDP_RR", transactions=85, **values)
    assert outcome.sample is not None
    sample = msgspec.structs.replace(outcome.sample, datagrams=datagrams, cost_source="datagrams")
    metrics.add_outcome(msgspec.structs.replace(outcome, sample=sample))
    assert registry.get_sample_value("netaware_probe_jitter_seconds", PAIR) == 30e-6
    assert registry.get_sample_value("netaware_probe_datagram_loss_ratio", PAIR) == 0.02
    assert registry.get_sample_value(LATENCY, {**PAIR, "quantile": "0.9"}) == 500e-6
    assert registry.get_sample_value(LATENCY, {**PAIR, "quantile": "0.99"}) == p99_s


def test_retransmissions_are_not_counted_as_lost_datagrams() -> None:
    metrics, registry = make_metrics()
    for measurement, datagram_loss_ratio in (
        (make_measurement(**PERCENTILES, loss_ratio=0.1, retransmits=10), None),
        (make_measurement(**PERCENTILES, loss_ratio=0.2, prober="datagrams"), 0.2),
        (make_measurement(**PERCENTILES, loss_ratio=0.3, test="UDP_RR"), 0.3),
    ):
        metrics.add_outcome(make_outcome(PEERS[0], measurement))
        assert registry.get_sample_value("netaware_probe_loss_ratio", PAIR) == measurement.loss_ratio
        assert registry.get_sample_value("netaware_probe_datagram_loss_ratio", PAIR) == datagram_loss_ratio
