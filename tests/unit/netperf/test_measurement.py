"""Measurements have valid values and percentiles, and faults, such as throttling and loss, give them quality flags."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from netperf.measurement import Measurement
from netperf.probers.contention import elapsed_us, find_cpu_stat, read_run_queue_us, read_throttled_us
from netperf.quality import QualityFlag, choose_cost_source, find_quality_flags, histogram_step_us

RTT_US = 5_500.0
TAIL_LOSS_PROBE_US = 200_000.0 + RTT_US
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


@pytest.mark.parametrize("loss_per_direction", [0.0, 0.01, 0.02, 0.1, 0.3])
def test_datagrams_of_a_lossy_path_have_the_latency_of_a_call_over_tcp(loss_per_direction: float) -> None:
    """Not with 5 % each way: a tenth of the calls wait then, so the p90 lies at the edge."""
    calls_us = simulate_tcp_calls_us(loss_per_direction)
    loss_ratio = 1 - (1 - loss_per_direction) ** 2
    datagrams = replace(DATAGRAMS, p50_us=RTT_US, p90_us=RTT_US, p99_us=RTT_US, transactions=118, loss_ratio=loss_ratio)
    assert datagrams.percentile_us("p90") == pytest.approx(calls_us[int(0.9 * len(calls_us))], rel=0.15)


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
        pytest.param({**FROZEN, "duration_s": 10.0}, (), id="400 ms of a long run"),
        pytest.param({"max_us": 40_000, "duration_s": 0.1}, (), id="a transaction of 40 ms"),
        pytest.param({"test": "TCP_STREAM", "transactions": 5}, (), id="a stream has no transactions"),
        pytest.param({"run_queue_us": 90_000, "mean_us": 100}, (), id="90 of 100 us waiting for a CPU"),
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
def test_each_fault_has_a_quality_flag(fields: dict[str, object], quality_flags: tuple[QualityFlag, ...]) -> None:
    assert find_quality_flags(replace(HEALTHY, **fields)) == quality_flags


@pytest.mark.parametrize(("responder_delay_us", "quality_flags"), [(30_000.0, ("starved-peer",)), (300.0, ())])
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
        pytest.param(replace(DATAGRAMS, p50_us=655.0), (), "datagrams", id="both agree within a step"),
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


@pytest.mark.parametrize(
    ("cpu_stat", "throttled_us"),
    [
        ("usage_usec 5\nnr_periods 1\nnr_throttled 1\nthrottled_usec 123456\n", 123456.0),
        ("nr_periods 1\nnr_throttled 1\nthrottled_time 5000000\n", 5000.0),
        ("usage_usec 5\n", None),
        ("throttled_usec many\n", None),
        ("", None),
    ],
)
def test_throttling_is_read_in_both_cgroup_versions(tmp_path: Path, cpu_stat: str, throttled_us: float | None) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text(cpu_stat)
    assert read_throttled_us(stat) == throttled_us


def test_an_absent_file_is_an_unknown_reading_which_gives_no_difference(tmp_path: Path) -> None:
    assert read_throttled_us(tmp_path / "absent") is None
    assert read_throttled_us(None) is None
    assert read_run_queue_us("no-such-process") is None
    assert elapsed_us(5.0, None) is None
    assert elapsed_us(None, 5.0) is None
    assert elapsed_us(3.0, 5.0) == 0.0, "after a move to another cgroup"


@pytest.mark.parametrize(
    ("membership", "stat_path"),
    [
        ("0::/kubepods/pod1\n", "kubepods/pod1/cpu.stat"),
        ("0::/\n", "cpu.stat"),
        ("0::/../outside-of-our-namespace\n", "cpu.stat"),
        ("3:cpu,cpuacct:/pod1\n0::/\n", "cpu,cpuacct/pod1/cpu.stat"),
        ("3:cpu:/pod1\n", "cpu/pod1/cpu.stat"),
        ("3:cpu:/seen/from/the/host\n", "cpu/cpu.stat"),
    ],
)
def test_a_cgroups_cpu_stat_is_found_in_and_outside_containers(tmp_path: Path, membership: str, stat_path: str) -> None:
    stat = tmp_path / "cgroup" / stat_path
    stat.parent.mkdir(parents=True)
    stat.write_text("throttled_usec 1\n")
    assert find_cpu_stat(membership, tmp_path / "cgroup") == stat
    assert find_cpu_stat("4:memory:/x\n", tmp_path / "cgroup") is None
