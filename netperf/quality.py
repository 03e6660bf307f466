"""Quality flags of a measurement, and the choice of the measurement that is used for the cost.

A flagged sample is used for the cost only if `netperf.policy.CostPolicy` accepts its flags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from netperf.measurement import Measurement

QualityFlag = Literal["throttled", "too-few-samples", "run-queue", "loss", "stalled", "starved-peer"]
"""Reason not to trust a measurement. Users know ``too-few-samples``, which means too few transactions."""
CostSource = Literal["measurement", "datagrams"]
"""The field of a `netperf.sample.Sample` that is used for the cost."""

MIN_TRANSACTIONS = 10
"""Fewest transactions of a run without a flag; a p90 needs as many."""
MAX_THROTTLED_RATIO = 0.01
"""Throttled time over the duration of the run. One throttling of 50 ms in a run of 1 s raises the p99."""
MAX_RUN_QUEUE_RATIO, RUN_QUEUE_FLOOR_US = 0.25, 100.0
"""Time that each transaction waited for a CPU, over the run's mean latency. Less than the floor is not flagged."""
MAX_LOSS_RATIO = 0.01
"""Highest `Measurement.loss_ratio` without a flag."""
MAX_STALL_RATIO, STALL_FACTOR, STALL_FLOOR_US = 0.1, 20.0, 50_000.0
"""A stall is a transaction that takes longer than this share of the run, this multiple of the median, and this floor. Percentiles hide
stalls, because netperf sends nothing while it waits. Because of the multiple, the transactions of a slow path do not count as stalls."""
MAX_DELAYED_RATIO = 0.1
"""Delayed answers over all answers, see `Measurement.delayed_ratio`. Above this ratio netperf's peer was starved of CPU too."""
MAX_RESPONDER_DELAY_US, MAX_RESPONDER_DELAY_RATIO = 5000.0, 0.25
"""netperf's peer was starved too if the p90 of the responder delay exceeds this time, and this share of the median."""
MIN_DATAGRAMS = 20
"""Fewest answered datagrams that are used for the cost."""
AGREEMENT_RATIO, AGREEMENT_US = 0.15, 150.0
"""Medians of netperf and datagrams agree if they differ by at most the larger of these two, plus a step of netperf's histogram."""


def find_quality_flags(measurement: Measurement, datagrams: Measurement | None = None) -> tuple[QualityFlag, ...]:
    """Reasons not to trust a measurement, in a fixed order; a stream can only be ``throttled``.

    Args:
        measurement: the measurement to check.
        datagrams: datagrams of the same time; they show whether requests waited at the peer.
    """
    quality_flags: list[QualityFlag] = []
    duration_us = (measurement.duration_s or 0.0) * 1e6
    if measurement.throttled_us and measurement.throttled_us > MAX_THROTTLED_RATIO * duration_us:
        quality_flags.append("throttled")
    if measurement.test != "TCP_STREAM":
        if measurement.transactions is not None and measurement.transactions < MIN_TRANSACTIONS:
            quality_flags.append("too-few-samples")
        if _has_run_queue_delay(measurement):
            quality_flags.append("run-queue")
        if measurement.loss_ratio is not None and measurement.loss_ratio > MAX_LOSS_RATIO:
            quality_flags.append("loss")
        if _is_stalled(measurement):
            quality_flags.append("stalled")
        if _has_starved_peer(measurement, datagrams):
            quality_flags.append("starved-peer")
    return tuple(quality_flags)


def _is_stalled(measurement: Measurement) -> bool:
    """Whether one transaction took so much of the run that the percentiles hide a stall, see `MAX_STALL_RATIO`.

    False if segments were retransmitted, because loss is a property of the path and has its own flag.
    """
    max_us, p50_us = measurement.max_us, measurement.p50_us
    has_loss = measurement.retransmits or measurement.loss_ratio
    if max_us is None or p50_us is None or not measurement.duration_s or has_loss:
        return False
    return max_us > max(MAX_STALL_RATIO * measurement.duration_s * 1e6, STALL_FACTOR * p50_us, STALL_FLOOR_US)


def _has_starved_peer(measurement: Measurement, datagrams: Measurement | None) -> bool:
    if datagrams is None or datagrams.responder_delay_us is None or measurement.p50_us is None:
        return False
    limit_us = max(MAX_RESPONDER_DELAY_US, MAX_RESPONDER_DELAY_RATIO * measurement.p50_us)
    return (datagrams.delayed_ratio or 0.0) > MAX_DELAYED_RATIO or datagrams.responder_delay_us > limit_us


def _has_run_queue_delay(measurement: Measurement) -> bool:
    """Whether waiting for a CPU added a considerable share of the latency to each transaction."""
    latency_us = measurement.mean_us if measurement.mean_us is not None else measurement.p50_us
    if not measurement.run_queue_us or not measurement.transactions or latency_us is None:
        return False
    delay_us = measurement.run_queue_us / measurement.transactions
    return delay_us > max(RUN_QUEUE_FLOOR_US, MAX_RUN_QUEUE_RATIO * latency_us)


def choose_cost_source(
    measurement: Measurement, datagrams: Measurement | None, quality_flags: Sequence[QualityFlag]
) -> CostSource:
    """Choose the measurement that is used for the cost: netperf's or the datagrams'.

    netperf is the reference, but its histogram has steps of up to a tenth of the value. So the datagrams are used if they agree with
    netperf within that precision, or if netperf's run is missing or has another flag than ``loss``. netperf is used if there are fewer
    than `MIN_DATAGRAMS`, if they differ, or if packets are lost, because its latencies contain the retransmissions.
    """
    if datagrams is None or datagrams.p50_us is None or not has_enough_datagrams(datagrams):
        return "measurement"
    if measurement.prober != "netperf" or measurement.p50_us is None or set(quality_flags) - {"loss"}:
        return "datagrams"
    if "loss" in quality_flags or (datagrams.loss_ratio or 0.0) > MAX_LOSS_RATIO:
        return "measurement"
    slack_us = histogram_step_us(measurement.p50_us) + max(AGREEMENT_RATIO * measurement.p50_us, AGREEMENT_US)
    return "datagrams" if abs(datagrams.p50_us - measurement.p50_us) <= slack_us else "measurement"


def has_enough_datagrams(datagrams: Measurement) -> bool:
    """Whether the datagrams suffice for the cost."""
    return (datagrams.transactions or 0) >= MIN_DATAGRAMS and datagrams.p50_us is not None


def histogram_step_us(value_us: float) -> float:
    """Width of the bucket of netperf 2.7's histogram: a tenth to a hundredth of the value (DLPAR histogram, src/hist.h)."""
    return max(1.0, 10.0 ** (math.floor(math.log10(value_us)) - 1)) if value_us > 0 else 1.0
