"""Measurements have valid values, and percentiles that follow from enough transactions and from loss."""

from __future__ import annotations

import random

import msgspec
import pytest

from netperf.measurement import Measurement

RTT_US = 5_500.0
TAIL_LOSS_PROBE_US = 200_000.0 + RTT_US


def draw_retransmission_delay_us(rng: random.Random, loss: float) -> float:
    """How long TCP takes to get a packet through: a tail loss probe after 200 ms, then waits that double."""
    total_us, wait_us = 0.0, TAIL_LOSS_PROBE_US
    is_first = True
    while rng.random() < loss:
        total_us += wait_us
        wait_us, is_first = wait_us if is_first else 2 * wait_us, False
    return total_us


def simulate_tcp_calls_us(loss: float, count: int = 4000) -> list[float]:
    """Sorted durations of calls whose request and response are one packet each, either of which may be lost."""
    rng = random.Random(3)
    return sorted(
        RTT_US + draw_retransmission_delay_us(rng, loss) + draw_retransmission_delay_us(rng, loss) for _ in range(count)
    )


@pytest.mark.parametrize("field", ["min_us", "mean_us", "max_us", "p50_us", "p90_us", "p99_us"])
@pytest.mark.parametrize("value", ["0", "-1", "1e12", "1e999", "NaN", '"12ms"', "true"])
def test_a_latency_of_zero_or_beyond_the_limits_cannot_be_decoded(field: str, value: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(f'{{"prober":"netperf","test":"TCP_RR","{field}":{value}}}', type=Measurement)


def test_a_percentile_needs_enough_transactions() -> None:
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=500, p90_us=600, p99_us=700, transactions=20)
    assert measurement.percentile_us("p50") == 500
    assert measurement.percentile_us("p90") == 600
    assert measurement.percentile_us("p99") is None


@pytest.mark.parametrize("loss_per_direction", [0.0, 0.01, 0.02, 0.1, 0.3])
def test_datagrams_of_a_lossy_path_have_the_latency_of_a_call_over_tcp(loss_per_direction: float) -> None:
    """Not with 5 % each way: a tenth of the calls wait then, so the p90 lies at the edge."""
    calls_us = simulate_tcp_calls_us(loss_per_direction)
    datagrams = Measurement(
        prober="datagrams",
        test="UDP_RR",
        p50_us=RTT_US,
        p90_us=RTT_US,
        p99_us=RTT_US,
        transactions=118,
        loss_ratio=1 - (1 - loss_per_direction) ** 2,
    )
    assert datagrams.percentile_us("p90") == pytest.approx(calls_us[int(0.9 * len(calls_us))], rel=0.15)
