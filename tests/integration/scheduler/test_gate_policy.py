"""The shipped admission policy gates pods of AppGroups, and refuses gates without a group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.cluster.pods import GATE
from kubekit.errors import ApiError
from kubekit.wire import NAMESPACES, Object
from lab.polling import poll_until
from tests.integration.scheduler.harness import SchedulerHarness

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(600)]

OPT_IN = {"netaware.io/placement": "affinity"}
OPT_OUT = {"netaware.io/placement": "extender"}
IN_GROUP: dict[str, Any] = {"group": "g", "workload": "A"}
FOR_DEFAULT_SCHEDULER: dict[str, Any] = {"scheduler": "default-scheduler"}


async def create_ungrouped_pods(harness: SchedulerHarness) -> None:
    """Create pods with our gate and without a group for a minute; the API server applies a new policy after a while."""
    for number in range(120):
        await harness.create_pod(f"ungrouped-{number}", schedulingGates=[{"name": GATE}])
        await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("options", "is_gated"),
    [
        pytest.param(IN_GROUP | FOR_DEFAULT_SCHEDULER | {"labels": OPT_IN}, True, id="opted-in"),
        pytest.param(IN_GROUP | FOR_DEFAULT_SCHEDULER, False, id="default-scheduler"),
        pytest.param(FOR_DEFAULT_SCHEDULER | {"labels": OPT_IN}, False, id="no-group-opted-in"),
    ],
)
async def test_pods_of_the_default_scheduler_are_gated_if_they_have_a_group_and_opt_in(
    harness: SchedulerHarness, options: dict[str, Any], *, is_gated: bool
) -> None:
    assert (await harness.create_pod("p", **options)).is_gated == is_gated


async def test_a_namespaces_label_holds_for_pods_without_their_own(harness: SchedulerHarness) -> None:
    await harness.client.patch(NAMESPACES, harness.namespace, {"metadata": {"labels": OPT_IN}}, Object)

    async def is_new_pod_gated() -> bool:
        pod = await harness.create_pod("opted-in", **IN_GROUP, **FOR_DEFAULT_SCHEDULER)
        await harness.delete_pod("opted-in")
        return pod.is_gated

    await poll_until(is_new_pod_gated)  # admission reads namespaces from a cache
    opted_out = await harness.create_pod("opted-out", labels=OPT_OUT, **IN_GROUP, **FOR_DEFAULT_SCHEDULER)
    assert not opted_out.is_gated


async def test_a_pods_other_gates_are_kept(harness: SchedulerHarness) -> None:
    foreign_gate = "example.com/mine"
    pod = await harness.create_pod("p", **IN_GROUP, schedulingGates=[{"name": foreign_gate}])
    assert {gate.name for gate in pod.spec.scheduling_gates or ()} == {GATE, foreign_gate}


async def test_a_gate_without_a_group_is_refused_with_a_reason(harness: SchedulerHarness) -> None:
    reason = r"add the label appgroup.diktyo.x-k8s.io with the AppGroup's name"
    with pytest.raises(ApiError, match=reason) as refusal:
        await create_ungrouped_pods(harness)
    assert refusal.value.status == 422
