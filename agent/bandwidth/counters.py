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
from agent.bandwidth.meters import DeviceCounters, TcCounters, TrafficMeters
from agent.bandwidth.processes import POD_INTERFACE
from agent.bandwidth.state import INGRESS_HOOK, ROOT, LimitStatus
from agent.bandwidth.tc_reader import DEVICE_GONE_ERRNOS, iter_actions

_TCA_STATS2, _TCA_STATS_BASIC, _TCA_ACT_STATS = 7, 1, 4
_BASIC_STATS = struct.Struct("=Q")
"""The start of struct gnet_stats_basic: bytes."""
_LINE_BEGIN = b" " + POD_INTERFACE.encode() + b":"
_RECEIVED_BYTES, _SENT_BYTES, _SENT_PACKETS = 0, 8, 9
"""Columns of ``/proc/net/dev``."""
_MAX_FILE_BYTES = 16384


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
    reread_by_pid = read_device_counters(proc, busy_pids)
    meters.add_readings(statuses, counters_by_pid, tc_counters, now_s, reread_by_pid)


def read_device_counters(proc: Path, pids: Iterable[int]) -> dict[int, DeviceCounters]:
    """Read the counters of each process's eth0 from ``/proc/<pid>/net/dev``, by process; no namespace is entered.

    Omits processes that have ended or have no eth0. Uses system calls directly, because every limited pod is read each few seconds.
    """
    counters_by_pid: dict[int, DeviceCounters] = {}
    for pid in pids:
        try:
            descriptor = os.open(f"{proc}/{pid}/net/dev", os.O_RDONLY)
            try:
                text = os.read(descriptor, _MAX_FILE_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            continue
        counters = parse_device_counters(text)
        if counters is not None:
            counters_by_pid[pid] = counters
    return counters_by_pid


def parse_device_counters(text: bytes) -> DeviceCounters | None:
    """Parse the line of eth0 in ``/proc/net/dev``; None if there is none."""
    _, label, rest = text.partition(_LINE_BEGIN)
    columns = rest.split(b"\n", 1)[0].split()
    try:
        return (
            DeviceCounters(*(int(columns[i]) for i in (_RECEIVED_BYTES, _SENT_BYTES, _SENT_PACKETS))) if label else None
        )
    except (ValueError, IndexError):
        return None


async def read_tc_counters(filter_indexes: Iterable[int]) -> TcCounters:
    """Read the counters of all root qdiscs, and of the redirecting filters at ingress of the devices with these indexes.

    Raises:
        KernelError: netlink did not answer.
    """
    async with rtnl.open_socket("cannot read the counters of limits") as netlink:
        bucket_bytes = dict(await rtnl.dump(netlink, rtnl.make_tc_request, RTM_GETQDISC, parse_bucket_bytes))
        redirected_bytes: dict[int, int] = {}
        for index in filter_indexes:
            request = partial(rtnl.make_tc_request, index, INGRESS_HOOK)
            try:
                redirected_bytes[index] = sum(await rtnl.dump(netlink, request, RTM_GETTFILTER, parse_redirected_bytes))
            except NetlinkError as error:
                if error.code not in DEVICE_GONE_ERRNOS:
                    raise
    return TcCounters(bucket_bytes, redirected_bytes)


def parse_bucket_bytes(data: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Parse an RTM_NEWQDISC message: device index and bytes sent of a root qdisc (TCA_STATS2, linux/gen_stats.h); None for others."""
    _, index, _, parent, _ = rtnl.TC.unpack_from(data, begin)
    spans = rtnl.parse_attributes(data, begin + rtnl.TC.size, end)
    basic = rtnl.parse_nested(data, spans, _TCA_STATS2).get(_TCA_STATS_BASIC)
    if parent != ROOT or basic is None:
        return None
    return index, int(_BASIC_STATS.unpack_from(data, basic[0])[0])


def parse_redirected_bytes(data: bytes, begin: int, end: int) -> int | None:
    """Parse an RTM_NEWTFILTER message: bytes redirected so far; None for filters without a redirect."""
    redirected_bytes = None
    for action, is_redirect in iter_actions(data, begin, end):
        basic = rtnl.parse_nested(data, action, _TCA_ACT_STATS).get(_TCA_STATS_BASIC)
        if is_redirect and basic is not None:
            redirected_bytes = (redirected_bytes or 0) + int(_BASIC_STATS.unpack_from(data, basic[0])[0])
    return redirected_bytes
