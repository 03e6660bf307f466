"""In affinity mode, pods of a workload with different constraints each get the zone that fits them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from controller.cluster.pods import Pod
from controller.cluster.volumes import VOLUMES
from controller.scheduler.config import SchedulerConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import DEPLOYMENTS, PODS, STATEFUL_SETS, Object
from lab.polling import poll_until
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import (
    LONG_WAIT,
    PROFILE,
    Lead,
    MakeZones,
    Scheduling,
    Serve,
    create_group,
    create_pod,
    set_costs,
    wait_until_bound,
    workload_body,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(600)]

ZONE = "topology.kubernetes.io/zone"
FAR = {("a", "b"): 40, ("b", "a"): 40}


@asynccontextmanager
async def volume_in(client: Client, namespace: str, claim: str, zone: str) -> AsyncIterator[None]:
    """Create a volume of this zone that is reserved for a claim."""
    name = f"{claim}-{namespace}"
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": namespace, "name": claim},
        "hostPath": {"path": "/nothing"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    await client.create(VOLUMES, {"metadata": {"name": name}, "spec": spec}, Object)
    try:
        yield
    finally:
        await client.delete(VOLUMES, name)


@pytest.mark.parametrize("mode", ["extender", "affinity"])
async def test_a_pod_with_a_volume_in_another_zone_goes_there_and_the_others_stay_near(
    client: Client, namespace: str, scheduler: StartScheduler, extender: Serve, lead: Lead, mode: Any, zones: MakeZones
) -> None:
    """P2 of P1 is in zone a. The volume of one replica, not the first by name, is in zone b."""
    await zones("a", "b")
    await create_group(client, namespace, {"P1": {"P2": 50}, "P2": {}}, members=4)
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    stateful = workload_body("p1", "P1", replicas=3, schedulerName=PROFILE)
    stateful["spec"] |= {
        "serviceName": "p1",
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    config = SchedulerConfig(placement=mode, gates=LONG_WAIT)
    async with AsyncExitStack() as stack:
        for number, zone in enumerate("aba"):
            await stack.enter_async_context(volume_in(client, namespace, f"data-p1-{number}", zone))
        url = await stack.enter_async_context(extender(config))
        await stack.enter_async_context(lead(config))
        await scheduler(extender_url=url)
        await create_pod(client, namespace, "p2", group="a1", workload="P2", nodeName="n-a")
        await client.create(STATEFUL_SETS, stateful, Object, namespace=namespace)
        placed = await wait_until_bound(client, namespace, "p1-0", "p1-1", "p1-2")
    assert placed == {"p1-0": "n-a", "p1-1": "n-b", "p1-2": "n-a"}


async def test_new_replicas_of_a_rollout_follow_their_new_node_selector(
    client: Client, namespace: str, ready_node: MakeNode, scheduling: Scheduling
) -> None:
    """The old replicas get zone a, where P2 is; the new ones can run only in zone b."""
    await ready_node("n-a", zone="a", region="r")
    await ready_node("n-b", zone="b", region="r", labels={"pool": "db"})
    await set_costs(client, namespace, FAR)
    await create_group(client, namespace, {"P1": {"P2": 50}, "P2": {}}, members=4)
    deployment = workload_body("p1", "P1", replicas=3, labels={"netaware.io/placement": "affinity"})

    async def all_on(node: str) -> bool:
        pods = await client.list(PODS, Pod, namespace=namespace)
        return [pod.spec.node_name for pod in pods if pod.workload == "P1"] == [node] * 3

    async with scheduling(SchedulerConfig(gates=LONG_WAIT), with_extender=False):
        await create_pod(client, namespace, "p2", group="a1", workload="P2", nodeName="n-a")
        await client.create(DEPLOYMENTS, deployment, Object, namespace=namespace)
        await poll_until(lambda: all_on("n-a"))
        patch = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "db"}}}}}
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/p1"
        await client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        await poll_until(lambda: all_on("n-b"))
