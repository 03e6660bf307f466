"""Of two replicas only the leader writes, as the audit log shows; frozen leaders and paused API servers are tested in tests/chaos."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest_asyncio

from controller.cluster.crds import NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.wire import Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.conftest import MakeNode, read_audit_events
from tests.integration.controller.harness import FAST_ELECTION, Replica, SimulatedAgents, announce_agent

LONG_ELECTION = {"leaseDurationS": 600.0}


class Write(NamedTuple):
    """A successful write of a replica, from the audit log."""

    at_s: float
    user: str
    resource: str
    verb: str


class ReplicaPair:
    """A namespace with two managers, and simulated agents."""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str, folder: Path, audit_log: Path) -> None:
        self.plane, self.client, self.audit_log = plane, client, audit_log
        self.namespace = namespace
        self.agents = SimulatedAgents(client, self.namespace)
        self.replicas: dict[str, Replica] = {}
        self.quiet = False
        self._folder = folder
        self._round = 0

    def start(self, user: str, election: dict[str, float] | None = None) -> Replica:
        kubeconfig = self.plane.write_kubeconfig(user, user, organization="system:masters")
        topology = {"costPolicy": {"hysteresis": 0.0}}
        config = {"topology": topology, "leaderElection": election or FAST_ELECTION}
        replica = Replica(self._folder, kubeconfig, self.namespace, config)
        replica.start()
        self.replicas[user] = replica
        return replica

    async def keep_busy(self) -> None:
        """Write results until cancelled; latencies change unless ``quiet``, so that the leader writes costs."""
        while True:
            self._round += not self.quiet
            self.agents.set_latency("z1", "z2", 10 + 10 * (self._round // 6 % 7))
            self.agents.set_latency("z1", "z3", 20 + 10 * (self._round // 6 % 5))
            try:
                await self.agents.measure()
            except Exception as error:
                print(f"agents: {error}")
            await asyncio.sleep(0.5)

    async def leader(self) -> str:
        leading = [user for user, replica in self.replicas.items() if await replica.leads()]
        return leading[0] if len(leading) == 1 else ""

    def writes(self) -> list[Write]:
        """What replicas wrote to objects other than the lease, in the API server's order."""
        writes = []
        for event in read_audit_events(self.audit_log):
            user, target = event["user"]["username"], event["objectRef"]
            is_write = event["responseStatus"].get("code", 500) < 300 and target["resource"] != "leases"
            if is_write and user.startswith("manager-") and target.get("namespace") == self.namespace:
                at_s = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
                writes.append(Write(at_s, user, target["resource"], event["verb"]))
        return sorted(writes)


@pytest_asyncio.fixture
async def replica_pair(
    control_plane: ControlPlane,
    namespace: str,
    crds: list[str],
    make_node: MakeNode,
    kwok: Program,
    tmp_path: Path,
    audit_log: Path,
) -> AsyncIterator[ReplicaPair]:
    async with Client(control_plane.client_config, timeout_s=3.0) as client:
        replica_pair = ReplicaPair(control_plane, client, namespace, tmp_path, audit_log)
        for zone in ("z1", "z2", "z3"):
            await make_node(f"{namespace}-{zone}", zone=zone, region="r")
            await announce_agent(client, f"{namespace}-{zone}")
        spec = {"configmapName": "netperf-metrics"}
        body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "nt-default"}, "spec": spec}
        await client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace)
        busy = asyncio.create_task(replica_pair.keep_busy())
        try:
            yield replica_pair
        finally:
            busy.cancel()
            await asyncio.gather(busy, return_exceptions=True)
            for user, replica in replica_pair.replicas.items():
                print(user, replica.log.read_text()[-3000:])
                await replica.stop(signal.SIGKILL)


@asynccontextmanager
async def two_replicas(
    replica_pair: ReplicaPair, election: dict[str, float] | None = None
) -> AsyncIterator[tuple[str, str]]:
    """Start two replicas, and wait until one leads and writes; yields leader and follower."""
    replica_pair.start("manager-a", election)
    replica_pair.start("manager-b", election)
    leader = await poll_until(replica_pair.leader)
    await poll_until(lambda: _has_written(replica_pair, leader))
    yield leader, ({"manager-a", "manager-b"} - {leader}).pop()


def _has_written(replica_pair: ReplicaPair, user: str) -> bool:
    return sum(write.user == user for write in replica_pair.writes()) >= 3


def _is_quiet(replica_pair: ReplicaPair, for_s: float = 1.0) -> bool:
    return max((write.at_s for write in replica_pair.writes()), default=time.time()) < time.time() - for_s


async def test_the_follower_leads_after_the_leader_is_killed_and_did_not_write_before(
    replica_pair: ReplicaPair,
) -> None:
    async with two_replicas(replica_pair) as (leader, follower):
        await asyncio.sleep(2.0)
        assert {write.user for write in replica_pair.writes()} == {leader}
        await replica_pair.replicas[leader].stop(signal.SIGKILL)
        await poll_until(lambda: _has_written(replica_pair, follower))
        assert [user for user, _ in groupby(write.user for write in replica_pair.writes())] == [leader, follower]


async def test_a_leader_that_is_stopped_hands_over_at_once(replica_pair: ReplicaPair) -> None:
    # A lease so long that within this test it is handed over, or not obtained at all.
    async with two_replicas(replica_pair, LONG_ELECTION) as (leader, follower):
        # In the middle of a write it would leave its lease to run out.
        await poll_until(lambda: _is_quiet(replica_pair))
        assert await replica_pair.replicas[leader].stop() == 0
        await poll_until(lambda: _has_written(replica_pair, follower))


async def test_restarted_replicas_write_nothing_if_nothing_changed(replica_pair: ReplicaPair) -> None:
    async with two_replicas(replica_pair):
        await poll_until(lambda: _costs(replica_pair))
    replica_pair.quiet = True
    await poll_until(lambda: _is_quiet(replica_pair, for_s=3.0))
    for replica in replica_pair.replicas.values():
        await replica.stop(signal.SIGKILL)
    replica_pair.replicas.clear()
    written, killed_at = await _costs(replica_pair), time.time()
    for user in ("manager-c", "manager-d"):
        replica_pair.start(user)
    await poll_until(replica_pair.leader)
    await asyncio.sleep(3.0)
    assert await _costs(replica_pair) == written
    assert [write for write in replica_pair.writes() if write.at_s > killed_at] == []


async def _costs(replica_pair: ReplicaPair) -> dict[tuple[str, str], int]:
    client, namespace = replica_pair.client, replica_pair.namespace
    topology = await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=namespace)
    return zone_costs_of(topology.weight("NetperfCosts"))
