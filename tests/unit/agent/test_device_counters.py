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


def test_eth0_is_found_among_many_devices(tmp_path: Path) -> None:
    file = tmp_path / "42" / "net" / "dev"
    file.parent.mkdir(parents=True)
    file.write_bytes(TABLE.replace(b"    lo:", b"".join(b"  v%d: 7\n" % number for number in range(9000)) + b"    lo:"))
    assert read_device_counters(tmp_path, [42]) == {42: DeviceCounters(5000, 90000, 900)}


def test_a_table_without_eth0_has_no_counters() -> None:
    assert parse_device_counters(TABLE.replace(b" eth0:", b"eth01:")) is None
    assert parse_device_counters(TABLE[:230]) is None, "cut before eth0"
