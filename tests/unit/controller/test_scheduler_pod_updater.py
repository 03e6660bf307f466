"""Failed writes to pods: they stop no other write, and leave reservations and permissions as they were."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import nullcontext
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.pods import GATE, Pod, PodSpec
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from controller.scheduler.gating.group_pods import GroupPods
from controller.scheduler.gating.pod_updater import PodUpdater, gather_in_batches, may_delete_pods
from controller.scheduler.gating.release import Release, ReleaseCause
from controller.scheduler.gating.retries import PodReplacement, Retry, UnschedulablePods
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.wire import PODS
from lab.polling import poll_until
from tests.unit.controller.components import fill_store
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod

CONFIG = SchedulerConfig(placement="affinity")


def make_client(status: int = 200, opened: Pod | None = None) -> AsyncMock:
    """A client of an API server that answers every request with this status; ``opened`` is a pod after its patch."""
    client = AsyncMock(**{"patch.return_value": opened})
    if status != 200:
        client.patch.side_effect = client.delete.side_effect = client.create.side_effect = ApiError(status, "", "no")
    return client


def make_updater(
    cluster: PlanningCluster,
    client: Client,
    unschedulable_pods: UnschedulablePods | None = None,
    recorder: EventRecorder | None = None,
) -> PodUpdater:
    """An updater of the cluster's pods, in affinity mode, that writes with this client."""
    store: Reflector[Pod] = Reflector(client, PODS, Pod)
    fill_store(store, cluster.pods.values())
    return PodUpdater(
        client,
        GroupPods(store, cluster.state, lambda: cluster.now_s),
        PlanInputs(cluster.state, cluster.node_cache, cluster.volumes, None, None),
        unschedulable_pods or UnschedulablePods(CONFIG),
        cluster.plans.reservations,
        config=CONFIG,
        metrics=GateMetrics(CollectorRegistry()),
        recorder=recorder or Mock(),
    )


@pytest.mark.parametrize("last_known", [True, False])
async def test_the_permission_to_delete_pods_stays_while_the_api_server_is_away(*, last_known: bool) -> None:
    assert await may_delete_pods(make_client(503), last_known=last_known) == last_known


async def test_a_leader_requires_no_zone_of_pods_that_it_may_not_delete() -> None:
    """`test_scheduler_retries` has the rest of the rule."""
    client = AsyncMock(**{"create.return_value.status": {"allowed": False}})
    cache = ClusterCache(client, "netaware-system")
    cache.pods.ready.set()
    controller = GatingController(client, cache, SchedulerConfig(), Mock(), CollectorRegistry())
    leader = asyncio.create_task(controller.run())
    await poll_until(lambda: not controller._unschedulable_pods.may_delete, timeout_s=10.0)
    leader.cancel()


@pytest.mark.parametrize("status", [409, 429, 500])
async def test_a_pod_whose_gate_stays_closed_counts_as_gated(status: int) -> None:
    cluster = make_cluster_with_one_pod(hosts=1)
    await cluster.plans.make_plan("d/g1")
    reservations, used = cluster.plans.reservations, list[bool]()

    async def refuse(*_: object, **__: object) -> None:
        used.append(bool(reservations.reserved_by_others_on("d/g2", "n00", released_only=True)))
        raise ApiError(status, "Failed", "no")

    client = AsyncMock(patch=refuse)
    release = Release(cluster.pods["d/a"], "turn")
    try:
        await make_updater(cluster, client).open_gates("d/g1", [release], cluster.last_plan("d/g1"))
    except KubekitError:
        assert status != 409, "after a conflict the next reconciliation decides again"
    assert used == [True], "one request, during which the pod counts as released"

    cluster.request_plan("d/g1")
    assert reservations.reserved_by_others_on("d/g2", "n00")
    assert not reservations.reserved_by_others_on("d/g2", "n00", released_only=True)


async def test_a_gate_opens_if_the_api_server_refuses_the_target_annotation() -> None:
    cluster = make_cluster_with_one_pod(hosts=1)
    await cluster.plans.make_plan("d/g1")
    pod = cluster.pods["d/a"]

    def refuse_annotations(*request: Any, **_: object) -> Pod:
        if "annotations" in request[2]["metadata"]:
            raise ApiError(422, "Invalid", "not here")
        return pod

    client = AsyncMock(**{"patch.side_effect": refuse_annotations})
    await make_updater(cluster, client).open_gates("d/g1", [Release(pod, "turn")], cluster.last_plan("d/g1"))
    assert client.patch.call_args.args[2]["spec"] == {"schedulingGates": [{"$patch": "delete", "name": GATE}]}


@pytest.mark.parametrize(
    ("cause", "may_delete", "is_narrowed", "reasons"),
    [("turn", True, True, []), ("turn", False, False, []), ("unplaced", True, False, ["GateOpened"])],
)
async def test_an_opened_gate_narrows_the_affinity_of_pods_that_have_a_node_and_may_be_replaced(
    cause: ReleaseCause, reasons: list[str], *, may_delete: bool, is_narrowed: bool
) -> None:
    cluster, recorder, unschedulable_pods = make_cluster_with_one_pod(hosts=1), Mock(), UnschedulablePods(CONFIG)
    unschedulable_pods.may_delete = may_delete
    await cluster.plans.make_plan("d/g1")
    pod = cluster.pods["d/a"]
    client = make_client(opened=msgspec.structs.replace(pod, spec=PodSpec()))
    updater = make_updater(cluster, client, unschedulable_pods, recorder)
    await updater.open_gates("d/g1", [Release(pod, cause)], cluster.last_plan("d/g1"))
    assert (NARROWED_ANNOTATION in client.patch.call_args.args[2]["metadata"]["annotations"]) == is_narrowed
    assert [call.args[2] for call in recorder.record.call_args_list] == reasons
    assert cluster.plans.reservations.reserved_by_others_on("d/g2", "n00", released_only=True)


@pytest.mark.parametrize(
    ("status", "records", "reasons"),
    [(200, ["on_retried"], ["Replaced"]), (409, [], []), (403, ["on_forbidden"], [])],
)
async def test_written_retries_forbidden_deletions_and_replacements_are_recorded(
    status: int, records: list[str], reasons: list[str]
) -> None:
    cluster, client, recorder, unschedulable_pods = make_cluster_with_one_pod(), make_client(status), Mock(), Mock()
    pod = cluster.pods["d/a"]
    client.patch.return_value = pod
    with pytest.raises(ApiError) if status == 403 else nullcontext():
        await make_updater(cluster, client, unschedulable_pods, recorder).execute_actions(
            [Retry(pod, {}, answer_hash=1), PodReplacement(pod, "moved")]
        )
    assert [name for name, _, _ in unschedulable_pods.method_calls] == records
    assert [call.args[2] for call in recorder.record.call_args_list] == reasons
    assert client.delete.call_args.kwargs["preconditions"] == pod.metadata, "no pod is deleted that was bound meanwhile"


async def test_a_failed_write_stops_no_other_write_and_keeps_no_object_in_memory() -> None:
    written, failures = list[int](), weakref.WeakSet["WriteError"]()

    class WriteError(Exception):
        def __init__(self) -> None:
            failures.add(self)

    async def write(number: int) -> None:
        if number % 3 == 0:
            raise WriteError
        written.append(number)

    with pytest.raises(WriteError):
        await gather_in_batches(write(number) for number in range(40))
    assert written == [number for number in range(40) if number % 3]
    await asyncio.sleep(0)  # Callbacks of the ended tasks drop their references.
    assert not failures, "traceback and local variables are freed without the collector of cycles"


@pytest.mark.filterwarnings("error")
async def test_a_cancellation_leaves_no_write_unawaited() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(gather_in_batches(asyncio.sleep(60) for _ in range(40)), 0.01)
    gc.collect()
