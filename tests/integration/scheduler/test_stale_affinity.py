"""In affinity mode a pod whose node affinity becomes stale after its release is bound in time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controller.cluster.pods import Pod
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.retries import REPLACE_AFTER_S
from kubekit.wire import DEPLOYMENTS, Object
from lab.polling import poll_until
from tests.integration.scheduler.harness import SchedulerHarness, make_deployment

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(600)]

MAX_BINDING_S = 20.0
"""What owner, plan and two attempts of the scheduler take on a busy machine."""
OPT_IN = {"netaware.io/placement": "affinity"}


async def create_deployment(harness: SchedulerHarness) -> None:
    body = make_deployment("a", "A", labels=OPT_IN, requests={"cpu": "3"})
    await harness.client.create(DEPLOYMENTS, body, Object, namespace=harness.namespace)


async def create_pod_without_owner(harness: SchedulerHarness) -> None:
    fields: dict[str, Any] = {"scheduler": "default-scheduler", "labels": OPT_IN, "requests": {"cpu": "3"}}
    await harness.create_pod("a", group="a1", workload="A", **fields)


async def list_callers(harness: SchedulerHarness) -> list[Pod]:
    """Pods of workload A, which calls B."""
    return [pod for pod in await harness.list_pods() if pod.workload == "A"]


@pytest.mark.parametrize(
    ("create_caller", "is_replaced"),
    [
        (create_deployment, True),
        pytest.param(create_pod_without_owner, False, marks=pytest.mark.slow),
    ],
)
async def test_a_pod_with_stale_node_affinity_is_bound_in_time(
    harness: SchedulerHarness,
    record_property: Callable[[str, object], None],
    create_caller: Callable[[SchedulerHarness], Awaitable[object]],
    *,
    is_replaced: bool,
) -> None:
    """A pod with an owner is replaced after `REPLACE_AFTER_S`. A pod without one is not, so it gets no required terms.

    The duration is asserted, because the wait is the behaviour.
    """
    await harness.create_zones("a", "b", capacity={"cpu": "8"})
    await harness.create_group({"A": {"B": 10}, "B": {}})

    async def is_released() -> bool:
        return any(not pod.is_gated for pod in await list_callers(harness))

    async def find_bound() -> list[Pod]:
        return [pod for pod in await list_callers(harness) if pod.spec.node_name == "n-b"]

    async with harness.run_gating_controller(SchedulerConfig(placement="affinity")):
        await harness.create_pod("b", group="a1", workload="B", nodeName="n-a", requests={"cpu": "1"})
        await create_caller(harness)
        await poll_until(is_released)
        (stale_pod,) = await list_callers(harness)
        assert bool(stale_pod.metadata.annotation(NARROWED_ANNOTATION)) == is_replaced

        # With the callee's, 7 of the 8 cpu of the planned node are used now, so that a pod of 3 cpu does not fit.
        await harness.create_pod("intruder", requests={"cpu": "6"}, nodeName="n-a")
        began_s = time.monotonic()
        await harness.start_scheduler()
        (bound_pod,) = await poll_until(find_bound)
        binding_s = time.monotonic() - began_s

    record_property("seconds", round(binding_s, 1))
    assert (bound_pod.metadata.uid != stale_pod.metadata.uid) == is_replaced
    assert binding_s < MAX_BINDING_S + (REPLACE_AFTER_S if is_replaced else 0)
