"""What a measurement is, and when it is not to be trusted.

A latency that was read while the prober was throttled, or from three transactions, is a number like any other; what
makes it harmless is that it carries the circumstances of its making. A missing value is None and never 0, since a 0
would be the best latency of all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import msgspec

from kubekit.errors import ConfigError

ProberName = Literal["netperf", "echo", "external"]
Test = Literal["TCP_RR", "UDP_RR", "TCP_STREAM"]
Percentile = Literal["p50", "p90", "p99"]
Doubt = Literal["throttled", "too-few-samples", "run-queue", "loss", "outlier"]

PERCENTILES: tuple[Percentile, ...] = get_args(Percentile)
TESTS: tuple[Test, ...] = get_args(Test)
LONGEST_US = 6e8
"""Ten minutes. No round trip takes longer, and a larger number is a unit mistaken for another."""

# The fewest transactions from which a percentile can be told: nearest rank, 1 / (1 - q).
SUPPORT: dict[Percentile, int] = {"p50": 2, "p90": 10, "p99": 100}
# Scales a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826

LatencyUs = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_US)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Label = Annotated[str, msgspec.Meta(max_length=63)]
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Place(msgspec.Struct, frozen=True, order=True):
    """A node and where its labels say it is; zone and region are label values, empty when the node has none."""

    node: NodeName
    zone: Label
    region: Label = ""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run of one prober read. Latencies are round trips in microseconds; None is missing, never 0.

    Attributes:
        transactions: completed round trips, None for a stream.
        duration_s: how long the test itself ran.
        transactions_per_s: request-response tests.
        throughput_bps: stream tests, bits per second.
        loss_ratio: lost datagrams, or retransmitted segments, over transactions; 0..1.
        retransmits: TCP segments sent again by either end.
        jitter_us: mean absolute difference of consecutive round trips.
        throttled_us: how long our own cgroup was kept from running during the run; None if unknown.
        run_queue_us: how long the prober was runnable but waited for a CPU; None if unknown.
        cpu_us: CPU time of the prober during the run; None if unknown.
        local_cpu_percent: utilisation of the whole node as netperf saw it.
    """

    prober: ProberName
    test: Test
    min_us: LatencyUs | None = None
    mean_us: LatencyUs | None = None
    max_us: LatencyUs | None = None
    stddev_us: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_US)] | None = None
    p50_us: LatencyUs | None = None
    p90_us: LatencyUs | None = None
    p99_us: LatencyUs | None = None
    transactions: Count | None = None
    duration_s: Amount | None = None
    transactions_per_s: Amount | None = None
    throughput_bps: Amount | None = None
    loss_ratio: Ratio | None = None
    retransmits: Count | None = None
    jitter_us: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_US)] | None = None
    throttled_us: Amount | None = None
    run_queue_us: Amount | None = None
    cpu_us: Amount | None = None
    local_cpu_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None

    def percentile_us(self, percentile: Percentile) -> float | None:
        """The percentile in microseconds, or None where it is missing or the run was too short to know it.

        A p99 of 20 transactions is their maximum under another name, so each percentile asks for `SUPPORT`
        transactions where their number is known.
        """
        if self.transactions is not None and self.transactions < SUPPORT[percentile]:
            return None
        return {"p50": self.p50_us, "p90": self.p90_us, "p99": self.p99_us}[percentile]


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measurement between two places, as it is written to the results.

    Attributes:
        sequence: counts the runs of this writer; with ``taken_at`` it tells a new sample from one seen before, so that
            a reader can age samples by its own clock (`Sighting`).
        taken_at: the writer's wall clock at the end of the run, in seconds since 1970.
        doubts: why not to trust it; empty when there is no reason to doubt.
    """

    origin: Place
    destination: Place
    measurement: Measurement
    sequence: Count = 0
    taken_at: Amount = 0.0
    doubts: tuple[Doubt, ...] = ()

    @property
    def trusted(self) -> bool:
        """No doubts at all."""
        return not self.doubts

    @property
    def zones(self) -> tuple[str, str]:
        """Origin zone, destination zone."""
        return self.origin.zone, self.destination.zone


class TrustLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to doubt a run. The defaults are meant for nodes that also do other work.

    Attributes:
        min_transactions: fewer make percentiles meaningless; 10 is what a p90 needs.
        max_throttled_ratio: time throttled over the run's duration. A single throttling of 50 ms in a 1 s run already
            shows in the p99, so the default is 1 %.
        max_run_queue_ratio: what waiting for a CPU added to each transaction, over the run's mean latency.
        run_queue_floor_us: waiting below this per transaction is never doubted, whatever the latency.
        max_loss_ratio: lost datagrams or retransmitted segments over transactions.
        outlier_sigmas: distance from the pair's median, in robust standard deviations.
        outlier_floor_ratio: a distance below this share of the median is never an outlier, since the MAD of a quiet
            link is nearly 0.
        outlier_floor_us: nor is a distance below this.
        min_history: runs before outliers are judged at all.
        history_runs: how many runs of a pair to remember.
    """

    min_transactions: int = 10
    max_throttled_ratio: float = 0.01
    max_run_queue_ratio: float = 0.25
    run_queue_floor_us: float = 100.0
    max_loss_ratio: float = 0.01
    outlier_sigmas: float = 5.0
    outlier_floor_ratio: float = 0.25
    outlier_floor_us: float = 200.0
    min_history: int = 5
    history_runs: int = 20

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        for field in ("min_transactions", "min_history", "history_runs"):
            if getattr(self, field) < 1:
                raise ConfigError(f"trust.{field}", f"{getattr(self, field)} is too small", "at least 1")
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"trust.{field}", f"{value} is not a number we can use", "0 or more")
        for field in ("max_throttled_ratio", "max_loss_ratio"):
            if getattr(self, field) > 1:
                raise ConfigError(f"trust.{field}", f"{getattr(self, field)} is over 1", "a ratio from 0 to 1")
        if self.min_history > self.history_runs:
            raise ConfigError("trust.min_history", "is more than trust.history_runs", "remember more runs")


class Sighting(msgspec.Struct, frozen=True):
    """When a reader first saw a sample, by the reader's own clock: age that no foreign clock can spoil."""

    sequence: int
    taken_at: float
    first_seen_s: float


def sight(previous: Sighting | None, sample: Sample, now_s: float, wall_s: float) -> Sighting:
    """The sighting of ``sample``: ``previous`` while the writer has not written anew.

    Only for a sample that is met for the first time, as after a restart of the reader, the writer's clock has a say:
    its claimed age counts if it is positive, so that values that were old before the restart do not become young by it.

    Args:
        previous: what this function returned for the same origin, destination and test, if anything.
        sample: as read now.
        now_s: the reader's clock (monotonic or not, as long as it is always the same).
        wall_s: the reader's wall clock, in seconds since 1970.
    """
    if previous is None:
        claimed_age_s = max(0.0, wall_s - sample.taken_at) if sample.taken_at else 0.0
        return Sighting(sample.sequence, sample.taken_at, now_s - claimed_age_s)
    if (previous.sequence, previous.taken_at) == (sample.sequence, sample.taken_at):
        return previous
    return Sighting(sample.sequence, sample.taken_at, now_s)


def history_value(measurement: Measurement) -> float | None:
    """The one number by which runs of a pair are compared: the median latency, or a stream's throughput in bit/s."""
    return measurement.throughput_bps if measurement.test == "TCP_STREAM" else measurement.p50_us


def remember(history: Sequence[float], measurement: Measurement, limits: TrustLimits) -> tuple[float, ...]:
    """The history with this run added, outlier or not, and cut to ``limits.history_runs``."""
    value = history_value(measurement)
    return tuple(history if value is None else (*history, value))[-limits.history_runs :]


def judge(measurement: Measurement, history: Sequence[float], limits: TrustLimits) -> tuple[Doubt, ...]:
    """Reasons to doubt a run, in a fixed order.

    Args:
        measurement: the run.
        history: `remember` of the pair's earlier runs, oldest first.
        limits: thresholds.
    """
    doubts: list[Doubt] = []
    duration_us = (measurement.duration_s or 0.0) * 1e6
    if measurement.throttled_us and measurement.throttled_us > limits.max_throttled_ratio * duration_us:
        doubts.append("throttled")
    if measurement.test != "TCP_STREAM":
        if measurement.transactions is not None and measurement.transactions < limits.min_transactions:
            doubts.append("too-few-samples")
        if _waited_for_cpu(measurement, limits):
            doubts.append("run-queue")
        if measurement.loss_ratio is not None and measurement.loss_ratio > limits.max_loss_ratio:
            doubts.append("loss")
    value = history_value(measurement)
    if value is not None and is_outlier(value, history, limits):
        doubts.append("outlier")
    return tuple(doubts)


def is_outlier(value: float, history: Sequence[float], limits: TrustLimits) -> bool:
    """Whether a run lies far from the pair's history: median and MAD (Hampel's identifier), with floors.

    A second run in a row that agrees with the one before is no outlier but a new level: a route that changed must reach
    the costs in two rounds, while one odd run must not.
    """
    window = history[-limits.history_runs :]
    if len(window) < limits.min_history:
        return False
    median = statistics.median(window)
    mad = statistics.median(abs(v - median) for v in window)
    floor = max(limits.outlier_floor_ratio * median, limits.outlier_floor_us)
    if abs(value - median) <= max(limits.outlier_sigmas * MAD_TO_SIGMA * mad, floor):
        return False
    return abs(value - window[-1]) > max(limits.outlier_floor_ratio * window[-1], limits.outlier_floor_us)


def _waited_for_cpu(measurement: Measurement, limits: TrustLimits) -> bool:
    """Waiting for a CPU adds to every transaction; doubted when that is a visible share of the latency itself."""
    latency_us = measurement.mean_us if measurement.mean_us is not None else measurement.p50_us
    if not measurement.run_queue_us or not measurement.transactions or latency_us is None:
        return False
    added_us = measurement.run_queue_us / measurement.transactions
    return added_us > max(limits.run_queue_floor_us, limits.max_run_queue_ratio * latency_us)
