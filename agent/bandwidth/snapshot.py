"""Takes the whole picture at once: processes of the pods, devices, traffic control."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agent.bandwidth.locate import find_processes, own_index
from agent.bandwidth.state import BandwidthSnapshot, Location
from agent.bandwidth.traffic_control import read_kernel
from agent.bandwidth.wanted import PodWish


async def take_snapshot(proc: Path, network: str, pods: Sequence[PodWish]) -> BandwidthSnapshot:
    """What there is now. A pod that vanishes meanwhile has no location, and a device that vanishes is not in the picture.

    Args:
        proc: the host's proc file system.
        network: name of the CNI network.
        pods: those of this node.

    Raises:
        KernelError: netlink did not answer.
    """
    sought = {pod.cgroup_uid or pod.uid: pod.uid for pod in pods if not pod.host_network and pod.has_address}
    # Reading /proc blocks for some milliseconds per thousand processes.
    found = await asyncio.to_thread(find_processes, proc, sought)
    processes = {sought[uid]: process for uid, process in found.items()}
    kernel, numbers = await read_kernel({uid: process.pid for uid, process in processes.items()})
    locations = {
        uid: Location(
            pid=process.pid,
            sandbox=process.container,
            namespace_id=numbers.get(uid),
            own_index=own_index(proc, process.pid),
        )
        for uid, process in processes.items()
    }
    return BandwidthSnapshot(pods=tuple(pods), locations=locations, kernel=kernel, network=network)
