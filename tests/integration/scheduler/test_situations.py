"""In every situation all pods of a group that fit are bound, by a real kube-scheduler in both modes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from controller.cluster.pods import PlacementMode, Pod
from controller.scheduler.config import GatesConfig, SchedulerConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import DEPLOYMENTS, PODS, Object, Resource
from lab.polling import poll_until
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import (
    PROFILE,
    Lead,
    Serve,
    cordon,
    create_group,
    create_pod,
    set_costs,
    wait_until_bound,
    workload_body,
)
from tests.support.bodies import make_symmetric_costs

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(900), pytest.mark.slow]

ZONE = "topology.kubernetes.io/zone"
ZONES = ("z0", "z1", "z2")
BOTH_WAYS = make_symmetric_costs({("z0", "z1"): 5, ("z1", "z2"): 5, ("z0", "z2"): 50})
CHAIN = ("web", "m", "db")
LIMIT, REPLICAS = 10, 2
FOREIGN_GATE = "example.com/gate"
SHORT_WAIT = GatesConfig(max_wait_s=5, missing_workload_timeout_s=1)
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", is_namespaced=False)
DRA = "resource.k8s.io"
SLICES = Resource(DRA, "v1", "resourceslices", "ResourceSlice", is_namespaced=False)
DEVICE_CLASSES = Resource(DRA, "v1", "deviceclasses", "DeviceClass", is_namespaced=False)
CLAIM_TEMPLATES = Resource(DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate")


class Stage:
    """Nine nodes of 4 cpu in three zones, a group web -> m -> db, and the programs that place its pods."""

    def __init__(self, client: Client, namespace: str, placement: PlacementMode, lead: Lead, *, zoned: bool) -> None:
        self.client, self.namespace, self.lead = client, namespace, lead
        self.config = SchedulerConfig(placement=placement)
        self.leader, self.extender, self.objects = AsyncExitStack(), AsyncExitStack(), AsyncExitStack()
        self.zone_of = {f"n-{zone}-{i}": zone if zoned else "" for zone in ZONES for i in range(3)}

    async def restart_leader(self, config: SchedulerConfig | None = None) -> None:
        await self.leader.aclose()
        await self.leader.enter_async_context(self.lead(config or self.config))

    async def create_object(self, resource: Resource, name: str, body: Mapping[str, Any]) -> None:
        """Create an object of the cluster, which is deleted after the test."""
        await self.client.create(resource, {"metadata": {"name": name}, **body}, Object)

        async def remove() -> None:
            await self.client.delete(resource, name)

        self.objects.push_async_callback(remove)

    async def deploy(self, *names: str, **spec: Any) -> None:
        for name in names:
            body = workload_body(name, name, replicas=REPLICAS, requests={"cpu": "500m"}, schedulerName=PROFILE, **spec)
            await self.client.create(DEPLOYMENTS, body, Object, namespace=self.namespace)

    async def change_all(self, body: Mapping[str, Any]) -> None:
        for name in CHAIN:
            path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}"
            await self.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def active_pods(self) -> list[Pod]:
        return [p for p in await self.client.list(PODS, Pod, namespace=self.namespace) if p.group and p.is_active]

    async def has_active_pods(self, count: int) -> bool:
        return len(await self.active_pods()) == count

    async def delete_all(self) -> None:
        for pod in await self.active_pods():
            await self.client.delete(PODS, pod.metadata.name, namespace=self.namespace, grace_period_s=0)

    async def wait_until_placed(
        self, count: int = REPLICAS * len(CHAIN), *, other_than: frozenset[str] = frozenset()
    ) -> None:
        """Wait until the group has this number of pods, all of them bound, and none with one of these UIDs."""

        async def placed() -> bool:
            pods = await self.active_pods()
            return len(pods) == count and all(p.spec.node_name and p.metadata.uid not in other_than for p in pods)

        await poll_until(placed)

    async def pod_uids(self) -> frozenset[str]:
        return frozenset(pod.metadata.uid for pod in await self.active_pods())

    async def zones(self) -> dict[str, list[str]]:
        """Workload -> zones of its pods."""
        zones: dict[str, list[str]] = {name: [] for name in CHAIN}
        for pod in await self.active_pods():
            zones[pod.workload].append(self.zone_of[pod.spec.node_name])
        return zones

    async def count_violations(self) -> int:
        """Pairs of caller and callee that exceed their limit."""
        zones = await self.zones()
        pairs = [(a, b) for caller, called in pairwise(CHAIN) for a in zones[caller] for b in zones[called]]
        return sum(BOTH_WAYS.get(pair, 0) > LIMIT for pair in pairs)


async def recreate(stage: Stage) -> None:
    before = await stage.pod_uids()
    await stage.delete_all()
    await stage.wait_until_placed(other_than=before)


async def roll_out(stage: Stage, number: str = "1") -> None:
    before = await stage.pod_uids()
    await stage.change_all({"spec": {"template": {"metadata": {"annotations": {"round": number}}}}})
    await stage.wait_until_placed(other_than=before)


async def scale(stage: Stage) -> None:
    await stage.change_all({"spec": {"replicas": 3 * REPLICAS}})
    await stage.wait_until_placed(3 * REPLICAS * len(CHAIN))


async def cordoned(stage: Stage) -> None:
    for node, zone in stage.zone_of.items():
        if zone == "z0":
            await cordon(stage.client, node)
    await recreate(stage)


async def other_gates(stage: Stage) -> None:
    await stage.restart_leader(SchedulerConfig(placement=stage.config.placement, gates=SHORT_WAIT))
    await stage.deploy(*CHAIN, schedulingGates=[{"name": FOREIGN_GATE}])
    await poll_until(lambda: stage.has_active_pods(REPLICAS * len(CHAIN)))
    await asyncio.sleep(SHORT_WAIT.max_wait_s + 1)
    for pod in await stage.active_pods():
        assert pod.is_gated, "our gate waits for the other gate"
        gates = [{"name": gate.name} for gate in pod.spec.scheduling_gates or () if gate.name != FOREIGN_GATE]
        path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod.metadata.name}"
        await stage.client.request("PATCH", path, body={"spec": {"schedulingGates": gates}}, content_type=MERGE_PATCH)
    await stage.wait_until_placed()


async def preempting(stage: Stage) -> None:
    """All capacity is used by pods of lower priority."""
    high = f"high-{stage.namespace}"
    await stage.create_object(PRIORITIES, high, {"value": 1000})
    for node in stage.zone_of:
        for i in range(4):
            await create_pod(
                stage.client, stage.namespace, f"low-{node}-{i}", requests={"cpu": "1"}, scheduler="default-scheduler"
            )
    await wait_until_bound(stage.client, stage.namespace)
    await stage.deploy(*CHAIN, priorityClassName=high)
    await stage.wait_until_placed()


async def foreign_affinity(stage: Stage) -> None:
    """Pods with which m must not share a zone are in z1 and z2, so db would otherwise go to z2."""
    for node in ("n-z1-0", "n-z2-0"):
        await create_pod(stage.client, stage.namespace, f"noisy-{node}", labels={"app": "noisy"}, nodeName=node)
    term = {"labelSelector": {"matchLabels": {"app": "noisy"}}, "topologyKey": ZONE}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    await stage.deploy("m", affinity={"podAntiAffinity": required})
    await stage.deploy("web", "db")
    await stage.wait_until_placed()


async def devices(stage: Stage) -> None:
    """Each pod of m needs a device of z1, by dynamic resource allocation, which plans ignore."""
    name = f"{stage.namespace}.example"
    await stage.create_object(
        DEVICE_CLASSES, name, {"spec": {"selectors": [{"cel": {"expression": f"device.driver == '{name}'"}}]}}
    )
    for node in ("n-z1-0", "n-z1-1"):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": name, "nodeName": node, "pool": pool, "devices": [{"name": "one"}]}
        await stage.create_object(SLICES, f"{stage.namespace}-{node}", {"spec": spec})
    request = {"name": "one", "exactly": {"deviceClassName": name}}
    body = {"metadata": {"name": "device"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await stage.client.create(CLAIM_TEMPLATES, body, Object, namespace=stage.namespace)
    await stage.deploy("web", "db")
    await stage.deploy("m", resourceClaims=[{"name": "one", "resourceClaimTemplateName": "device"}])
    await stage.wait_until_placed()


async def kill_leader(stage: Stage) -> None:
    await stage.deploy(*CHAIN)
    await poll_until(lambda: _any_bound(stage))
    await stage.restart_leader()
    await stage.wait_until_placed()


async def _any_bound(stage: Stage) -> bool:
    return any(pod.spec.node_name for pod in await stage.active_pods())


async def spread(stage: Stage) -> None:
    """Services that must span zones still do after rollouts."""
    await stage.deploy(*CHAIN, annotations={"netaware.io/spread": "zone"})
    await stage.wait_until_placed()
    for number in ("1", "2", "3"):
        await roll_out(stage, number)
        assert [name for name, zones in (await stage.zones()).items() if len(set(zones)) == 1] == []


async def unlabelled(stage: Stage) -> None:
    await roll_out(stage)
    await scale(stage)


Situation = Callable[[Stage], Awaitable[None]]
WITH_PLACED_GROUP: tuple[Situation, ...] = (recreate, roll_out, scale, cordoned, unlabelled)
"""Situations that begin after the group is placed."""
WITHOUT_GROUP_PODS: tuple[Situation, ...] = (
    other_gates,
    preempting,
    foreign_affinity,
    devices,
    kill_leader,
    spread,
)
MAY_PLACE_BY_RULE: tuple[Situation, ...] = (devices, kill_leader)
"""Situations in which a pod may be placed without a plan."""


@pytest_asyncio.fixture
async def stage(
    request: pytest.FixtureRequest,
    client: Client,
    namespace: str,
    ready_node: MakeNode,
    scheduler: StartScheduler,
    extender: Serve,
    lead: Lead,
) -> AsyncIterator[Stage]:
    placement, situation = request.param
    new_stage = Stage(client, namespace, placement, lead, zoned=situation is not unlabelled)
    for node, zone in new_stage.zone_of.items():
        await ready_node(node, zone=zone, region="r" if zone else "", capacity={"cpu": "4"})
    await set_costs(client, namespace, BOTH_WAYS)
    calls: dict[str, dict[str, int]] = {a: {b: LIMIT} for a, b in pairwise(CHAIN)} | {CHAIN[-1]: {}}
    await create_group(client, namespace, calls, members=REPLICAS * len(CHAIN), algorithm="ReverseKahn")
    async with new_stage.objects, new_stage.extender, new_stage.leader:
        await scheduler(extender_url=await new_stage.extender.enter_async_context(extender(new_stage.config)))
        await new_stage.restart_leader()
        if situation in WITH_PLACED_GROUP:
            await new_stage.deploy(*CHAIN)
            await new_stage.wait_until_placed()
        yield new_stage


@pytest.mark.parametrize(
    ("stage", "situation"),
    [
        pytest.param((placement, situation), situation, id=f"{situation.__name__}-{placement}")
        for situation in (*WITH_PLACED_GROUP, *WITHOUT_GROUP_PODS)
        for placement in ("extender", "affinity")
    ],
    indirect=["stage"],
)
async def test_all_pods_that_fit_are_bound(
    stage: Stage, situation: Situation, record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    await situation(stage)
    record_property("seconds", round(time.monotonic() - began, 1))
    violated = await stage.count_violations()
    record_property("violated", violated)
    assert situation in MAY_PLACE_BY_RULE or violated == 0
