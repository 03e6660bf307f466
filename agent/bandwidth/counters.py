"""Reads counters of pods' devices, of token buckets and of filters that redirect to ifbs, and adds them to meters."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyroute2.netlink.rtnl import RTM_GETQDISC

from agent import rtnetlink as rtnl
from agent.bandwidth.cni import POD_INTERFACE
from agent.bandwidth.meters import DeviceCounters, TcCounters, TrafficMeters
from agent.bandwidth.state import LimitStatus
from agent.bandwidth.tc_reader import read_filters

_POD_INTERFACE_LABEL = b" " + POD_INTERFACE.encode() + b":"
_RECEIVED_BYTES, _SENT_BYTES, _SENT_PACKETS = 0, 8, 9
"""Columns of ``/proc/net/dev``."""
_READ_BYTES, _MAX_FILE_BYTES = 16384, 1 << 20
"""The kernel returns at most a page at a time, which is about 30 devices."""


async def take_readings(meters: TrafficMeters, proc: Path, statuses: Sequence[LimitStatus], now_s: float) -> None:
    """Read the counters of pods' devices, and of busy pods' buckets and filters; add them to the meters.

    Raises:
        KernelError: netlink did not answer.
    """
    sources = [status.counter_source for status in statuses if status.counter_source is not None]
    counters_by_pid = read_device_counters(proc, {source.pid for source in sources})
    busy_indexes = meters.find_busy_devices(statuses, counters_by_pid, now_s)
    tc_counters = await read_tc_counters(busy_indexes) if busy_indexes else None
    busy_pids = {source.pid for source in sources if source.host_device_index in busy_indexes}
    # Read again after the buckets, because packets that pass between the two reads would count as excess.
    later_counters_by_pid = read_device_counters(proc, busy_pids)
    meters.add_readings(statuses, counters_by_pid, tc_counters, now_s, later_counters_by_pid)


def read_device_counters(proc: Path, pids: Iterable[int]) -> dict[int, DeviceCounters]:
    """Read the counters of each process's eth0 from ``/proc/<pid>/net/dev``, by process; no namespace is entered.

    Omits processes that have ended or have no eth0. Uses system calls directly, because every limited pod is read every few seconds.
    """
    counters_by_pid: dict[int, DeviceCounters] = {}
    for pid in pids:
        try:
            descriptor = os.open(f"{proc}/{pid}/net/dev", os.O_RDONLY)
            try:
                text = b""
                while len(text) < _MAX_FILE_BYTES and (part := os.read(descriptor, _READ_BYTES)):
                    text += part
            finally:
                os.close(descriptor)
        except OSError:
            continue
        counters = parse_device_counters(text)
        if counters is not None:
            counters_by_pid[pid] = counters
    return counters_by_pid


def parse_device_counters(text: bytes) -> DeviceCounters | None:
    """Parse the line of eth0 in ``/proc/net/dev``; None if it is missing or malformed."""
    columns = text.partition(_POD_INTERFACE_LABEL)[2].split(b"\n", 1)[0].split()
    try:
        return DeviceCounters(*(int(columns[i]) for i in (_RECEIVED_BYTES, _SENT_BYTES, _SENT_PACKETS)))
    except (ValueError, IndexError):
        return None


async def read_tc_counters(device_indexes: Iterable[int]) -> TcCounters:
    """Read the counters of all root qdiscs, and of the filters at ingress of the devices with these indexes.

    Devices without filters are missing in ``redirected_bytes``.

    Raises:
        KernelError: netlink did not answer.
    """
    async with rtnl.open_rtnetlink("cannot read the counters of limits") as netlink:
        qdiscs = await rtnl.dump(netlink, rtnl.make_tc_request, RTM_GETQDISC, rtnl.parse_qdisc)
        filters = [filter_ for index in device_indexes for filter_ in await read_filters(netlink, index, "ingress")]
    root_qdisc_bytes = {qdisc.device_index: qdisc.sent_bytes for qdisc in qdiscs if qdisc.parent == rtnl.ROOT}
    redirected_bytes: Counter[int] = Counter()
    for filter_ in filters:
        redirected_bytes[filter_.device_index] += filter_.redirected_bytes
    return TcCounters(root_qdisc_bytes, redirected_bytes)
