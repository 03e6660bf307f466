"""Limits a pod's device both ways, reads and removes the limits, and starts a program as the agent starts netserver.

python limiting_a_pod.py PID DEVICE IFB prints the checks as JSON. The pod has the process PID; the egress limit is on IFB.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from agent.bandwidth import processes
from agent.bandwidth.state import RemoveLimit, SetEgressLimit, SetIngressLimit
from agent.bandwidth.tc_reader import read_tc_state
from agent.bandwidth.tc_writer import execute
from agent.rtnetlink import TbfParams
from netperf.probers.child import start_confined

PARAMS = TbfParams(rate_bytes_per_s=1_250_000, buffer_ticks=625_000, limit_bytes=100_000)


async def main(pid: int, device_name: str, ifb_name: str) -> None:
    state, namespace_ids = await read_tc_state({"uid": pid})
    device = next(device for device in state.devices if device.name == device_name)
    await execute(SetIngressLimit(device.index, device_name, PARAMS))
    await execute(
        SetEgressLimit(device.index, device_name, ifb_name, 1500, PARAMS, "netaware:test", add_ingress_qdisc=True)
    )

    state, _ = await read_tc_state({})
    ifb = next(device for device in state.devices if device.name == ifb_name)
    filters = [tc_filter for tc_filter in state.filters if tc_filter.device_index == device.index]
    limited_indices = {qdisc.device_index for qdisc in state.qdiscs if qdisc.params == PARAMS}
    checks = {
        "same namespace": device.namespace_id == namespace_ids["uid"],
        "own index": processes.read_pod_interface_index(Path("/proc"), pid) == device.peer_index,
        "ingress": device.index in limited_indices,
        "egress": ifb.index in limited_indices,
        "redirect": any(tc_filter.target_index == ifb.index for tc_filter in filters),
    }
    print(json.dumps(checks))

    await execute(RemoveLimit(device.index, device_name, "ingress"))
    priorities = tuple(tc_filter.priority for tc_filter in filters)
    await execute(RemoveLimit(device.index, device_name, "egress", ifb_name, priorities, remove_ingress_qdisc=True))
    try:
        await (await start_confined("/bin/true", stdin=asyncio.subprocess.DEVNULL)).wait()
    except subprocess.SubprocessError as error:
        sys.exit(f"not permitted: {error}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
