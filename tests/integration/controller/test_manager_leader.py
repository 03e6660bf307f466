"""Of two replicas only the leader writes, as the audit log shows; tests/chaos freezes leaders and API servers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest_asyncio

from lab.controlplane import ControlPlane
from lab.polling import poll_until
from tests.integration.conftest import read_audit_events
from tests.integration.controller.harness import FAST_ELECTION, Replica, StartManager
from tests.integration.controller.measured_topology import MeasuredTopology
from tests.support.tasks import running_tasks

MIN_WRITES = 3
"""Writes after which a test takes a replica for one that goes on writing."""


class Write(NamedTuple):
    """A successful write of a replica, from the audit log."""

    at_s: float
    user: str


class ReplicaPair:
    """Two managers, and simulated agents, whose users are in the audit log."""

    def __init__(
        self, topology: MeasuredTopology, start_manager: StartManager, plane: ControlPlane, audit_log: Path
    ) -> None:
        self.topology = topology
        self.replicas: dict[str, Replica] = {}
        self.has_constant_latencies = False
        self._start_manager, self._plane, self._audit_log = start_manager, plane, audit_log
        self._round = 0

    def start(self, user: str) -> None:
        kubeconfig = self._plane.write_kubeconfig(user, user, organization="system:masters")
        section = {"costPolicy": {"hysteresis": 0.0}}
        self.replicas[user] = self._start_manager(kubeconfig, topology=section, leaderElection=FAST_ELECTION)

    async def keep_measuring(self) -> None:
        """Write results until cancelled; latencies change every sixth round, unless ``has_constant_latencies``."""
        while True:
            self._round += not self.has_constant_latencies
            change_count = self._round // 6
            self.topology.agents.set_latency("z1", "z2", 10 + 10 * (change_count % 7))
            self.topology.agents.set_latency("z1", "z3", 20 + 10 * (change_count % 5))
            try:
                await self.topology.agents.measure()
            except Exception as error:
                print(f"agents: {error}")
            await asyncio.sleep(0.5)

    async def find_leader(self) -> str:
        """User of the only leader, or an empty text."""
        users = [user for user, replica in self.replicas.items() if await replica.is_leader()]
        return users[0] if len(users) == 1 else ""

    def read_writes(self) -> list[Write]:
        """Writes of replicas to objects other than the lease, in the API server's order."""
        writes = []
        for event in read_audit_events(self._audit_log):
            user, target = event["user"]["username"], event["objectRef"]
            is_write = event["responseStatus"].get("code", 500) < 300 and target["resource"] != "leases"
            if is_write and user.startswith("manager-") and target.get("namespace") == self.topology.namespace:
                at_s = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
                writes.append(Write(at_s, user))
        return sorted(writes)


@pytest_asyncio.fixture
async def replica_pair(
    topology: MeasuredTopology, start_manager: StartManager, control_plane: ControlPlane, audit_log: Path
) -> AsyncIterator[ReplicaPair]:
    await topology.create()
    replica_pair = ReplicaPair(topology, start_manager, control_plane, audit_log)
    async with running_tasks(replica_pair.keep_measuring()):
        yield replica_pair


async def start_two_replicas(replica_pair: ReplicaPair) -> tuple[str, str]:
    """Start two replicas, and wait until one leads and writes; returns the users of leader and follower."""
    for user in ("manager-a", "manager-b"):
        replica_pair.start(user)
    leader = await poll_until(replica_pair.find_leader)
    await poll_until(lambda: has_written(replica_pair, leader))
    return leader, ({"manager-a", "manager-b"} - {leader}).pop()


def has_written(replica_pair: ReplicaPair, user: str) -> bool:
    return sum(write.user == user for write in replica_pair.read_writes()) >= MIN_WRITES


def wrote_nothing(replica_pair: ReplicaPair, for_s: float) -> bool:
    """Whether the last write is this long ago."""
    return max((write.at_s for write in replica_pair.read_writes()), default=time.time()) < time.time() - for_s


async def test_the_follower_leads_after_the_leader_is_killed_and_did_not_write_before(
    replica_pair: ReplicaPair,
) -> None:
    leader, follower = await start_two_replicas(replica_pair)
    await asyncio.sleep(2.0)
    assert {write.user for write in replica_pair.read_writes()} == {leader}
    await replica_pair.replicas[leader].stop(signal.SIGKILL)
    await poll_until(lambda: has_written(replica_pair, follower))
    assert [user for user, _ in groupby(write.user for write in replica_pair.read_writes())] == [leader, follower]


async def test_restarted_replicas_write_nothing_if_nothing_changed(replica_pair: ReplicaPair) -> None:
    await start_two_replicas(replica_pair)
    await poll_until(replica_pair.topology.read_costs)
    replica_pair.has_constant_latencies = True
    await poll_until(lambda: wrote_nothing(replica_pair, for_s=3.0))
    for replica in replica_pair.replicas.values():
        await replica.stop(signal.SIGKILL)
    replica_pair.replicas.clear()
    costs, killed_at_s = await replica_pair.topology.read_costs(), time.time()

    for user in ("manager-c", "manager-d"):
        replica_pair.start(user)
    await poll_until(replica_pair.find_leader)
    await asyncio.sleep(3.0)

    assert await replica_pair.topology.read_costs() == costs
    assert [write for write in replica_pair.read_writes() if write.at_s > killed_at_s] == []
