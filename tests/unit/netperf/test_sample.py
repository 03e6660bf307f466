"""Measurements have valid values, faults get quality flags, and the age of a sample is by the reader's clock."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netperf.cost_state import update_sighting
from netperf.measurement import Measurement
from netperf.quality import choose_cost_source, find_quality_flags, histogram_step_us
from netperf.sample import NodeLocation, Sample

HEALTHY = Measurement(
    prober="netperf",
    test="TCP_RR",
    mean_us=500,
    p50_us=500,
    p90_us=600,
    p99_us=700,
    transactions=1000,
    duration_s=1.0,
    throttled_us=0,
    run_queue_us=1000,
    loss_ratio=0.0,
)


def make_measurement(**fields: object) -> Measurement:
    """A healthy measurement with other values in these fields."""
    return msgspec.structs.replace(HEALTHY, **fields)


def make_sample(sequence: int, taken_at: float) -> Sample:
    return Sample(
        origin=NodeLocation("a", "z1"),
        destination=NodeLocation("b", "z2"),
        measurement=HEALTHY,
        sequence=sequence,
        taken_at=taken_at,
    )


@pytest.mark.parametrize("field", ["min_us", "mean_us", "max_us", "p50_us", "p90_us", "p99_us"])
@pytest.mark.parametrize("value", ["0", "-1", "1e12", "1e999", "NaN", '"12ms"', "true"])
def test_a_latency_of_zero_or_beyond_the_limits_cannot_be_decoded(field: str, value: str) -> None:
    text = f'{{"prober":"netperf","test":"TCP_RR","{field}":{value}}}'
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=Measurement)


def test_a_percentile_needs_enough_transactions() -> None:
    few = make_measurement(transactions=20)
    assert few.percentile_us("p50") == 500
    assert few.percentile_us("p90") == 600
    assert few.percentile_us("p99") is None


SLOW = make_measurement(min_us=329_000, p50_us=329_000, p90_us=330_000, p99_us=331_000, max_us=331_000, transactions=12)
FROZEN = {"p99_us": 1450, "max_us": 400_000, "transactions": 700}


@pytest.mark.parametrize(
    ("measurement", "quality_flags"),
    [
        (HEALTHY, ()),
        (make_measurement(throttled_us=20_000), ("throttled",)),
        (make_measurement(transactions=5, run_queue_us=0), ("too-few-samples",)),
        (make_measurement(run_queue_us=300_000), ("run-queue",)),
        # The same delay is a small part of a longer latency.
        (make_measurement(run_queue_us=300_000, mean_us=20_000, p50_us=20_000, p90_us=21_000, p99_us=22_000), ()),
        (make_measurement(loss_ratio=0.05), ("loss",)),
        # The peer froze, which no percentile shows. With retransmissions or on a slow path it did not freeze.
        (make_measurement(**FROZEN), ("stalled",)),
        (make_measurement(**FROZEN, retransmits=2, loss_ratio=0.002), ()),
        (SLOW, ()),
        # Unknown values cause no flag.
        (make_measurement(throttled_us=None, run_queue_us=None, loss_ratio=None, transactions=None), ()),
    ],
)
def test_each_fault_of_a_measurement_has_a_quality_flag(
    measurement: Measurement, quality_flags: tuple[str, ...]
) -> None:
    assert find_quality_flags(measurement) == quality_flags


def test_a_high_responder_delay_flags_netperfs_run() -> None:
    starved = make_measurement(prober="datagrams", responder_delay_us=30_000.0)
    assert find_quality_flags(HEALTHY, starved) == ("starved-peer",)
    assert find_quality_flags(HEALTHY, make_measurement(prober="datagrams", responder_delay_us=300.0)) == ()


@pytest.mark.parametrize(
    ("value_us", "step_us"), [(5, 1), (99, 1), (150, 10), (999, 10), (1300, 100), (10_500, 1000), (329_000, 10_000)]
)
def test_netperfs_histogram_has_steps_of_a_tenth_to_a_hundredth(value_us: float, step_us: float) -> None:
    assert histogram_step_us(value_us) == step_us


def test_datagrams_are_used_if_they_agree_with_netperf_or_its_run_is_flagged() -> None:
    fine = make_measurement(prober="datagrams", test="UDP_RR", p50_us=540.0, transactions=100)
    assert choose_cost_source(HEALTHY, fine, ()) == "datagrams"
    assert choose_cost_source(HEALTHY, msgspec.structs.replace(fine, p50_us=5000.0), ()) == "measurement"
    assert choose_cost_source(HEALTHY, msgspec.structs.replace(fine, p50_us=5000.0), ("throttled",)) == "datagrams"
    assert choose_cost_source(HEALTHY, msgspec.structs.replace(fine, transactions=5), ()) == "measurement"
    assert choose_cost_source(HEALTHY, None, ("throttled",)) == "measurement"
    assert choose_cost_source(HEALTHY, fine, ("loss",)) == "measurement", "it waits for retransmissions"
    assert choose_cost_source(HEALTHY, msgspec.structs.replace(fine, loss_ratio=0.19), ()) == "measurement"


@given(st.floats(min_value=-1e6, max_value=1e6))
def test_age_is_by_the_readers_clock(skew_s: float) -> None:
    first = update_sighting(None, make_sample(1, 1e9 + skew_s), now_s=100.0, wall_s=1e9)
    second = update_sighting(first, make_sample(2, 1e9 + skew_s + 60), now_s=160.0, wall_s=1e9 + 60)
    assert second.first_seen_at_s == 160.0
    assert update_sighting(second, make_sample(2, 1e9 + skew_s + 60), now_s=900.0, wall_s=1e9 + 800) == second


@pytest.mark.parametrize(("ahead_s", "seen_at_s"), [(-500, 500.0), (500, 1000.0)])
def test_a_restart_of_the_reader_makes_no_sample_younger(ahead_s: float, seen_at_s: float) -> None:
    """By the writer's clock, unless it is ahead."""
    assert update_sighting(None, make_sample(7, 1e9 + ahead_s), now_s=1000.0, wall_s=1e9).first_seen_at_s == seen_at_s


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


def make_datagrams(loss_per_direction: float, transactions: int = 118) -> Measurement:
    return Measurement(
        prober="datagrams",
        test="UDP_RR",
        p50_us=RTT_US,
        p90_us=RTT_US,
        p99_us=RTT_US,
        transactions=transactions,
        loss_ratio=1 - (1 - loss_per_direction) ** 2,
    )


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.02, 0.1, 0.3])
def test_datagrams_of_a_lossy_path_have_the_latency_of_a_call_over_tcp(loss: float) -> None:
    """Between, at 5 % each way, a tenth of the calls wait: the percentile lies at the edge."""
    calls_us = tcp_calls_us(loss)
    p90_us = make_datagrams(loss).percentile_us("p90")
    assert p90_us == pytest.approx(calls_us[int(0.9 * len(calls_us))], rel=0.15)
