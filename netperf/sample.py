"""Types of samples and failures, quality flags, and the choice of the measurement that is used for the cost.

A *run* is one execution of netperf. A *sample* describes a pair of nodes: the measurement of a run, the measurement of the datagrams, and
quality flags. A flagged sample is used for the cost only if `netperf.policy.CostPolicy` accepts its flags. A missing value is None and
never 0, because 0 would be the best latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import msgspec

ProberName = Literal["netperf", "external", "datagrams"]
Test = Literal["TCP_RR", "UDP_RR", "TCP_STREAM"]
Percentile = Literal["p50", "p90", "p99"]
QualityFlag = Literal["throttled", "too-few-samples", "run-queue", "loss", "stalled", "starved-peer"]
CostSource = Literal["measurement", "datagrams"]
"""The field of a `Sample` that is used for the cost."""

PERCENTILES: tuple[Percentile, ...] = get_args(Percentile)
TESTS: tuple[Test, ...] = get_args(Test)
MAX_LATENCY_US = 6e8
"""Ten minutes. No round trip takes longer, so a larger number has another unit."""
QUANTILES: dict[Percentile, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
REQUIRED_TRANSACTIONS: dict[Percentile, int] = {"p50": 2, "p90": 10, "p99": 100}
"""Fewest transactions from which each percentile can be computed: 1 / (1 - quantile)."""
MIN_FAILED_RUNS = 3
"""Fewest failed runs in a row that are reported, because single runs fail now and then."""

LatencyUs = Annotated[float, msgspec.Meta(gt=0, le=MAX_LATENCY_US)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Label = Annotated[str, msgspec.Meta(max_length=63)]
FailureText = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
"""A `netperf.probers.failure.FailureReason`; later versions may have more."""
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class NodeLocation(msgspec.Struct, frozen=True, gc=False, order=True):
    """A node with its zone and region: the values of its labels, empty without the label."""

    node: NodeName
    zone: Label
    region: Label = ""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run of netperf, or of the datagrams of one round. Latencies are round trips in microseconds; None is missing.

    Attributes:
        prober: source of the measurement.
        test: the netperf test. Datagrams are UDP_RR; if they replace a run, they have its test.
        min_us, mean_us, max_us, p50_us, p90_us, p99_us: latencies; datagrams have no mean.
        transactions: round trips from which the percentiles are computed; None for a stream.
        duration_s: duration of the test itself, or of the datagrams' window.
        throughput_bps: bits per second of a stream.
        loss_ratio: lost datagrams over sent ones, or retransmitted segments over transactions; 0..1.
        retransmits: netperf only: TCP segments sent again by either end.
        jitter_us: datagrams only: mean absolute difference of consecutive round trips.
        throttled_us: netperf only: time for which the agent's cgroup was throttled during the run.
        run_queue_us: netperf only: time for which the process was runnable but waited for a CPU.
        responder_delay_us: datagrams only: p90 of the time that requests waited at the peer; latencies do not contain it.
        delayed_ratio: datagrams only: share of the answers that were not used because they waited too long at the peer; 0..1.
    """

    prober: ProberName
    test: Test
    min_us: LatencyUs | None = None
    mean_us: LatencyUs | None = None
    max_us: LatencyUs | None = None
    p50_us: LatencyUs | None = None
    p90_us: LatencyUs | None = None
    p99_us: LatencyUs | None = None
    transactions: Count | None = None
    duration_s: Amount | None = None
    throughput_bps: Amount | None = None
    loss_ratio: Ratio | None = None
    retransmits: Count | None = None
    jitter_us: Annotated[float, msgspec.Meta(ge=0, le=MAX_LATENCY_US)] | None = None
    throttled_us: Amount | None = None
    run_queue_us: Amount | None = None
    responder_delay_us: Annotated[float, msgspec.Meta(ge=0, le=MAX_LATENCY_US)] | None = None
    delayed_ratio: Ratio | None = None

    def percentile_us(self, percentile: Percentile) -> float | None:
        """The percentile in microseconds; None if it is missing, or if the run had fewer than `REQUIRED_TRANSACTIONS`.

        A lost datagram has no latency, but a call over TCP waits for the retransmission of a lost packet. So the percentile of datagrams
        contains the delay that their loss would cause.
        """
        if self.transactions is not None and self.transactions < REQUIRED_TRANSACTIONS[percentile]:
            return None
        value_us = {"p50": self.p50_us, "p90": self.p90_us, "p99": self.p99_us}[percentile]
        if value_us is None or self.prober != "datagrams":
            return value_us
        return min(
            MAX_LATENCY_US, value_us + retransmission_delay_us(QUANTILES[percentile], value_us, self.loss_ratio or 0.0)
        )


class Sample(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The measurements of one pair of nodes in one round, as they are written to the results.

    Attributes:
        origin, destination: the node that measured, and the other one.
        measurement: the measurement by netperf; by datagrams if netperf did not run or failed; or by another component.
        sequence: the writer's number of the run. ``sequence`` and ``taken_at`` identify a sample, so that readers can compute its age by
            their own clock (`netperf.cost_state.Sighting`).
        taken_at: the writer's wall clock at the end of the run, in seconds since 1970.
        quality_flags: reasons not to trust `cost_measurement`.
        datagrams: the measurement by datagrams since the previous run, if netperf ran as well.
        cost_source: the measurement that is used for the cost, see `choose_cost_source`.
        run_failure: reason of netperf's failure, if the datagrams replace its run.
        failed_runs: number of such runs in a row.
    """

    origin: NodeLocation
    destination: NodeLocation
    measurement: Measurement
    sequence: Count = 0
    taken_at: Amount = 0.0
    quality_flags: tuple[QualityFlag, ...] = ()
    datagrams: Measurement | None = None
    cost_source: CostSource = "measurement"
    run_failure: FailureText | None = None
    failed_runs: Count = 0

    @property
    def has_persistent_failure(self) -> bool:
        """Whether netperf failed at least `MIN_FAILED_RUNS` times in a row while datagrams passed."""
        return self.run_failure is not None and self.failed_runs >= MIN_FAILED_RUNS

    @property
    def cost_measurement(self) -> Measurement:
        """The measurement that is used for the cost."""
        return self.datagrams if self.cost_source == "datagrams" and self.datagrams is not None else self.measurement

    def percentile_us(self, percentile: Percentile) -> float | None:
        """The percentile that is used for the cost; None if it is missing.

        If the datagrams are too few for this percentile, it is that of netperf's run, unless the run has another flag than ``loss``.
        """
        value_us = self.cost_measurement.percentile_us(percentile)
        if value_us is not None or set(find_quality_flags(self.measurement, self.datagrams)) - {"loss"}:
            return value_us
        return self.measurement.percentile_us(percentile)

    @property
    def has_disagreement(self) -> bool:
        """Whether netperf and the datagrams measured different latencies, although neither is flagged."""
        quality_flags = find_quality_flags(self.measurement, self.datagrams)
        if self.datagrams is None or quality_flags or find_quality_flags(self.datagrams):
            return False
        is_usable = _has_enough_datagrams(self.datagrams)
        return is_usable and choose_cost_source(self.measurement, self.datagrams, quality_flags) == "measurement"

    @property
    def zones(self) -> tuple[str, str]:
        """Origin zone, destination zone."""
        return self.origin.zone, self.destination.zone


class Failure(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A pair of nodes that could not be measured, as it is written to the results.

    Attributes:
        origin, destination: the node that measured, and the other one.
        failure: its `netperf.probers.failure.FailureReason`.
        failures_in_a_row: number of failures since the last success.
        has_answered: False if the path may be broken, see `netperf.probers.failure.ProbeFailedError`.
        sequence: number of the run, as in `Sample`; the higher number is newer.
        taken_at: the writer's wall clock at the end of the run, in seconds since 1970.
    """

    origin: NodeLocation
    destination: NodeLocation
    failure: FailureText
    failures_in_a_row: Count = 1
    has_answered: bool = False
    sequence: Count = 0
    taken_at: Amount = 0.0


MIN_RTO_US = 200_000.0
"""Linux' TCP_RTO_MIN; a tail loss probe of a single packet waits as long."""
MAX_RETRANSMISSIONS = 10
"""Further retransmissions of one call are not modelled."""


def retransmission_delay_us(quantile: float, rtt_us: float, loss_ratio: float) -> float:
    """Delay that retransmissions add to a call over TCP (a request and its response), at a quantile of the calls, microseconds.

    Args:
        quantile: quantile, 0..1.
        rtt_us: round trip without loss.
        loss_ratio: share of round trips that are lost; both directions are assumed to lose the same share.
    """
    arrival_ratio = math.sqrt(1.0 - loss_ratio)
    losses, probability = 0, arrival_ratio * arrival_ratio
    cumulative = probability
    while cumulative < quantile and losses < MAX_RETRANSMISSIONS:
        # The number of losses before two packets have arrived has a negative binomial distribution.
        losses += 1
        probability *= (1.0 - arrival_ratio) * (losses + 1) / losses
        cumulative += probability
    return (MIN_RTO_US + rtt_us) * 2.0 ** (losses - 1) if losses else 0.0


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


MIN_DATAGRAMS = 20
"""Fewest answered datagrams that are used for the cost."""
AGREEMENT_RATIO, AGREEMENT_US = 0.15, 150.0
"""Medians of netperf and datagrams agree if they differ by at most the larger of these two, plus a step of netperf's histogram."""


def choose_cost_source(
    measurement: Measurement, datagrams: Measurement | None, quality_flags: Sequence[QualityFlag]
) -> CostSource:
    """Choose the measurement that is used for the cost: netperf's or the datagrams'.

    netperf is the reference, but its histogram has steps of up to a tenth of the value. So the datagrams are used if they agree with
    netperf within that precision, or if netperf's run is missing or has another flag than ``loss``. netperf is used if there are fewer
    than `MIN_DATAGRAMS`, if they differ, or if packets are lost, because its latencies contain the retransmissions.
    """
    if datagrams is None or datagrams.p50_us is None or not _has_enough_datagrams(datagrams):
        return "measurement"
    if measurement.prober != "netperf" or measurement.p50_us is None or set(quality_flags) - {"loss"}:
        return "datagrams"
    if "loss" in quality_flags or (datagrams.loss_ratio or 0.0) > MAX_LOSS_RATIO:
        return "measurement"
    slack_us = histogram_step_us(measurement.p50_us) + max(AGREEMENT_RATIO * measurement.p50_us, AGREEMENT_US)
    return "datagrams" if abs(datagrams.p50_us - measurement.p50_us) <= slack_us else "measurement"


def _has_enough_datagrams(datagrams: Measurement) -> bool:
    return (datagrams.transactions or 0) >= MIN_DATAGRAMS and datagrams.p50_us is not None


def histogram_step_us(value_us: float) -> float:
    """Width of the bucket of netperf 2.7's histogram: a tenth to a hundredth of the value (DLPAR histogram, src/hist.h)."""
    return max(1.0, 10.0 ** (math.floor(math.log10(value_us)) - 1)) if value_us > 0 else 1.0
