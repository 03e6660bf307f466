"""Counters of a pod's eth0 are read from procfs."""

from __future__ import annotations

from pathlib import Path

from agent.bandwidth.counters import parse_device_counters, read_device_counters
from agent.bandwidth.meters import DeviceCounters

TABLE = b"""Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 5000      50    0    0    0     0          0         0    90000     900    0    0    0     0       0          0
"""


def test_the_line_of_eth0_is_parsed() -> None:
    assert parse_device_counters(TABLE) == DeviceCounters(5000, 90000, 900)
    assert parse_device_counters(TABLE.replace(b" eth0:", b"eth01:")) is None
    assert parse_device_counters(TABLE[:230]) is None, "cut before eth0"


def test_the_line_of_eth0_is_found_after_those_of_many_devices(tmp_path: Path) -> None:
    lines = [f"veth{number}: " + "0 " * 16 for number in range(1000)]
    file = tmp_path / "42" / "net" / "dev"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join([*lines, "  eth0: 5000 " + "0 " * 7 + "90000 900 " + "0 " * 6]))
    assert read_device_counters(tmp_path, [42]) == {42: DeviceCounters(5000, 90000, 900)}
