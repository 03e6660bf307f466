"""Reads counters of pods' devices, of their token buckets, and of the filters that redirect to ifbs."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETQDISC, RTM_GETTFILTER

from agent import rtnetlink as rtnl
from agent.bandwidth.meters import DeviceCount, KernelCount, TrafficMeters
from agent.bandwidth.processes import POD_INTERFACE
from agent.bandwidth.state import INGRESS_HOOK, ROOT, LimitStatus
from agent.bandwidth.tc_reader import DEVICE_GONE_ERRNOS, each_action

_TCA_STATS2, _TCA_STATS_BASIC, _TCA_ACT_STATS = 7, 1, 4
_BASIC_STATS = struct.Struct("=Q")
"""The begin of struct gnet_stats_basic: bytes."""
_LINE_BEGIN = b" " + POD_INTERFACE.encode() + b":"
_RECEIVED_BYTES, _SENT_BYTES, _SENT_PACKETS = 0, 8, 9
"""Columns of ``/proc/net/dev``."""
_MAX_BYTES = 16384


async def take_readings(meters: TrafficMeters, proc: Path, statuses: Sequence[LimitStatus], now_s: float) -> None:
    """Read the counters of pods' devices, and for busy pods those of buckets and filters; add them to `TrafficMeters`.

    Raises:
        KernelError: netlink did not answer.
    """
    sources = [status.counter_source for status in statuses if status.counter_source is not None]
    devices = read_devices(proc, {source.pid for source in sources})
    busy = meters.busy_devices(statuses, devices, now_s)
    kernel_count = await read_kernel_count(busy) if busy else None
    devices_reread = read_devices(proc, {source.pid for source in sources if source.host_device_index in busy})
    meters.add_readings(statuses, devices, kernel_count, now_s, devices_reread)


def read_devices(proc: Path, pids: Iterable[int]) -> dict[int, DeviceCount]:
    """Read the counters of each process's eth0 from ``/proc/<pid>/net/dev``, by process; no namespace is entered.

    Omits processes without an eth0, or that have ended. Uses system calls directly, because it runs often for each limited pod.
    """
    counts: dict[int, DeviceCount] = {}
    for pid in pids:
        try:
            descriptor = os.open(f"{proc}/{pid}/net/dev", os.O_RDONLY)
            try:
                text = os.read(descriptor, _MAX_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            continue
        count = parse_device_count(text)
        if count is not None:
            counts[pid] = count
    return counts


def parse_device_count(text: bytes) -> DeviceCount | None:
    """Parse the line of eth0 in ``/proc/net/dev``; None without one."""
    _, label, rest = text.partition(_LINE_BEGIN)
    columns = rest.split(b"\n", 1)[0].split()
    try:
        return DeviceCount(*(int(columns[i]) for i in (_RECEIVED_BYTES, _SENT_BYTES, _SENT_PACKETS))) if label else None
    except (ValueError, IndexError):
        return None


async def read_kernel_count(filter_devices: Iterable[int]) -> KernelCount:
    """Read the counters of all root qdiscs, and of the redirecting filters at ingress of some devices, given by index.

    Raises:
        KernelError: netlink did not answer.
    """
    async with rtnl.open_socket("cannot read the counters of limits") as netlink:
        bucket_bytes = dict(await rtnl.dump(netlink, rtnl.tc_request, RTM_GETQDISC, parse_bucket))
        redirected_bytes: dict[int, int] = {}
        for index in filter_devices:
            request = partial(rtnl.tc_request, index, INGRESS_HOOK)
            try:
                redirected_bytes[index] = sum(await rtnl.dump(netlink, request, RTM_GETTFILTER, parse_redirected))
            except NetlinkError as error:
                if error.code not in DEVICE_GONE_ERRNOS:
                    raise
    return KernelCount(bucket_bytes, redirected_bytes)


def parse_bucket(data: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Parse an RTM_NEWQDISC message: device and bytes sent of a root qdisc (TCA_STATS2, linux/gen_stats.h); None for other qdiscs."""
    _, index, _, parent, _ = rtnl.TC.unpack_from(data, begin)
    spans = rtnl.parse_attributes(data, begin + rtnl.TC.size, end)
    basic = rtnl.parse_nested(data, spans, _TCA_STATS2).get(_TCA_STATS_BASIC)
    if parent != ROOT or basic is None:
        return None
    return index, int(_BASIC_STATS.unpack_from(data, basic[0])[0])


def parse_redirected(data: bytes, begin: int, end: int) -> int | None:
    """Parse an RTM_NEWTFILTER message: bytes redirected so far; None for filters without a redirect."""
    redirected_bytes = None
    for action, redirects in each_action(data, begin, end):
        basic = rtnl.parse_nested(data, action, _TCA_ACT_STATS).get(_TCA_STATS_BASIC)
        if redirects and basic is not None:
            redirected_bytes = (redirected_bytes or 0) + int(_BASIC_STATS.unpack_from(data, basic[0])[0])
    return redirected_bytes
