"""What loss does to a call is part of its latency, whichever instrument prices (simulated)."""

from __future__ import annotations

import random

import pytest

from netperf.sample import Measurement, choose_instrument, find_quality_flags

RTT_US = 5_500.0


def tcp_calls_us(loss: float, calls: int = 4000) -> list[float]:
    """Requests and responses of one packet each, either of which may be lost: a tail loss probe after 200 ms, then doubling waits."""
    rng = random.Random(3)

    def delay_us() -> float:
        waited_us, wait_us, first = 0.0, 200_000.0 + RTT_US, True
        while rng.random() < loss:
            waited_us, wait_us, first = waited_us + wait_us, wait_us if first else 2 * wait_us, False
        return waited_us

    return sorted(RTT_US + delay_us() + delay_us() for _ in range(calls))


def datagrams(loss: float, transactions: int = 118) -> Measurement:
    return Measurement(
        prober="datagrams",
        test="UDP_RR",
        p50_us=RTT_US,
        p90_us=RTT_US,
        p99_us=RTT_US,
        transactions=transactions,
        loss_ratio=1 - (1 - loss) ** 2,
    )


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.02, 0.1, 0.3])
def test_datagrams_price_a_lossy_path_as_a_call_over_tcp_feels_it(loss: float) -> None:
    """Between, at 5 % each way, a tenth of the calls wait: the percentile lies at the edge."""
    calls_us = tcp_calls_us(loss)
    read_us = datagrams(loss).percentile_us("p90")
    assert read_us == pytest.approx(calls_us[int(0.9 * len(calls_us))], rel=0.15)


def test_netperf_prices_a_lossy_path_though_its_median_agrees_with_the_datagrams() -> None:
    for lossy in (True, False):
        run = Measurement(
            prober="netperf",
            test="TCP_RR",
            p50_us=RTT_US,
            p90_us=215_000.0 if lossy else 5_600.0,
            transactions=25 if lossy else 180,
            duration_s=1.0,
            loss_ratio=0.16 if lossy else 0.0,
        )
        paced = datagrams(0.1 if lossy else 0.0)
        assert choose_instrument(run, paced, find_quality_flags(run, paced)) == (
            "measurement" if lossy else "datagrams"
        )
    throttled = Measurement(
        prober="netperf", test="TCP_RR", p50_us=RTT_US, p90_us=9e5, transactions=25, duration_s=1.0, throttled_us=5e5
    )
    assert choose_instrument(throttled, datagrams(0.1), find_quality_flags(throttled)) == "datagrams"
