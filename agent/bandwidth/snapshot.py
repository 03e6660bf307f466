"""Reads everything that the rules decide from: processes of the pods, devices, traffic control."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.bandwidth.annotations import PodBandwidthSpec
from agent.bandwidth.cni import Network, ResultCache
from agent.bandwidth.processes import POD_INTERFACE, find_processes, is_in_host_network, pod_interface_index
from agent.bandwidth.state import BandwidthSnapshot
from agent.bandwidth.tc_reader import read_tc_state


async def take_snapshot(
    proc: Path, network: Network, pods: Sequence[PodBandwidthSpec], cache: ResultCache
) -> BandwidthSnapshot:
    """Read a snapshot. Pods that end meanwhile have no sandbox, and devices that are deleted meanwhile are missing.

    Raises:
        KernelError: netlink did not answer.
    """
    uids = [pod.uid for pod in pods if not pod.host_network and pod.has_address]
    # Reading /proc blocks for some milliseconds per thousand processes.
    processes = await asyncio.to_thread(find_processes, proc, uids)
    tc_state, namespace_ids = await read_tc_state({uid: process.pid for uid, process in processes.items()})
    attachments = await asyncio.to_thread(cache.read, POD_INTERFACE)
    sandboxes = {
        uid: msgspec.structs.replace(
            process,
            container_id=attachments[uid].container_id if uid in attachments else process.container_id,
            attachment=attachments.get(uid),
            namespace_id=namespace_ids.get(uid),
            host_network=is_in_host_network(proc, process.pid),
            eth0_index=pod_interface_index(proc, process.pid),
        )
        for uid, process in processes.items()
    }
    return BandwidthSnapshot(pods=tuple(pods), sandboxes=sandboxes, tc_state=tc_state, network=network)
