"""The manager on a cluster where there are no definitions yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.topology.weights import written_costs
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource
from lab.controlplane import ControlPlane
from tests.integration.conftest import MakeNode, definitions, eventually, remove_definitions
from tests.integration.controller.harness import Replica, SimulatedAgents, announce
from tests.integration.controller.test_appgroup_manager import group

TOPOLOGY = {
    "apiVersion": NETWORK_TOPOLOGIES.api_version,
    "kind": "NetworkTopology",
    "metadata": {"name": "nt-default"},
    "spec": {"configmapName": "netperf-metrics"},
}


@pytest.mark.slow
async def test_definitions_that_come_later_are_taken_up_and_the_plan_does_not_wait_for_them(
    control_plane: ControlPlane, client: Client, namespace: str, make_node: MakeNode, tmp_path: Path
) -> None:
    await remove_definitions(client)
    for zone in ("z1", "z2"):
        await make_node(f"{namespace}-{zone}", zone=zone)
        await announce(client, f"{namespace}-{zone}")
    agents, replica = SimulatedAgents(client, namespace), Replica(tmp_path, control_plane.kubeconfig, namespace)

    async def created(resource: Resource, body: dict[str, Any]) -> bool:
        try:
            await client.create(resource, body, Object, namespace=namespace)
        except ApiError as error:
            if not error.not_found:  # The definition is not served yet.
                raise
            return False
        return True

    async def is_measured() -> bool:
        return await agents.measure() >= 1

    async def is_priced() -> bool:
        await agents.measure()
        found = await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=namespace)
        return len(written_costs(found.weight("NetperfCosts"))) == 2

    async def is_ordered() -> bool:
        return bool((await client.get(APPGROUPS, "g", AppGroup, namespace=namespace)).status.topology_order)

    replica.start()
    try:
        await eventually(is_measured)
        assert await replica.leads()
        for body in definitions().values():
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, body, Object)
        await eventually(lambda: created(NETWORK_TOPOLOGIES, TOPOLOGY))
        await eventually(lambda: created(APPGROUPS, group({"a": "b", "b": "a"})))
        await eventually(is_priced, 60)
        await eventually(is_ordered, 60)
    finally:
        print(replica.log.read_text()[-4000:])
        await replica.stop()
        await remove_definitions(client)
    assert "Traceback" not in replica.log.read_text()
