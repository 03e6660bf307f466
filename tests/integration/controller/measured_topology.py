"""A NetworkTopology of three zones with simulated agents, whose costs the manager measures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from controller.cluster.crds import NETPERF_COSTS, NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit.client import MERGE_PATCH, Client
from kubekit.conditions import find_condition
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object
from lab.polling import poll_until
from netperf.latencies import ZonePair
from tests.integration.controller.appgroups import AppGroupNamespace
from tests.integration.controller.harness import SimulatedAgents, read_plans, wait_until_equal
from tests.support.bodies import make_symmetric_costs, make_topology_body, make_weight_body

REGION_BY_ZONE = {"z1": "west", "z2": "west", "z3": "east"}
ALL_COSTS = make_symmetric_costs({("z1", "z2"): 5, ("z1", "z3"): 20, ("z2", "z3"): 22})
"""Costs of the agents' latencies with the default policy: a unit is a millisecond, and 4.6 ms are rounded to 5."""
USER_WEIGHT = make_weight_body(
    {
        ("z1", "z2"): {"networkCost": 0, "bandwidthCapacity": 1000},
        ("z2", "z1"): {"networkCost": 0, "bandwidthCapacity": "1Gi"},
    }
)


class MeasuredTopology(AppGroupNamespace):
    """The NetworkTopology nt-default of three zones, with nodes ``a`` and ``b`` in each, and simulated agents."""

    def __init__(self, client: Client, namespace: str) -> None:
        super().__init__(client, namespace)
        self.agents = SimulatedAgents(client, namespace)
        self.agents.set_latency("z1", "z2", 4.6)
        self.agents.set_latency("z1", "z3", 20)
        self.agents.set_latency("z2", "z3", 22)

    async def create(self, name: str = "nt-default", namespace: str = "", **spec: Any) -> None:
        body = make_topology_body(name, **{"weights": [USER_WEIGHT], **spec})
        await self.client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace or self.namespace)

    async def read(self, name: str = "nt-default", namespace: str = "") -> NetworkTopology:
        return await self.client.get(NETWORK_TOPOLOGIES, name, NetworkTopology, namespace=namespace or self.namespace)

    async def read_raw(self) -> dict[str, Any]:
        return await self.client.get(NETWORK_TOPOLOGIES, "nt-default", dict, namespace=self.namespace)

    async def read_costs(self, name: str = "nt-default", namespace: str = "") -> dict[ZonePair, int]:
        return zone_costs_of((await self.read(name, namespace)).weight(NETPERF_COSTS))

    async def read_allocations(self) -> dict[ZonePair, str | int | None]:
        """Allocated bandwidth by pair of zones or regions, without pairs that have none."""
        weight = (await self.read()).weight(NETPERF_COSTS)
        return {
            (origin.origin, entry.destination): entry.bandwidth_allocated
            for level in (weight.topology_list if weight else ())
            for origin in level.origin_list
            for entry in origin.cost_list
            if entry.bandwidth_allocated not in {None, "0"}
        }

    async def read_condition(self, type_: str) -> tuple[str, str]:
        """Status and reason of a condition; both empty if there is none."""
        condition = find_condition((await self.read()).status.conditions, type_)
        return (condition.status, condition.reason) if condition else ("", "")

    async def patch_node(self, suffix: str, patch: dict[str, Any]) -> None:
        await self.client.patch(NODES, self.node_name(suffix), patch, Node, patch_type=MERGE_PATCH)

    def node_name(self, suffix: str) -> str:
        """The full name of a node such as z1a."""
        return f"{self.namespace}-{suffix}"

    async def patch_results(self, data: Mapping[str, Any]) -> None:
        await self.client.patch(CONFIGMAPS, "netperf-metrics", {"data": data}, Object, namespace=self.namespace)

    async def read_results(self) -> dict[str, str]:
        """Data of the results ConfigMap; empty if it does not exist."""
        config_maps = await self.client.list(CONFIGMAPS, ConfigMap, namespace=self.namespace)
        return next((item.data or {} for item in config_maps if item.metadata.name == "netperf-metrics"), {})

    async def read_planned_zones(self) -> set[str]:
        return {plan.zone for plan in await read_plans(self.client, self.namespace)}

    async def read_planned_nodes(self) -> set[str]:
        plans = await read_plans(self.client, self.namespace)
        return {end.node for plan in plans for probe in plan.probes for end in (probe.origin, probe.destination)}

    async def wait_for_costs(self, costs: Mapping[ZonePair, int]) -> None:
        await wait_until_equal(self.read_costs, costs)

    async def wait_for_condition(self, type_: str, status: str, reason: str) -> None:
        await wait_until_equal(partial(self.read_condition, type_), (status, reason))

    async def measure_until_priced(self) -> None:
        """Write results until costs of all pairs are measured; the first may be computed from a part of the results."""

        async def are_priced() -> bool:
            await self.agents.measure()
            _, reason = await self.read_condition("Measured")
            return len(await self.read_costs()) == len(ALL_COSTS) and reason in {"AllPairsMeasured", "MeasurementsOld"}

        await poll_until(are_priced)
