"""Failed writes to pods: they stop no other write, and leave reservations and permissions as they were."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.pods import GATE, Pod
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from controller.scheduler.gating.group_pods import GroupPods
from controller.scheduler.gating.pod_updater import PodUpdater, gather_in_batches, may_delete_pods
from controller.scheduler.gating.release import Release
from controller.scheduler.gating.retries import UnschedulablePods
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError
from kubekit.reflector import Reflector
from kubekit.wire import PODS, ObjectMeta
from lab.polling import poll_until
from tests.unit.controller.components import SilentEventRecorder, fill_store
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod


class UnavailableClient:
    """A client of an API server that answers every request with the same error."""

    def __init__(self, status: int) -> None:
        self._error = ApiError(status, "Failed", "no")

    async def patch(self, *_: object, **__: object) -> None:
        raise self._error

    create = patch


class DenyingClient:
    """A client of an API server that denies all rights."""

    async def create(self, _resource: object, _body: object, type_: type[Any]) -> Any:
        return msgspec.convert({"status": {"allowed": False}}, type_)


class RestrictedClient:
    """A client of an API server whose admission policy forbids annotations, with the patches that it accepted."""

    def __init__(self) -> None:
        self.accepted_specs: list[dict[str, Any]] = []

    async def patch(self, *request: Any, **_: object) -> Pod:
        _, name, patch, _ = request
        if "annotations" in patch["metadata"]:
            raise ApiError(422, "Invalid", "not here")
        self.accepted_specs.append(patch["spec"])
        return Pod(ObjectMeta(name=name, namespace="d"))


def make_updater(cluster: PlanningCluster, client: Client) -> PodUpdater:
    """An updater of the cluster's pods that writes with this client."""
    store: Reflector[Pod] = Reflector(client, PODS, Pod)
    fill_store(store, cluster.pods.values())
    return PodUpdater(
        client,
        GroupPods(store, cluster.state, lambda: cluster.now_s),
        PlanInputs(cluster.state, cluster.node_cache, cluster.volumes, None, None),
        UnschedulablePods(SchedulerConfig()),
        cluster.plans.reservations,
        config=SchedulerConfig(),
        metrics=GateMetrics(CollectorRegistry()),
        recorder=SilentEventRecorder(),
    )


@pytest.mark.parametrize("last_known", [True, False])
async def test_the_permission_to_delete_pods_stays_while_the_api_server_is_away(*, last_known: bool) -> None:
    client = cast("Client", UnavailableClient(503))
    assert await may_delete_pods(client, last_known=last_known) == last_known


async def test_a_leader_requires_no_zone_of_pods_that_it_may_not_delete() -> None:
    """`test_scheduler_retries` has the rest of the rule."""
    client = cast("Client", DenyingClient())
    cache = ClusterCache(client, "netaware-system")
    cache.pods.ready.set()
    controller = GatingController(client, cache, SchedulerConfig(), SilentEventRecorder(), CollectorRegistry())
    leader = asyncio.create_task(controller.run())
    await poll_until(lambda: not controller._unschedulable_pods.may_delete, timeout_s=10.0)
    leader.cancel()


@pytest.mark.parametrize("status", [409, 500])
async def test_a_pod_whose_gate_stays_closed_counts_as_gated(status: int) -> None:
    cluster, client = make_cluster_with_one_pod(hosts=1), cast("Client", UnavailableClient(status))
    await cluster.plans.make_plan("d/g1")
    release = Release(cluster.pods["d/a"], "turn")
    try:
        await make_updater(cluster, client).open_gates("d/g1", [release], cluster.last_plan("d/g1"))
    except KubekitError:
        assert status == 500, "after a conflict the next reconciliation decides again"

    cluster.request_plan("d/g1")
    reservations = cluster.plans.reservations
    assert reservations.reserved_by_others_on("d/g2", "n00")
    assert not reservations.reserved_by_others_on("d/g2", "n00", released_only=True)


async def test_a_gate_opens_if_the_api_server_refuses_the_target_annotation() -> None:
    cluster, client = make_cluster_with_one_pod(hosts=1), RestrictedClient()
    await cluster.plans.make_plan("d/g1")
    release = Release(cluster.pods["d/a"], "turn")
    await make_updater(cluster, cast("Client", client)).open_gates("d/g1", [release], cluster.last_plan("d/g1"))
    assert client.accepted_specs == [{"schedulingGates": [{"$patch": "delete", "name": GATE}]}]


async def test_a_failed_write_stops_no_other_write() -> None:
    written = list[int]()

    async def write(number: int) -> None:
        if number % 3 == 0:
            raise ValueError(number)
        written.append(number)

    with pytest.raises(ValueError, match="0"):
        await gather_in_batches(write(number) for number in range(40))
    assert written == [number for number in range(40) if number % 3]


@pytest.mark.filterwarnings("error")
async def test_a_cancellation_leaves_no_write_unawaited() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(gather_in_batches(asyncio.sleep(60) for _ in range(40)), 0.01)
    gc.collect()
