"""In affinity mode a pod whose node affinity becomes stale after its release is bound in time, by the stock scheduler."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controller.cluster.pods import Pod
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.retries import REPLACE_AFTER_S
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, NODES, PODS, Object
from lab.polling import poll_until
from tests.integration.conftest import StartScheduler
from tests.integration.scheduler.conftest import (
    Lead,
    MakeZones,
    cordon,
    create_group,
    create_pod,
    set_costs,
    workload_body,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(600)]

BOUND_S = REPLACE_AFTER_S + 20.0
"""The wait before a pod is replaced, and what its owner, the plan and two attempts of the scheduler take on a busy machine."""
OPT_IN = {"netaware.io/placement": "affinity"}


async def delete_node(client: Client, _: str) -> None:
    await client.delete(NODES, "n-a")


async def fill_zone(client: Client, namespace: str) -> None:
    await create_pod(client, namespace, "intruder", requests={"cpu": "6"}, nodeName="n-a")


async def change_costs(client: Client, namespace: str) -> None:
    await cordon(client, "n-a")
    await set_costs(client, namespace, {("a", "b"): 5, ("b", "a"): 5})


async def create_deployment(client: Client, namespace: str) -> None:
    body = workload_body("a", "A", labels=OPT_IN, requests={"cpu": "3"})
    await client.create(DEPLOYMENTS, body, Object, namespace=namespace)


async def create_pod_without_owner(client: Client, namespace: str) -> None:
    fields: dict[str, Any] = {"scheduler": "default-scheduler", "labels": OPT_IN, "requests": {"cpu": "3"}}
    await create_pod(client, namespace, "a", group="a1", workload="A", **fields)


@pytest.mark.parametrize(
    ("happens", "create", "replaced"),
    [
        (fill_zone, create_deployment, True),
        pytest.param(delete_node, create_deployment, True, marks=pytest.mark.slow),
        pytest.param(change_costs, create_deployment, True, marks=pytest.mark.slow),
        pytest.param(fill_zone, create_pod_without_owner, False, marks=pytest.mark.slow),
    ],
)
async def test_a_pod_with_stale_node_affinity_is_bound_in_time(
    client: Client,
    namespace: str,
    zones: MakeZones,
    scheduler: StartScheduler,
    lead: Lead,
    record_property: Callable[[str, object], None],
    happens: Callable[[Client, str], Awaitable[None]],
    create: Callable[[Client, str], Awaitable[None]],
    *,
    replaced: bool,
) -> None:
    """A pod with an owner is replaced. A pod without an owner is not, so it gets no required terms."""
    await zones("a", "b", capacity={"cpu": "8"})
    await create_group(client, namespace, {"A": {"B": 10}, "B": {}})

    async def pods() -> list[Pod]:
        return [pod for pod in await client.list(PODS, Pod, namespace=namespace) if pod.workload == "A"]

    async def released() -> bool:
        return any(not pod.is_gated for pod in await pods())

    async def bound() -> bool:
        return any(pod.spec.node_name == "n-b" for pod in await pods())

    async with lead(SchedulerConfig(placement="affinity")):
        await create_pod(client, namespace, "b", group="a1", workload="B", nodeName="n-a", requests={"cpu": "1"})
        await create(client, namespace)
        await poll_until(released)
        (frozen,) = await pods()
        assert bool(frozen.metadata.annotation(NARROWED_ANNOTATION)) == replaced
        await happens(client, namespace)
        began = time.monotonic()
        await scheduler()
        await poll_until(bound)
        took_s = time.monotonic() - began
        (placed,) = [pod for pod in await pods() if pod.spec.node_name]
    record_property("seconds", round(took_s, 1))
    assert (placed.metadata.uid != frozen.metadata.uid) == replaced
    assert took_s < (BOUND_S if replaced else BOUND_S - REPLACE_AFTER_S)
