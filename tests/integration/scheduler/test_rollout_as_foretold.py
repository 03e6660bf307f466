"""A rollout of the Online Boutique by the real kube-scheduler, extender and leader ends where `propose` foretells it.

Old pods carry no label of ours, as before a proposal is applied; the test does what the Deployments' controller would.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest

from controller.cluster.costs import CostTable
from controller.cluster.graph import build_graph
from controller.cluster.hosts import host_of
from controller.cluster.pods import GroupPod, GroupPodSpec
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, SERVICES, WORKLOAD_LABEL, AppGroup
from controller.cluster.services import Service
from controller.groups.order import order
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.planner import GroupSnapshot
from controller.scheduler.rollout import OldPod, Rolled, roll_out
from controller.traffic.placed import GroupTraffic, crossing_of
from kubekit.client import Client
from kubekit.wire import NODES, PODS, Node, ObjectMeta
from lab import boutique
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import (
    PATIENT,
    Lead,
    Serve,
    create_pod,
    set_costs,
    until_bound,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(900)]

COSTS = {("a", "b"): 20, ("a", "c"): 30, ("b", "c"): 40}
ZONES = ("a", "b", "c")
OTHERS = {"a": 150, "b": 320, "c": 220}
"""Millicores of pods that are nobody's here."""
ASKS = {"cpu": 100, "pods": 1}
ALL_KNOWN = msgspec.structs.replace(PATIENT, settle_s=5.0)
"""Pods that are rolled out at once are planned at once, however long a busy machine takes to create them."""
APPLICATION = boutique.load(scheduler="network-aware-scheduler", cpu="100m")
WORKLOADS = list(APPLICATION.deployments)
CALLS = [(call.origin, call.destination) for call in APPLICATION.dependencies]


async def create_application(client: Client, namespace: str) -> tuple[AppGroup, list[Service]]:
    """The AppGroup and its Services, as `propose` would leave them."""

    def reference(name: str) -> dict[str, str]:
        return {"kind": "Deployment", "name": name, "selector": name}

    workloads = [
        {
            "workload": reference(name),
            "dependencies": [
                {"workload": reference(called), "minBandwidth": "700k", "maxNetworkCost": 40}
                for caller, called in CALLS
                if caller == name
            ],
        }
        for name in WORKLOADS
    ]
    body = {
        "apiVersion": APPGROUPS.api_version,
        "kind": APPGROUPS.kind,
        "metadata": {"name": "shop", "annotations": {"netaware.io/spread": "zone"}},
        "spec": {"numMembers": 22, "topologySortingAlgorithm": "KahnSort", "workloads": workloads},
    }
    group = await client.create(APPGROUPS, body, AppGroup, namespace=namespace)
    services = []
    for name in WORKLOADS:
        spec = {"selector": {"app": name}, "ports": [{"port": 80}], "trafficDistribution": "PreferSameZone"}
        services.append(
            await client.create(SERVICES, {"metadata": {"name": name}, "spec": spec}, Service, namespace=namespace)
        )
    return group, services


class Rollout:
    """What the Deployments' controller does with two replicas: one new pod more, one old pod less, twice."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        spots = [f"n-{ZONES[number % 3]}" for number in range(2 * len(WORKLOADS))]
        self.old = {name: [spots.pop() for _ in range(2)] for name in WORKLOADS}

    async def begin(self) -> None:
        for zone, cpu in OTHERS.items():
            await self._create(f"other-{zone}", requests={"cpu": f"{cpu}m"}, nodeName=f"n-{zone}")
        for name, nodes in self.old.items():
            for number, node in enumerate(nodes):
                labels = {"app": name}
                await self._create(f"{name}-old{number}", labels=labels, requests={"cpu": "100m"}, nodeName=node)

    async def roll(self, name: str) -> None:
        for number in range(2):
            new: dict[str, Any] = {"group": "shop", "workload": name, "labels": {"app": name}}
            await self._create(f"{name}-new{number}", requests={"cpu": "100m"}, **new)
            await until_bound(self._client, self._namespace, f"{name}-new{number}")
            await self._client.delete(PODS, f"{name}-old{number}", namespace=self._namespace, grace_period_s=0)

    async def _create(self, name: str, **fields: Any) -> None:
        await create_pod(self._client, self._namespace, name, **fields)


def crossing(nodes: dict[str, str]) -> float:
    """Share of the calls that leave their zone; ``nodes`` are by the pods' names."""
    placed: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for pod, node in nodes.items():
        placed[pod.rpartition("-")[0]]["r", node.rpartition("-")[2]] += 1
    traffic = GroupTraffic(dict.fromkeys(CALLS, 1.0), measured=True, near=frozenset(WORKLOADS))
    return crossing_of(traffic, placed) / len(CALLS)


def foretold(
    group: AppGroup,
    services: list[Service],
    nodes: list[Node],
    costs: CostTable,
    old: dict[str, list[str]],
    turns: list[str],
    *,
    one_by_one: bool,
) -> list[float]:
    """Shares that `propose` would tell, one per draw."""

    def new(name: str, number: int) -> GroupPod:
        labels = {"app": name, APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name}
        spec = APPLICATION.deployments[name]["spec"]["template"]["spec"]
        metadata = ObjectMeta(name=f"{name}-new{number}", namespace=group.metadata.namespace, labels=labels)
        return GroupPod(metadata, msgspec.convert(spec, GroupPodSpec))

    start = GroupSnapshot(
        graph=build_graph(group.spec),
        pods=(),
        replicas={},
        costs=costs,
        hosts={node.metadata.name: host_of(node) for node in nodes},
        used={f"n-{zone}": {"cpu": cpu, "pods": 1} for zone, cpu in OTHERS.items()},
        group=group,
        services=services,
    )
    rolled = [
        Rolled(name, [new(name, i) for i in range(2)], [OldPod(node, ASKS) for node in old[name]], 1, 0)
        for name in turns
    ]
    ends = roll_out(start, rolled, one_by_one=one_by_one, draws=2, longest_s=600.0)
    return [crossing({key.partition("/")[2]: node for key, node in end.nodes.items()}) for end in ends]


@pytest.mark.parametrize(("cpu", "one_by_one"), [("2", True), ("16", False)])
async def test_a_rollout_ends_as_foretold(
    client: Client,
    namespace: str,
    ready_node: MakeNode,
    scheduler: StartScheduler,
    extender: Serve,
    lead: Lead,
    *,
    cpu: str,
    one_by_one: bool,
) -> None:
    for zone in ZONES:
        await ready_node(f"n-{zone}", zone=zone, region="r", capacity={"cpu": cpu, "memory": "16Gi", "pods": "110"})
    topology = await set_costs(client, namespace, COSTS | {(b, a): cost for (a, b), cost in COSTS.items()})
    rollout = Rollout(client, namespace)
    await rollout.begin()
    group, services = await create_application(client, namespace)
    graph = build_graph(group.spec)
    turns = [graph.selectors[position] for position in order(graph.children, "KahnSort").sequence]
    config = SchedulerConfig(gates=PATIENT if one_by_one else ALL_KNOWN)
    async with extender(config) as url, lead(config):
        await scheduler(extender_url=url)
        if one_by_one:
            for name in turns:
                await rollout.roll(name)
        else:
            await asyncio.gather(*(rollout.roll(name) for name in WORKLOADS))
        placed = await until_bound(client, namespace)
    nodes = {pod: node for pod, node in placed.items() if pod.partition("-new")[1]}
    assert len(nodes) == 2 * len(WORKLOADS)
    zones = {name: {nodes[f"{name}-new{number}"] for number in range(2)} for name in WORKLOADS}
    assert {len(found) for found in zones.values()} == {2}
    costs = CostTable(topology.weight("UserDefined"))
    listed = [node for node in await client.list(NODES, Node) if node.metadata.name in {f"n-{zone}" for zone in ZONES}]
    told = foretold(group, services, listed, costs, rollout.old, turns, one_by_one=one_by_one)
    assert told == [0.0, 0.0]
    assert crossing(nodes) == 0.0, nodes
