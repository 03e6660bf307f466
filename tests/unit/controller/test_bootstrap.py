"""The leader does not create a NetworkTopology beside one that it cannot decode."""

from __future__ import annotations

import asyncio

import pytest

from controller.bootstrap import Bootstrap, BootstrapConfig
from controller.cluster.crds import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit.client import Client
from kubekit.reflector import Reflector
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi


async def test_no_topology_is_created_beside_one_that_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.bootstrap.CHECK_INTERVAL_S", 0.01)
    api = SimulatedApi(NETWORK_TOPOLOGIES)
    api.put("theirs", spec={"configmapName": ["a list", "of a later version"]})
    async with api.running() as server, Client(server) as client:
        topologies = Reflector(client, NETWORK_TOPOLOGIES, NetworkTopology, namespace="ns")
        bootstrap = Bootstrap(client, topologies, BootstrapConfig(network_topology="ours"), namespace="ns")
        tasks = [asyncio.create_task(program.run()) for program in (topologies, bootstrap)]
        try:
            await poll_until(topologies.synced.is_set)
            await asyncio.sleep(0.1)
            assert list(api.objects) == ["theirs"]
            api.delete("theirs")
            await poll_until(lambda: list(api.objects) == ["ours"])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
