"""Reads a `BandwidthSnapshot`: the pods' sandboxes, devices and traffic control."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.bandwidth.annotations import PodBandwidthSpec
from agent.bandwidth.cni import Network, ResultCache
from agent.bandwidth.processes import find_sandboxes, is_in_host_network, read_pod_interface_index
from agent.bandwidth.state import BandwidthSnapshot
from agent.bandwidth.tc_reader import read_tc_state


async def take_snapshot(
    proc: Path, network: Network, pods: Sequence[PodBandwidthSpec], result_cache: ResultCache
) -> BandwidthSnapshot:
    """Read a snapshot. Pods that end meanwhile have no sandbox, and devices that are deleted meanwhile are missing.

    Raises:
        KernelError: netlink did not answer.
    """
    uids = [pod.uid for pod in pods if not pod.uses_host_network and pod.has_address]
    # Reading /proc blocks for some milliseconds per thousand processes.
    sandbox_by_uid = await asyncio.to_thread(find_sandboxes, proc, uids)
    tc_state, namespace_id_by_uid = await read_tc_state({uid: sandbox.pid for uid, sandbox in sandbox_by_uid.items()})
    attachment_by_uid = await asyncio.to_thread(result_cache.read_attachments)
    sandbox_by_uid = {
        uid: msgspec.structs.replace(
            sandbox,
            container_id=attachment_by_uid[uid].container_id if uid in attachment_by_uid else sandbox.container_id,
            attachment=attachment_by_uid.get(uid),
            namespace_id=namespace_id_by_uid.get(uid),
            is_in_host_network=is_in_host_network(proc, sandbox.pid),
            pod_interface_index=read_pod_interface_index(proc, sandbox.pid),
        )
        for uid, sandbox in sandbox_by_uid.items()
    }
    return BandwidthSnapshot(pods=tuple(pods), sandbox_by_uid=sandbox_by_uid, tc_state=tc_state, network=network)
