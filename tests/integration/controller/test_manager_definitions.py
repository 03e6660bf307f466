"""The manager on clusters with upstream's definitions, and on clusters where there are none yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.topology.weights import written_costs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, Object
from lab.controlplane import ControlPlane
from tests.integration.conftest import MakeNode, definitions, eventually, remove_definitions
from tests.integration.controller.harness import Replica, SimulatedAgents, announce
from tests.integration.controller.test_appgroup_manager import group

USERS = {
    "name": "UserDefined",
    "topologyList": [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "originList": [{"origin": "b", "costList": [{"destination": "a", "networkCost": 3}]}],
        }
    ],
}


def as_upstream(found: dict[str, Any]) -> dict[str, Any]:
    """What upstream's definitions have not: a status subresource, list types, rules, and the fields that are ours."""
    for version in found["spec"]["versions"]:
        version.pop("subresources")
        version["schema"] = _plain(version["schema"])
        parts = version["schema"]["openAPIV3Schema"]["properties"]
        parts["spec"]["properties"].pop("costPolicy", None)
        for field in ("conditions", "observedGeneration"):
            parts["status"]["properties"].pop(field, None)
    return found


def _plain(schema: Any) -> Any:
    if isinstance(schema, dict):
        dropped = ("x-kubernetes-list-", "x-kubernetes-validations")
        return {key: _plain(value) for key, value in schema.items() if not key.startswith(dropped)}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


class Cluster:
    def __init__(self, plane: ControlPlane, client: Client, namespace: str, folder: Path) -> None:
        self.client, self.namespace = client, namespace
        self.agents = SimulatedAgents(client, namespace)
        self.replica = Replica(folder, plane.kubeconfig, namespace)

    async def install(self, found: list[dict[str, Any]]) -> None:
        for body in found:
            await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, body, Object)

    async def create(self) -> None:
        topology = {
            "apiVersion": NETWORK_TOPOLOGIES.api_version,
            "kind": "NetworkTopology",
            "metadata": {"name": "nt-default"},
            "spec": {"configmapName": "netperf-metrics", "weights": [USERS]},
        }
        await eventually(lambda: self._created(NETWORK_TOPOLOGIES, topology))
        await eventually(lambda: self._created(APPGROUPS, group({"a": "b", "b": "a"})))

    async def _created(self, resource: Any, body: dict[str, Any]) -> bool:
        try:
            await self.client.create(resource, body, Object, namespace=self.namespace)
        except ApiError as error:
            if not error.not_found:  # the definition is not served yet
                raise
            return False
        return True

    async def topology(self) -> NetworkTopology:
        return await self.client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=self.namespace)

    async def group(self) -> AppGroup:
        return await self.client.get(APPGROUPS, "g", AppGroup, namespace=self.namespace)

    async def priced(self) -> bool:
        await self.agents.measure()
        return len(written_costs((await self.topology()).weight("NetperfCosts"))) == 2

    async def ordered(self) -> bool:
        return bool((await self.group()).status.topology_order)


@pytest_asyncio.fixture
async def cluster(
    control_plane: ControlPlane, client: Client, namespace: str, make_node: MakeNode, tmp_path: Path
) -> AsyncIterator[Cluster]:
    await remove_definitions(client)
    for zone in ("z1", "z2"):
        await make_node(f"{namespace}-{zone}", zone=zone)
        await announce(client, f"{namespace}-{zone}")
    found = Cluster(control_plane, client, namespace, tmp_path)
    yield found
    print(found.replica.log.read_text()[-4000:])
    assert "Traceback" not in found.replica.log.read_text()
    await found.replica.stop()
    await remove_definitions(client)


async def test_upstreams_definitions_do_costs_and_orders_leave_foreign_weights_and_cause_no_endless_writes(
    cluster: Cluster,
) -> None:
    await cluster.install([as_upstream(found) for found in definitions().values()])
    await cluster.create()
    cluster.replica.start()
    await eventually(cluster.priced)
    await eventually(cluster.ordered)
    raw: dict[str, Any] = {}

    async def has_a_status() -> bool:
        """Costs and status are two writes."""
        nonlocal raw
        raw = await cluster.client.get(NETWORK_TOPOLOGIES, "nt-default", dict, namespace=cluster.namespace)
        return "status" in raw

    await eventually(has_a_status)
    assert raw["spec"]["weights"][0] == USERS
    assert "conditions" not in raw["status"]
    await asyncio.sleep(1.0)
    before = (await cluster.topology()).metadata.resource_version, (await cluster.group()).metadata.resource_version
    for _ in range(3):
        await cluster.agents.measure()
        await asyncio.sleep(1.2)
    after = (await cluster.topology()).metadata.resource_version, (await cluster.group()).metadata.resource_version
    assert before == after
    status = (await cluster.topology()).status
    assert (status.node_count, bool(status.weight_calculation_time)) == (2, True)
    patch = {"spec": {"numMembers": 5}}
    await cluster.client.patch(APPGROUPS, "g", patch, Object, kind=MERGE_PATCH, namespace=cluster.namespace)
    await asyncio.sleep(1.0)
    assert (await cluster.group()).spec.num_members == 5


@pytest.mark.slow
async def test_definitions_that_come_later_are_taken_up_and_the_plan_does_not_wait_for_them(cluster: Cluster) -> None:
    cluster.replica.start()
    await eventually(lambda: _measures(cluster))
    assert await cluster.replica.leads()
    await cluster.install(list(definitions().values()))
    await cluster.create()
    await eventually(cluster.priced, 60)
    await eventually(cluster.ordered, 60)


async def _measures(cluster: Cluster) -> bool:
    return await cluster.agents.measure() >= 1
