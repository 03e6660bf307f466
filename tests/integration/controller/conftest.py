"""Starts managers, stops them after the test, and prints their logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kubekit.client import Client
from lab.controlplane import ControlPlane
from tests.integration.conftest import CreateNode
from tests.integration.controller.appgroups import AppGroupNamespace
from tests.integration.controller.harness import Replica, StartManager, announce_agent
from tests.integration.controller.measured_topology import REGION_BY_ZONE, MeasuredTopology


@pytest_asyncio.fixture
async def start_manager(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[StartManager]:
    """``start_manager(kubeconfig, **sections)`` starts a manager with sections of its configuration."""
    replicas: list[Replica] = []

    def start_replica(kubeconfig: Path = control_plane.kubeconfig, **sections: object) -> Replica:
        replica = Replica(tmp_path, kubeconfig, namespace, sections)
        replica.start()
        replicas.append(replica)
        return replica

    yield start_replica
    for replica in replicas:
        await replica.stop()
    for replica in replicas:
        print(replica.log.read_text()[-4000:])
        assert "Traceback" not in replica.log.read_text()


@pytest.fixture
def groups(client: Client, namespace: str, crds: list[str]) -> AppGroupNamespace:
    return AppGroupNamespace(client, namespace)


@pytest_asyncio.fixture
async def topology(client: Client, namespace: str, crds: list[str], create_node: CreateNode) -> MeasuredTopology:
    """A topology that is not created yet, with its nodes."""
    measured_topology = MeasuredTopology(client, namespace)
    for zone, region in REGION_BY_ZONE.items():
        for node_name in (measured_topology.node_name(f"{zone}a"), measured_topology.node_name(f"{zone}b")):
            await create_node(node_name, zone=zone, region=region)
            await announce_agent(client, node_name)
    return measured_topology


@pytest_asyncio.fixture
async def manager(topology: MeasuredTopology, start_manager: StartManager) -> Replica:
    """A manager that has written the costs of ``topology``."""
    await topology.create()
    replica = start_manager()
    await topology.measure_until_priced()
    return replica
