"""The measurement of a pair of nodes by one prober: latencies, loss and conditions of the run.

A *run* is one execution of netperf. A missing value is None and never 0, because 0 would be the best latency.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import msgspec

ProberName = Literal["netperf", "external", "datagrams"]
Test = Literal["TCP_RR", "UDP_RR", "TCP_STREAM"]
Percentile = Literal["p50", "p90", "p99"]

PERCENTILES: tuple[Percentile, ...] = get_args(Percentile)
TESTS: tuple[Test, ...] = get_args(Test)
MAX_LATENCY_US = 6e8
"""Ten minutes. No round trip takes longer, so a larger number has another unit."""
QUANTILES: dict[Percentile, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
REQUIRED_TRANSACTIONS: dict[Percentile, int] = {"p50": 2, "p90": 10, "p99": 100}
"""Fewest transactions from which each percentile can be computed: 1 / (1 - quantile)."""
MIN_RTO_US = 200_000.0
"""Linux' TCP_RTO_MIN; TCP's tail loss probe of a single packet waits as long."""
MAX_RETRANSMISSIONS = 10
"""Further retransmissions of one call are not modelled."""

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
LatencyUs = Annotated[float, msgspec.Meta(gt=0, le=MAX_LATENCY_US)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run of netperf, or of the datagrams of one round. Latencies are round trips in microseconds; None is missing.

    Attributes:
        prober: source of the measurement.
        test: the netperf test. Datagrams are UDP_RR; if they replace a run, they have its test.
        min_us, mean_us, max_us, p50_us, p90_us, p99_us: latencies; datagrams have no mean.
        transactions: round trips from which the percentiles are computed; None for a stream.
        duration_s: duration of the test itself, or of the datagrams' window.
        throughput_bps: bits per second of a stream.
        loss_ratio: lost datagrams over sent ones, or retransmitted segments over transactions.
        retransmits: netperf only: TCP segments sent again by either end.
        jitter_us: datagrams only: mean absolute difference of consecutive round trips.
        throttled_us: netperf only: time for which the agent's cgroup was throttled during the run.
        run_queue_us: netperf only: time for which the process was runnable but waited for a CPU.
        responder_delay_us: datagrams only: p90 of the time that requests waited at the peer; latencies do not contain it.
        delayed_ratio: datagrams only: share of the answers that were not used because they waited too long at the peer.
    """

    prober: ProberName
    test: Test
    min_us: LatencyUs | None = None
    mean_us: LatencyUs | None = None
    max_us: LatencyUs | None = None
    p50_us: LatencyUs | None = None
    p90_us: LatencyUs | None = None
    p99_us: LatencyUs | None = None
    transactions: NonNegativeInt | None = None
    duration_s: NonNegative | None = None
    throughput_bps: NonNegative | None = None
    loss_ratio: Ratio | None = None
    retransmits: NonNegativeInt | None = None
    jitter_us: Annotated[float, msgspec.Meta(ge=0, le=MAX_LATENCY_US)] | None = None
    throttled_us: NonNegative | None = None
    run_queue_us: NonNegative | None = None
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


def retransmission_delay_us(quantile: float, rtt_us: float, loss_ratio: float) -> float:
    """Delay that retransmissions add to a call over TCP (a request and its response), at a quantile of the calls, microseconds.

    The first retransmission is the tail loss probe, after which the timeout is not doubled. So a packet that is lost once, twice, three
    or four times waits for 1, 2, 4 or 8 timeouts in all.

    Args:
        quantile: between 0 and 1.
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
