"""A cluster for a group of three workloads in a chain, with our gating controller."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from typing import Any

from controller.cluster.pods import PlacementMode, Pod
from controller.scheduler.config import SchedulerConfig
from kubekit.client import MERGE_PATCH
from kubekit.wire import DEPLOYMENTS, Object, Resource
from lab.polling import poll_until
from tests.integration.scheduler.harness import PROFILE, SchedulerHarness, make_deployment
from tests.support.bodies import make_symmetric_costs

ZONES = ("z0", "z1", "z2")
COSTS = make_symmetric_costs({("z0", "z1"): 5, ("z1", "z2"): 5, ("z0", "z2"): 50})
CHAIN = ("web", "api", "db")
"""Workloads, each of which calls the next."""
MAX_COST = 10
REPLICAS = 2
POD_COUNT = REPLICAS * len(CHAIN)


class ChainCluster:
    """Nine nodes of 4 cpu in three zones, or without zones, and a group whose workloads call each other in a chain."""

    def __init__(self, harness: SchedulerHarness, placement: PlacementMode, *, has_zones: bool) -> None:
        self.harness = harness
        self.config = SchedulerConfig(placement=placement)
        self.zone_by_node = {f"n-{zone}-{i}": zone if has_zones else "" for zone in ZONES for i in range(3)}
        self.gating_stack, self.objects_stack = AsyncExitStack(), AsyncExitStack()  # closed by the fixture

    async def create_nodes_and_group(self) -> None:
        for node, zone in self.zone_by_node.items():
            await self.harness.create_ready_node(node, zone=zone, region="r" if zone else "", capacity={"cpu": "4"})
        await self.harness.set_costs(COSTS)
        calls = {caller: {callee: MAX_COST} for caller, callee in pairwise(CHAIN)} | {CHAIN[-1]: {}}
        await self.harness.create_group(calls, members=POD_COUNT, algorithm="ReverseKahn")

    async def restart_gating_controller(self, config: SchedulerConfig | None = None) -> None:
        await self.gating_stack.aclose()
        await self.gating_stack.enter_async_context(self.harness.run_gating_controller(config or self.config))

    async def create_object(self, resource: Resource, name: str, body: Mapping[str, Any]) -> None:
        """Create a cluster-scoped object, which is deleted after the test."""
        await self.harness.client.create(resource, {"metadata": {"name": name}, **body}, Object)
        self.objects_stack.push_async_callback(partial(self.harness.client.delete, resource, name))

    async def deploy(self, *workloads: str, **spec: Any) -> None:
        """Create the Deployments of workloads; keywords are fields of their pods' spec."""
        for name in workloads:
            body = make_deployment(
                name, name, replicas=REPLICAS, requests={"cpu": "500m"}, schedulerName=PROFILE, **spec
            )
            await self.harness.client.create(DEPLOYMENTS, body, Object, namespace=self.harness.namespace)

    async def patch_deployments(self, patch: Mapping[str, Any]) -> None:
        for name in CHAIN:
            await self.harness.client.patch(
                DEPLOYMENTS, name, patch, Object, patch_type=MERGE_PATCH, namespace=self.harness.namespace
            )

    async def list_active_pods(self) -> list[Pod]:
        return [pod for pod in await self.harness.list_pods() if pod.group and pod.is_active]

    async def list_pod_uids(self) -> frozenset[str]:
        return frozenset(pod.metadata.uid for pod in await self.list_active_pods())

    async def list_zones(self) -> dict[str, list[str]]:
        """Zones of each workload's pods."""
        zones: dict[str, list[str]] = {name: [] for name in CHAIN}
        for pod in await self.list_active_pods():
            zones[pod.workload].append(self.zone_by_node[pod.spec.node_name])
        return zones

    async def count_violations(self) -> int:
        """Pairs of a caller's and a callee's pod that exceed the maximum cost."""
        zones = await self.list_zones()
        zone_pairs = [(a, b) for caller, callee in pairwise(CHAIN) for a in zones[caller] for b in zones[callee]]
        return sum(COSTS.get(pair, 0) > MAX_COST for pair in zone_pairs)

    async def wait_until_placed(self, count: int = POD_COUNT, *, replaced_uids: frozenset[str] = frozenset()) -> None:
        """Wait until the group has this number of pods, all of them bound, and none with a replaced UID."""

        async def are_placed() -> bool:
            pods = await self.list_active_pods()
            return len(pods) == count and all(
                pod.spec.node_name and pod.metadata.uid not in replaced_uids for pod in pods
            )

        await poll_until(are_placed)
