"""Metrics of probes, by zone pair, and of the plan and the passphrase.

netperf reports percentiles, not single round trips, so the histogram counts the medians of samples: it shows how a pair's typical latency
changes over time, not the distribution of packets. The latency, loss and jitter of a pair are those of the newest sample of the plan's
usual test (`ProbeSettings.test`). Outcomes and quality flags are counted by test.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from agent.probing.plan_source import PlanSource
from agent.probing.scheduler import ProbeOutcome
from netperf.measurement import PERCENTILES, Test
from netperf.plans import Probe
from netperf.sample import Sample

BUCKETS_S = tuple(50e-6 * 2**i for i in range(16))
"""50 us to 1.6 s, doubling."""

_QUANTILE_BY_PERCENTILE = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}


class ZonePair(NamedTuple):
    """A directed pair of zones with their regions; the fields are the labels of its series."""

    origin_zone: str
    destination_zone: str
    origin_region: str
    destination_region: str


PAIR_LABELS = ZonePair._fields


class _ZonePairState:
    """The newest sample of a zone pair, counters by test and outcome or flag, and the histogram of medians."""

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.outcome_counts: Counter[tuple[Test, str]] = Counter()
        self.flag_counts: Counter[tuple[Test, str]] = Counter()
        self.bucket_counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0


class ProbeMetrics:
    """A collector over the newest sample of each zone pair.

    Metrics are collected in a thread, so state that outcomes change is copied before iterating.
    """

    def __init__(
        self, plan_source: PlanSource, is_passphrase_refused: Callable[[], bool], registry: CollectorRegistry
    ) -> None:
        self._plan_source, self._is_passphrase_refused = plan_source, is_passphrase_refused
        self._state_by_pair: dict[ZonePair, _ZonePairState] = {}
        registry.register(self)

    def apply_plan(self) -> None:
        """Keep only the series of zone pairs whose first node pair is probed by this node in the plan."""
        pairs = [_zone_pair_of(probe) for probe in self._plan_source.own_probes if probe.pair_index == 0]
        self._state_by_pair = {pair: self._state_by_pair.get(pair) or _ZonePairState() for pair in pairs}

    def add_outcome(self, outcome: ProbeOutcome) -> None:
        """Add an outcome, unless its zone pair has left the plan.

        Series describe a zone pair by its first node pair, so outcomes of additional node pairs are ignored.
        """
        state = self._state_by_pair.get(_zone_pair_of(outcome.probe))
        if state is None or outcome.probe.pair_index:
            return
        state.outcome_counts[outcome.test, outcome.result] += 1
        sample = outcome.sample
        if sample is None:
            return
        state.flag_counts.update((outcome.test, flag) for flag in outcome.run_flags or sample.quality_flags)
        plan = self._plan_source.plan
        if plan is None or outcome.test != plan.settings.test:
            return
        state.sample = sample
        if sample.cost_measurement.p50_us is not None:
            value_s = sample.cost_measurement.p50_us / 1e6
            state.bucket_counts[bisect_left(BUCKETS_S, value_s)] += 1
            state.sum_s += value_s

    def collect(self) -> Iterator[Metric]:
        """The metric families of this node."""
        yield from self._collect_latency()
        yield from self._collect_newest_samples()
        yield from self._collect_counters()
        yield from self._collect_plan_and_passphrase()

    def _newest_samples(self) -> list[tuple[ZonePair, Sample]]:
        return [(pair, state.sample) for pair, state in self._state_by_pair.items() if state.sample is not None]

    def _collect_latency(self) -> Iterator[Metric]:
        # A summary, because promtool accepts the label quantile nowhere else; count and sum would mean nothing.
        latency = SummaryMetricFamily(
            "netaware_probe_latency_seconds", "Round trips of the newest sample, by quantile.", labels=PAIR_LABELS
        )
        for pair, sample in self._newest_samples():
            for percentile in PERCENTILES:
                value_us = sample.percentile_us(percentile)
                if value_us is not None:
                    labels = {**pair._asdict(), "quantile": _QUANTILE_BY_PERCENTILE[percentile]}
                    latency.add_sample(latency.name, labels, value_us / 1e6)
        yield latency
        histogram = HistogramMetricFamily(
            "netaware_probe_rtt_seconds", "Medians of samples, not single round trips.", labels=PAIR_LABELS
        )
        for pair, state in self._state_by_pair.items():
            bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
            histogram.add_metric(pair, list(zip(bounds, accumulate(state.bucket_counts), strict=True)), state.sum_s)
        yield histogram

    def _collect_newest_samples(self) -> Iterator[Metric]:
        timestamp = _make_gauge("netaware_probe_sample_timestamp_seconds", "Unix time of the newest sample.")
        is_trusted = _make_gauge("netaware_probe_sample_trusted", "1 if the newest sample has no quality flag, else 0.")
        loss = _make_gauge(
            "netaware_probe_loss_ratio",
            "Retransmitted segments (of TCP_RR) or lost datagrams (of UDP_RR) over transactions, in the newest sample.",
        )
        datagram_loss = _make_gauge(
            "netaware_probe_datagram_loss_ratio",
            "Lost datagrams over sent datagrams, in the newest sample; absent if it has none.",
        )
        jitter = _make_gauge(
            "netaware_probe_jitter_seconds", "Mean difference of consecutive round trips of datagrams."
        )
        for pair, sample in self._newest_samples():
            run, datagrams = sample.measurement, sample.datagrams
            if datagrams is None and (run.prober == "datagrams" or run.test == "UDP_RR"):
                datagrams = run  # The loss of a TCP run counts retransmissions instead.
            for family, value in (
                (timestamp, sample.taken_at),
                (is_trusted, 0.0 if sample.quality_flags else 1.0),
                (loss, run.loss_ratio),
                (datagram_loss, datagrams.loss_ratio if datagrams else None),
                (jitter, datagrams.jitter_us / 1e6 if datagrams and datagrams.jitter_us is not None else None),
            ):
                if value is not None:
                    family.add_metric(pair, value)
        yield from (timestamp, is_trusted, loss, datagram_loss, jitter)

    def _collect_counters(self) -> Iterator[Metric]:
        runs = CounterMetricFamily(
            "netaware_probe_runs",
            "Finished probes, by outcome (docs/measurement.md).",
            labels=(*PAIR_LABELS, "test", "outcome"),
        )
        quality_flags = CounterMetricFamily(
            "netaware_probe_quality_flags",
            "Flagged probes, by quality flag (docs/measurement.md).",
            labels=(*PAIR_LABELS, "test", "flag"),
        )
        for pair, state in self._state_by_pair.items():
            for key, count in state.outcome_counts.copy().items():
                runs.add_metric((*pair, *key), count)
            for key, count in state.flag_counts.copy().items():
                quality_flags.add_metric((*pair, *key), count)
        yield from (runs, quality_flags)

    def _collect_plan_and_passphrase(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "netaware_probe_plan_probes",
            "Probes of this node in its plan, without those of additional node pairs.",
            sum(probe.pair_index == 0 for probe in self._plan_source.own_probes),
        )
        refusals = CounterMetricFamily(
            "netaware_probe_plan_refusals",
            "Refused probe plans, and refused probes in plans, by reason.",
            labels=("reason",),
        )
        for reason, count in self._plan_source.refusal_counts.copy().items():
            refusals.add_metric((reason,), count)
        yield refusals
        yield GaugeMetricFamily(
            "netaware_probe_secret_refused",
            "1 if the probing passphrase cannot be used, else 0.",
            float(self._is_passphrase_refused()),
        )


def _zone_pair_of(probe: Probe) -> ZonePair:
    origin, destination = probe.origin, probe.destination
    return ZonePair(origin.zone, destination.zone, origin.region, destination.region)


def _make_gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=PAIR_LABELS)
