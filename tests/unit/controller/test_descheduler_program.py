"""The descheduler's loop: rounds are decided in a thread from a copy of the cluster, and the history is stored."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.descheduler import program
from controller.descheduler.decide import UnconfirmedDecision, decide
from controller.descheduler.history import BackoffEntry, History, HistoryStore
from controller.descheduler.program import Descheduler
from kubekit.errors import ApiError
from kubekit.wire import ConfigMap, Node, ObjectMeta
from netperf.contract import HOT_TAINT
from tests.support.descheduler_builders import (
    GI,
    IMMEDIATE_ANOMALY,
    NOW_S,
    DeschedulerConfig,
    UsageBatch,
    UsageReading,
    UsageView,
    World,
    list_moved_pods,
    make_node,
    make_pod_info,
    to_usage,
)
from tests.unit.controller.misplacement import decide_misplacement, make_shop_world

POLICY = {
    "lowThresholds": {"cpu": 20, "memory": 30},
    "highThresholds": {"cpu": 50, "memory": 60},
    "anomalyCondition": IMMEDIATE_ANOMALY,
}
EVENT_LOOP_TIMEOUT_S = 5.0
CORES_BY_NODE = {"hot": 3.6, "cold": 0.1, "cool": 0.2}
HOT_TAINT_BODY = {"key": HOT_TAINT, "effect": "PreferNoSchedule"}
NO_STRATEGY = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}
NODE_BY_POD = {"web-0": "z3-n1", "db-0": "z1-n1", "db-1": "z1-n2"}


def list_evicted_pods(client: AsyncMock) -> list[str]:
    return [call.args[1] for call in client.evict.await_args_list]


def make_descheduler(
    client: AsyncMock, netaware_namespace: str = "netaware-system", nodes: Iterable[Node] = (), **settings: Any
) -> tuple[Descheduler, World]:
    """A descheduler of three nodes, one of which is overutilized by four pods."""
    world = World()
    for name in CORES_BY_NODE:
        world.on_node_change(name, make_node(name))
    for name in ("a", "b", "c", "d"):
        world.on_pod_change(f"default/{name}", make_pod_info(name, "hot"))

    readings = [UsageReading(name, "cpu", 1000 * cores, NOW_S) for name, cores in CORES_BY_NODE.items()]
    readings += [UsageReading(name, "memory", float(GI), NOW_S) for name in CORES_BY_NODE]
    readings += [UsageReading(key, "cpu", 500.0, NOW_S) for key in world.pods]
    high_limits = {"perWorkload": 100, "unavailablePerWorkload": 100, "perNode": 100}
    document = {"policy": POLICY, "limits": high_limits, "protection": {"minReplicas": 1, "minPodAgeS": 0}, **settings}
    stores = SimpleNamespace(
        nodes=SimpleNamespace(items={node.metadata.name: node for node in nodes}),
        pods=SimpleNamespace(items=world.pods),
        netaware_namespace=netaware_namespace,
    )
    descheduler = Descheduler(
        client,
        cast("Any", stores),
        msgspec.convert(document, DeschedulerConfig),
        Mock(),
        CollectorRegistry(),
        scheduling=cast("Any", SimpleNamespace(inputs=world.inputs, plans=SimpleNamespace(simulate_replacement=None))),
        usage_reader=cast("Any", SimpleNamespace(read=AsyncMock(return_value=UsageBatch(tuple(readings))))),
        wall=lambda: NOW_S,
    )
    return descheduler, world


async def test_a_history_is_written_again_after_its_config_map_was_emptied() -> None:
    client, history = AsyncMock(), History(backoffs={"default/Deployment/web": BackoffEntry(NOW_S + 60)})

    def keep_data(*request: Any, **_: Any) -> None:
        client.get.return_value = ConfigMap(data=request[2]["data"])

    client.apply.side_effect = keep_data
    store = HistoryStore(client, "netaware-system")
    await store.save(history)
    assert await store.load() == history
    client.get.return_value = ConfigMap(data={"history.json": "no history"})
    assert await store.load() == History()
    await store.save(history)
    assert await store.load() == history


@pytest.mark.parametrize(
    "settings",
    [
        {"enabled": False, "intervalS": 0.05},
        {"dryRun": True},
        {"policy": {**POLICY, "dryRun": True}},
        {"policy": {**POLICY, "paused": True}},
        {"policy": NO_STRATEGY},
    ],
)
@pytest.mark.parametrize("error", [None, ApiError(403, "Forbidden", "no right to patch nodes")], ids=["", "forbidden"])
async def test_a_descheduler_that_does_not_relieve_nodes_removes_its_taints(
    settings: dict[str, Any], error: ApiError | None
) -> None:
    """Without the right to patch nodes, it sends one request per round, and its rounds finish."""
    client = AsyncMock(**{"patch.side_effect": error})
    nodes = [make_node(name, taints=[HOT_TAINT_BODY, {**HOT_TAINT_BODY, "key": "other"}]) for name in CORES_BY_NODE]
    nodes += [make_node("user", taints=[{**HOT_TAINT_BODY, "effect": "NoSchedule"}]), make_node("plain")]
    descheduler, _ = make_descheduler(client, nodes=nodes, **settings)

    if settings.get("enabled", True):
        await descheduler.run_round()
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(descheduler.run(), 0.01)

    patched_nodes = [call.args[1] for call in client.patch.await_args_list]
    assert patched_nodes == (list(CORES_BY_NODE) if error is None else ["hot"])


async def test_changes_during_a_round_change_no_decision_and_outdated_moves_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cluster changes in the event loop, which is free while the thread decides."""
    client = AsyncMock()
    undisturbed = await make_descheduler(client)[0].run_round()
    assert list_evicted_pods(client) == list_moved_pods(undisturbed) != []

    client = AsyncMock()
    descheduler, world = make_descheduler(client)
    of_deleted_pod, of_replaced_pod, to_deleted_node = undisturbed.plan.moves[:3]

    async def change_cluster() -> None:
        world.on_pod_change(of_deleted_pod.pod, None)
        pod_name = of_replaced_pod.pod.partition("/")[2]
        world.on_pod_change(of_replaced_pod.pod, make_pod_info(pod_name, "hot", uid="another"))
        world.on_node_change(to_deleted_node.target, None)

    def decide_after_changes(*args: Any, **options: Any) -> UnconfirmedDecision:
        asyncio.run_coroutine_threadsafe(change_cluster(), loop).result(EVENT_LOOP_TIMEOUT_S)
        return decide(*args, **options)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(program, "decide", decide_after_changes)
    decision = await descheduler.run_round()

    assert list_moved_pods(decision) == list_moved_pods(undisturbed)
    changed_pods = {of_deleted_pod.pod, of_replaced_pod.pod}
    valid_moves = [
        move for move in decision.plan.moves if move.pod not in changed_pods and move.target != to_deleted_node.target
    ]
    assert list_evicted_pods(client) == [move.pod.partition("/")[2] for move in valid_moves] != []


async def test_no_pod_of_the_namespace_in_which_netaware_is_installed_is_evicted() -> None:
    client = AsyncMock()
    plan = (await make_descheduler(client, netaware_namespace="default")[0].run_round()).plan
    assert list_evicted_pods(client) == []
    assert plan.skip_counts == {"namespace": 4}
    assert plan.skips[0].reason == "the admission policy forbids evictions in default"


def test_a_snapshot_does_not_change_with_the_cluster() -> None:
    world = make_shop_world(NODE_BY_POD)
    world.network.score("default", "shop", "web")
    before, view = decide_misplacement(world), world.snapshot()
    assert "web-0" in list_moved_pods(before)

    world.network.on_pod_change("default/db-1", world.pods["default/db-1"].group_pod, None)
    world.network.score("default", "shop", "web")
    assert decide_misplacement(view) == before, "the snapshot has its own scores"

    group = msgspec.structs.replace(world.network.groups["default/shop"], metadata=ObjectMeta(name="x", namespace="y"))
    world.network.on_group_change("y/x", None, group)
    world.network.on_group_change("default/shop", None, None)
    world.network.on_topology_change("default/nt-default", None, None)
    for name in list(world.nodes):
        world.on_node_change(name, None)
    for key in list(world.pods):
        world.on_pod_change(key, None)
    assert list_moved_pods(decide_misplacement(world)) == []
    assert decide_misplacement(view) == before


@pytest.mark.parametrize(("cores_of_db", "strategy"), [(0.1, "NetworkMisplacement"), (3.9, "LowNodeLoad")])
def test_a_round_keeps_no_reference_to_its_snapshot(cores_of_db: float, strategy: str) -> None:
    """The controller's full garbage collections are rare, and a cluster takes tens of megabytes."""
    world = make_shop_world(NODE_BY_POD)
    node_usage = {name: to_usage(cores_of_db if name == "z1-n1" else 0.1, 1) for name in world.nodes}
    view = world.snapshot(UsageView(node_usage, {"default/db-0": to_usage(1, 1)}))
    pods = weakref.ref(view.pods)
    gc.disable()
    try:
        assert [move.strategy for move in decide_misplacement(view).plan.moves] == [strategy]
        del view
        assert pods() is None
    finally:
        gc.enable()
