"""Reads counters of pods' devices, of token buckets, and of the filters that redirect to them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETQDISC, RTM_GETTFILTER

from agent.bandwidth.locate import INTERFACE
from agent.bandwidth.meters import DeviceCount, KernelCount, TrafficMeters
from agent.bandwidth.state import INGRESS_HOOK, ROOT, LimitStatus
from agent.bandwidth.traffic_control import DEVICE_GONE_ERRNOS, each_action
from agent.rtnetlink import TC, attributes, dump, nested, rtnetlink, tc_request

_STATS2, _BASIC, _ACT_STATS = 7, 1, 4
_BASIC_STATS = struct.Struct("=Q")
_INTERFACE_LABEL = INTERFACE.encode() + b":"
_MAX_BYTES = 16384


async def take_readings(meters: TrafficMeters, proc: Path, statuses: Sequence[LimitStatus], now_s: float) -> None:
    """Read the counters of pods' devices, and of buckets and filters for busy pods; add them to `TrafficMeters`.

    Raises:
        KernelError: netlink did not answer.
    """
    counter_sources = [status.counter_source for status in statuses if status.counter_source is not None]
    devices = read_devices(proc, {counter_source.pid for counter_source in counter_sources})
    busy = meters.busy_devices(statuses, devices, now_s)
    kernel = await read_kernel_counts(busy) if busy else None
    reread = read_devices(proc, {s.pid for s in counter_sources if s.device in busy})
    meters.add_readings(statuses, devices, kernel, now_s, reread)


def read_devices(proc: Path, pids: Iterable[int]) -> dict[int, DeviceCount]:
    """Counters of the eth0 that each process sees, from ``/proc/<pid>/net/dev`` (proc(5)); its namespace is not entered.

    Processes without one, or that have ended, are omitted. Runs every few seconds for each limited pod, so it uses plain calls.
    """
    counts: dict[int, DeviceCount] = {}
    for pid in pids:
        try:
            descriptor = os.open(f"{proc}/{pid}/net/dev", os.O_RDONLY)
        except OSError:
            continue
        try:
            text = os.read(descriptor, _MAX_BYTES)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        count = parse_device_count(text)
        if count is not None:
            counts[pid] = count
    return counts


def parse_device_count(text: bytes) -> DeviceCount | None:
    """Parse the line of eth0 in ``/proc/net/dev``; None without one."""
    begin = text.find(b" " + _INTERFACE_LABEL)
    if begin < 0:
        return None
    columns = text[begin + 1 + len(_INTERFACE_LABEL) : begin + 400].split(None, 10)
    if len(columns) < 10 or not (columns[0].isdigit() and columns[8].isdigit() and columns[9].isdigit()):
        return None
    return DeviceCount(int(columns[0]), int(columns[8]), int(columns[9]))


async def read_kernel_counts(filter_devices: Iterable[int]) -> KernelCount:
    """Counters of all root qdiscs, and of the redirecting filters at the given devices' ingress.

    Raises:
        KernelError: netlink did not answer.
    """
    async with rtnetlink("cannot read the counters of limits") as netlink:
        buckets = dict(await dump(netlink, tc_request, RTM_GETQDISC, parse_bucket))
        redirected: dict[int, int] = {}
        for index in filter_devices:
            request = partial(tc_request, index, INGRESS_HOOK)
            try:
                redirected[index] = sum(await dump(netlink, request, RTM_GETTFILTER, parse_redirected))
            except NetlinkError as error:
                if error.code not in DEVICE_GONE_ERRNOS:
                    raise
    return KernelCount(buckets, redirected)


def parse_bucket(data: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Parse an RTM_NEWQDISC message: device and bytes sent of a root qdisc (TCA_STATS2, linux/gen_stats.h); None for other qdiscs."""
    _, index, _, parent, _ = TC.unpack_from(data, begin)
    basic = nested(data, attributes(data, begin + TC.size, end), _STATS2).get(_BASIC)
    if parent != ROOT or basic is None:
        return None
    return index, int(_BASIC_STATS.unpack_from(data, basic[0])[0])


def parse_redirected(data: bytes, begin: int, end: int) -> int | None:
    """Parse an RTM_NEWTFILTER message: bytes redirected so far; None for filters without a redirect."""
    redirected_bytes = None
    for action, redirects in each_action(data, begin, end):
        basic = nested(data, action, _ACT_STATS).get(_BASIC)
        if redirects and basic is not None:
            redirected_bytes = (redirected_bytes or 0) + int(_BASIC_STATS.unpack_from(data, basic[0])[0])
    return redirected_bytes
