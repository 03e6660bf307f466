"""Throttling and run queue times that may distort a probe are read from cgroups and /proc, or are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from netperf.probers.contention import elapsed_us, find_cpu_stat, read_run_queue_us, read_throttled_us


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
def test_throttling_is_read_from_either_cgroup_version_or_unknown(
    tmp_path: Path, cpu_stat: str, throttled_us: float | None
) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text(cpu_stat)
    assert read_throttled_us(stat) == throttled_us


def test_an_absent_file_is_an_unknown_reading(tmp_path: Path) -> None:
    assert read_throttled_us(tmp_path / "absent") is None
    assert read_throttled_us(None) is None
    assert read_run_queue_us("no-such-process") is None


def test_an_unknown_reading_gives_no_difference() -> None:
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
def test_the_cgroups_cpu_stat_is_found_inside_and_outside_containers(
    tmp_path: Path, membership: str, stat_path: str
) -> None:
    stat = tmp_path / "cgroup" / stat_path
    stat.parent.mkdir(parents=True)
    stat.write_text("throttled_usec 1\n")
    assert find_cpu_stat(membership, tmp_path / "cgroup") == stat
    assert find_cpu_stat("4:memory:/x\n", tmp_path / "cgroup") is None
