"""Rollouts on the real kube-scheduler: what a plan gave a group is still there when every pod has been replaced."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import SchedulerConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import DEPLOYMENTS, PODS, Object
from tests.integration.conftest import MakeNode
from tests.integration.scheduler.conftest import PROFILE, Scheduling, create_group, set_costs, until

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(900), pytest.mark.slow]

ZONES = ("z0", "z1", "z2")
COSTS = {("z0", "z1"): 5, ("z1", "z2"): 5, ("z0", "z2"): 50}
WORKLOADS = ("w0", "w1", "w2", "w3")


def deployment(name: str) -> dict[str, Any]:
    labels = {APPGROUP_LABEL: "a1", WORKLOAD_LABEL: name}
    containers = [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "500m"}}}]
    spec = {"schedulerName": PROFILE, "terminationGracePeriodSeconds": 0, "containers": containers}
    template = {"metadata": {"labels": labels, "annotations": {"netaware.io/spread": "zone"}}, "spec": spec}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.mark.parametrize("mode", ["extender", "affinity"])
async def test_services_that_survive_a_zone_still_do_after_rollouts(
    client: Client, namespace: str, ready_node: MakeNode, mode: Any, scheduling: Scheduling
) -> None:
    zone_of = {f"n-{zone}-{i}": zone for zone in ZONES for i in range(3)}
    for name, zone in zone_of.items():
        await ready_node(name, zone=zone, region="r", capacity={"cpu": "4"})
    await set_costs(client, namespace, {**COSTS, **{(b, a): cost for (a, b), cost in COSTS.items()}})
    await create_group(
        client,
        namespace,
        {a: [(b, 10)] for a, b in pairwise(WORKLOADS)} | {"w3": []},
        members=8,
    )
    config = SchedulerConfig(placement=mode)

    async def settled(round_: str) -> bool:
        pods = [pod for pod in await client.list(PODS, GroupPod, namespace=namespace) if not pod.over]
        return len(pods) == 8 and all(pod.ready and pod.metadata.annotation("round") == round_ for pod in pods)

    async def in_one_zone() -> list[str]:
        zones: dict[str, set[str]] = {}
        for pod in await client.list(PODS, GroupPod, namespace=namespace):
            zones.setdefault(pod.workload, set()).add(zone_of[pod.spec.node_name])
        return sorted(workload for workload, where in zones.items() if len(where) == 1)

    async with scheduling(config):
        for name in WORKLOADS:
            await client.create(DEPLOYMENTS, deployment(name), Object, namespace=namespace)
        await until(lambda: settled(""))
        assert await in_one_zone() == []
        for round_ in ("1", "2", "3"):
            for name in WORKLOADS:
                patch = {"spec": {"template": {"metadata": {"annotations": {"round": round_}}}}}
                path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
                await client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
            await until(lambda round_=round_: settled(round_))  # type: ignore[misc]
            assert await in_one_zone() == []
