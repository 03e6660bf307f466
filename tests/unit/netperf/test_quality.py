"""Faults of a measurement get quality flags, which decide whether netperf's run or datagrams are used for the cost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from netperf.measurement import Measurement
from netperf.quality import QualityFlag, choose_cost_source, find_quality_flags, histogram_step_us

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
DATAGRAMS = replace(HEALTHY, prober="datagrams", test="UDP_RR", p50_us=540.0, transactions=100)
FROZEN = {"p99_us": 1450, "max_us": 400_000, "transactions": 700}
"""The peer froze for 400 ms, which no percentile shows."""


@pytest.mark.parametrize(
    ("fields", "quality_flags"),
    [
        pytest.param({}, (), id="healthy"),
        pytest.param({"throttled_us": 20_000}, ("throttled",), id="throttled for 2 %"),
        pytest.param({"transactions": 5, "run_queue_us": 0}, ("too-few-samples",), id="5 transactions"),
        pytest.param({"run_queue_us": 300_000}, ("run-queue",), id="300 of 500 us waiting for a CPU"),
        pytest.param(
            {"run_queue_us": 300_000, "mean_us": 20_000, "p50_us": 20_000, "p90_us": 21_000, "p99_us": 22_000},
            (),
            id="300 of 20,000 us waiting for a CPU",
        ),
        pytest.param({"loss_ratio": 0.05}, ("loss",), id="5 % loss"),
        pytest.param(FROZEN, ("stalled",), id="frozen peer"),
        pytest.param({**FROZEN, "retransmits": 2, "loss_ratio": 0.002}, (), id="retransmissions, not a frozen peer"),
        pytest.param(
            {"p50_us": 329_000, "p90_us": 330_000, "p99_us": 331_000, "max_us": 331_000, "transactions": 12},
            (),
            id="slow path, not a frozen peer",
        ),
        pytest.param(
            dict.fromkeys(("throttled_us", "run_queue_us", "loss_ratio", "transactions")), (), id="unknown values"
        ),
    ],
)
def test_each_fault_of_a_measurement_has_a_quality_flag(
    fields: dict[str, object], quality_flags: tuple[QualityFlag, ...]
) -> None:
    assert find_quality_flags(replace(HEALTHY, **fields)) == quality_flags


@pytest.mark.parametrize(
    ("responder_delay_us", "quality_flags"), [(30_000.0, ("starved-peer",)), (300.0, ())], ids=["30 ms", "300 us"]
)
def test_a_high_responder_delay_of_datagrams_flags_netperfs_run(
    responder_delay_us: float, quality_flags: tuple[QualityFlag, ...]
) -> None:
    datagrams = replace(HEALTHY, prober="datagrams", responder_delay_us=responder_delay_us)
    assert find_quality_flags(HEALTHY, datagrams) == quality_flags


@pytest.mark.parametrize(
    ("value_us", "step_us"), [(5, 1), (99, 1), (150, 10), (999, 10), (1300, 100), (10_500, 1000), (329_000, 10_000)]
)
def test_netperfs_histogram_has_steps_of_a_tenth_to_a_hundredth(value_us: float, step_us: float) -> None:
    assert histogram_step_us(value_us) == step_us


@pytest.mark.parametrize(
    ("datagrams", "quality_flags", "source"),
    [
        pytest.param(DATAGRAMS, (), "datagrams", id="both agree"),
        pytest.param(replace(DATAGRAMS, p50_us=5000.0), (), "measurement", id="both differ"),
        pytest.param(replace(DATAGRAMS, p50_us=5000.0), ("throttled",), "datagrams", id="netperf was throttled"),
        pytest.param(replace(DATAGRAMS, transactions=5), (), "measurement", id="too few datagrams"),
        pytest.param(None, ("throttled",), "measurement", id="no datagrams"),
        pytest.param(DATAGRAMS, ("loss",), "measurement", id="netperf waited for retransmissions"),
        pytest.param(replace(DATAGRAMS, loss_ratio=0.19), (), "measurement", id="datagrams were lost"),
    ],
)
def test_datagrams_are_used_if_they_agree_with_netperf_or_its_run_is_flagged(
    datagrams: Measurement | None, quality_flags: tuple[QualityFlag, ...], source: str
) -> None:
    assert choose_cost_source(HEALTHY, datagrams, quality_flags) == source
