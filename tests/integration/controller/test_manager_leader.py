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

from controller.cluster.crds import NETPERF_COSTS, NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.wire import Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program
from netperf.latencies import ZonePair
from tests.integration.conftest import MakeNode, read_audit_events
from tests.integration.controller.harness import FAST_ELECTION, Replica, SimulatedAgents, announce_agent
from tests.support.bodies import make_topology_body

MIN_WRITES = 3
"""Writes after which a test takes a replica for one that goes on writing."""
LONG_ELECTION = {"leaseDurationS": 600.0}
"""A lease that does not expire during a test, so that another replica leads only if it is handed over."""


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
        self.has_constant_latencies = False
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

    async def keep_measuring(self) -> None:
        """Write results until cancelled; latencies change every sixth round, unless ``has_constant_latencies``."""
        while True:
            self._round += not self.has_constant_latencies
            change_count = self._round // 6
            self.agents.set_latency("z1", "z2", 10 + 10 * (change_count % 7))
            self.agents.set_latency("z1", "z3", 20 + 10 * (change_count % 5))
            try:
                await self.agents.measure()
            except Exception as error:
                print(f"agents: {error}")
            await asyncio.sleep(0.5)

    async def find_leader(self) -> str:
        """User of the only leader, or an empty text."""
        users = [user for user, replica in self.replicas.items() if await replica.is_leader()]
        return users[0] if len(users) == 1 else ""

    async def read_costs(self) -> dict[ZonePair, int]:
        topology = await self.client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=self.namespace)
        return zone_costs_of(topology.weight(NETPERF_COSTS))

    def read_writes(self) -> list[Write]:
        """Writes of replicas to objects other than the lease, in the API server's order."""
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
        await client.create(NETWORK_TOPOLOGIES, make_topology_body(), Object, namespace=namespace)
        measuring = asyncio.create_task(replica_pair.keep_measuring())
        try:
            yield replica_pair
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)
            for user, replica in replica_pair.replicas.items():
                print(user, replica.log.read_text()[-3000:])
                await replica.stop(signal.SIGKILL)


@asynccontextmanager
async def run_two_replicas(
    replica_pair: ReplicaPair, election: dict[str, float] | None = None
) -> AsyncIterator[tuple[str, str]]:
    """Start two replicas, and wait until one leads and writes; yields the users of leader and follower."""
    for user in ("manager-a", "manager-b"):
        replica_pair.start(user, election)
    leader = await poll_until(replica_pair.find_leader)
    await poll_until(lambda: has_written(replica_pair, leader))
    yield leader, ({"manager-a", "manager-b"} - {leader}).pop()


def has_written(replica_pair: ReplicaPair, user: str) -> bool:
    return sum(write.user == user for write in replica_pair.read_writes()) >= MIN_WRITES


def wrote_nothing(replica_pair: ReplicaPair, for_s: float = 1.0) -> bool:
    """Whether the last write is this long ago."""
    return max((write.at_s for write in replica_pair.read_writes()), default=time.time()) < time.time() - for_s


async def test_the_follower_leads_after_the_leader_is_killed_and_did_not_write_before(
    replica_pair: ReplicaPair,
) -> None:
    async with run_two_replicas(replica_pair) as (leader, follower):
        await asyncio.sleep(2.0)
        assert {write.user for write in replica_pair.read_writes()} == {leader}
        await replica_pair.replicas[leader].stop(signal.SIGKILL)
        await poll_until(lambda: has_written(replica_pair, follower))
        assert [user for user, _ in groupby(write.user for write in replica_pair.read_writes())] == [leader, follower]


async def test_a_leader_that_is_stopped_hands_over_at_once(replica_pair: ReplicaPair) -> None:
    async with run_two_replicas(replica_pair, LONG_ELECTION) as (leader, follower):
        # A leader that is stopped during a write does not release its lease.
        await poll_until(lambda: wrote_nothing(replica_pair))
        assert await replica_pair.replicas[leader].stop() == 0
        await poll_until(lambda: has_written(replica_pair, follower))


async def test_restarted_replicas_write_nothing_if_nothing_changed(replica_pair: ReplicaPair) -> None:
    async with run_two_replicas(replica_pair):
        await poll_until(replica_pair.read_costs)
    replica_pair.has_constant_latencies = True
    await poll_until(lambda: wrote_nothing(replica_pair, for_s=3.0))
    for replica in replica_pair.replicas.values():
        await replica.stop(signal.SIGKILL)
    replica_pair.replicas.clear()
    costs, killed_at_s = await replica_pair.read_costs(), time.time()
    for user in ("manager-c", "manager-d"):
        replica_pair.start(user)
    await poll_until(replica_pair.find_leader)
    await asyncio.sleep(3.0)
    assert await replica_pair.read_costs() == costs
    assert [write for write in replica_pair.read_writes() if write.at_s > killed_at_s] == []
