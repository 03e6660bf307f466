"""kube-scheduler binds pods as planned, also if zones are small or volumes are in other zones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from controller.cluster.pods import PlacementMode, target_of
from controller.cluster.volumes import VOLUMES
from controller.scheduler.config import SchedulerConfig
from kubekit.wire import STATEFUL_SETS, Object
from netperf.contract import ZONE_LABEL
from tests.integration.scheduler.harness import LONG_WAIT, PROFILE, SchedulerHarness, make_deployment
from tests.support.bodies import make_symmetric_costs

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(600)]

COSTS_WITH_B_FAR_AWAY = make_symmetric_costs({("a", "b"): 40, ("a", "c"): 5, ("b", "c"): 40})


@asynccontextmanager
async def reserve_volume(harness: SchedulerHarness, claim: str, zone: str) -> AsyncIterator[None]:
    """Create a volume of this zone that is reserved for a claim, during the block."""
    name = f"{claim}-{harness.namespace}"
    terms = [{"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}]
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": harness.namespace, "name": claim},
        "hostPath": {"path": "/nothing"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    await harness.client.create(VOLUMES, {"metadata": {"name": name}, "spec": spec}, Object)
    try:
        yield
    finally:
        await harness.client.delete(VOLUMES, name)


@pytest.mark.parametrize("mode", ["extender", "affinity"])
async def test_a_group_that_needs_two_zones_is_split_where_it_costs_least(
    harness: SchedulerHarness, mode: PlacementMode
) -> None:
    """Two chains of two pods, two pods per node. Z has a limit of 30 to X, so no chain is in b; a and c get one each."""
    await harness.create_zones("a", "b", "c", capacity={"cpu": "2"}, costs=COSTS_WITH_B_FAR_AWAY)
    await harness.create_group({"W": {"X": 10}, "X": {}, "Y": {"Z": 10}, "Z": {"X": 30}})
    async with harness.run_scheduling(SchedulerConfig(placement=mode)):
        for workload in "WXYZ":
            await harness.create_pod(workload.lower(), group="a1", workload=workload, requests={"cpu": "1"})
        node_by_pod = await harness.wait_until_bound("w", "x", "y", "z")
        assert node_by_pod["w"] == node_by_pod["x"]
        assert node_by_pod["y"] == node_by_pod["z"]
        assert {node_by_pod["w"], node_by_pod["y"]} == {"n-a", "n-c"}

        pod = await harness.read_pod("w")
        target = target_of(pod)
        assert target is not None
        assert target.node == node_by_pod["w"]
        has_affinity = pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None
        assert has_affinity == (mode == "affinity")
        message = await harness.wait_for_event("w", "NetworkPlacement")
        assert f"on {node_by_pod['w']} as planned with its group" in message


@pytest.mark.parametrize("mode", ["extender", "affinity"])
async def test_a_pod_with_a_volume_in_another_zone_goes_there_and_the_others_stay_near(
    harness: SchedulerHarness, mode: PlacementMode
) -> None:
    """P2 of P1 is in zone a. The volume of one replica, not the first by name, is in zone b."""
    await harness.create_zones("a", "b")
    await harness.create_group({"P1": {"P2": 50}, "P2": {}}, members=4)
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    stateful_set = make_deployment("p1", "P1", replicas=3, schedulerName=PROFILE)
    stateful_set["spec"] |= {
        "serviceName": "p1",
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    async with AsyncExitStack() as stack:
        for number, zone in enumerate("aba"):
            await stack.enter_async_context(reserve_volume(harness, f"data-p1-{number}", zone))
        await stack.enter_async_context(harness.run_scheduling(SchedulerConfig(placement=mode, gates=LONG_WAIT)))
        await harness.create_pod("p2", group="a1", workload="P2", nodeName="n-a")
        await harness.client.create(STATEFUL_SETS, stateful_set, Object, namespace=harness.namespace)
        node_by_pod = await harness.wait_until_bound("p1-0", "p1-1", "p1-2")
    assert node_by_pod == {"p1-0": "n-a", "p1-1": "n-b", "p1-2": "n-a"}
