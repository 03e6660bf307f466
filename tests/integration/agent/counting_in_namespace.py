"""Counts connections in its network namespace: for each line on standard input, reads the table and prints the totals as JSON.

ip netns exec NAMESPACE python counting_in_namespace.py '{"10.251.1.2": "web"}'
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
import time
from pathlib import Path

from agent.traffic.collector import TrafficCollector
from agent.traffic.conntrack import listen_for_ends
from agent.traffic.edges import WorkloadReference


async def main() -> None:
    workload_by_address = {
        ipaddress.ip_address(address).packed: WorkloadReference("shop", "Deployment", name)
        for address, name in json.loads(sys.argv[1]).items()
    }
    collector = TrafficCollector(lambda: "z1", Path("/proc"))
    async with asyncio.TaskGroup() as tasks:
        event_listener = tasks.create_task(listen_for_ends(collector.add_events))
        while await asyncio.to_thread(sys.stdin.readline):
            await collector.read_table(workload_by_address, time.monotonic(), time.time())
            totals = [[e.client.name, e.server, e.port, up, down] for e, up, down in collector.edges.last_round.totals]
            round_result = {
                "totals": totals,
                "servers": sorted(
                    str(ipaddress.ip_address(address)) for address in collector.edges.responding_addresses
                ),
                "uncounted": collector.edges.uncounted_connections,
                "problem": collector.state.problem,
            }
            print(json.dumps(round_result), flush=True)
        event_listener.cancel()


if __name__ == "__main__":
    asyncio.run(main())
