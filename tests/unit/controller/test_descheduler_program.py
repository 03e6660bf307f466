"""The descheduler's loop: rounds decided in a thread, from a copy of the cluster; results of evictions; the stored history."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.services import Service
from controller.cluster.volumes import PersistentVolumeClaim
from controller.descheduler.evict import evict, outdated_reason
from controller.descheduler.history import BackoffEntry, History, HistoryStore
from controller.descheduler.low_node_load import LowNodeLoadStrategy
from controller.descheduler.node_load import LoadClass
from controller.descheduler.plan import NodeState
from controller.descheduler.program import Descheduler
from controller.descheduler.reporting import DeschedulerReporter
from controller.descheduler.taints import build_taint_patches
from kubekit.errors import ApiError, KubekitError, UnreachableError
from kubekit.wire import ConfigMap, Node, ObjectMeta
from netperf.contract import HOT_TAINT
from tests.support.descheduler_builders import (
    GI,
    IMMEDIATE_ANOMALY,
    NOW_S,
    AnomalyDetector,
    DeschedulerConfig,
    Move,
    PersistentVolume,
    UsageBatch,
    UsageReading,
    UsageView,
    World,
    list_moved_pods,
    make_budget,
    make_host,
    make_node,
    make_pod_info,
    nodes_to_taint,
    to_usage,
)
from tests.unit.controller.misplacement import decide_misplacement, make_shop_world

PATIENCE_S = 5.0
POLICY = {
    "lowThresholds": {"cpu": 20, "memory": 30},
    "highThresholds": {"cpu": 50, "memory": 60},
    "anomalyCondition": IMMEDIATE_ANOMALY,
}
NODES = {"hot": 3.6, "cold": 0.1, "cool": 0.2}
HOT = {"key": HOT_TAINT, "effect": "PreferNoSchedule"}


class Api:
    """A client that records evictions and patches; evictions raise the error, if one is given."""

    def __init__(self, error: KubekitError | None = None, patch_error: KubekitError | None = None) -> None:
        self._error, self._patch_error = error, patch_error
        self.evictions: list[tuple[str, str, str, bool]] = []
        self.patched: list[str] = []

    @property
    def evicted(self) -> list[str]:
        """Names of the pods."""
        return [name for _, name, _, _ in self.evictions]

    async def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        self.evictions.append((namespace, name, uid, dry_run))
        if self._error is not None:
            raise self._error

    async def apply(self, *_: Any, **__: Any) -> None:
        pass

    async def patch(self, _: Any, name: str, *__: Any, **___: Any) -> None:
        self.patched.append(name)
        if self._patch_error is not None:
            raise self._patch_error


class StoredConfigMap:
    """A client of an API server that has one ConfigMap."""

    data: dict[str, str] | None = None

    async def get(self, *_: Any, **__: Any) -> ConfigMap:
        return ConfigMap(data=self.data)

    async def apply(self, _resource: Any, _name: str, body: dict[str, Any], *_: Any, **__: Any) -> None:
        self.data = body["data"]


async def test_a_history_is_written_again_after_its_config_map_was_emptied() -> None:
    api, history = StoredConfigMap(), History(backoffs={"default/Deployment/web": BackoffEntry(NOW_S + 60)})
    store = HistoryStore(cast("Any", api), "netaware-system")
    await store.save(history)
    assert await store.load() == history
    api.data = {"history.json": "no history"}
    assert await store.load() == History()
    await store.save(history)
    assert await store.load() == history


def make_descheduler(
    api: Api, netaware_namespace: str = "netaware-system", nodes: Iterable[Node] = (), **settings: Any
) -> tuple[Descheduler, World]:
    """A descheduler of three nodes, one of which is overutilized by four pods."""
    world = World()
    for name in NODES:
        world.on_node_change(name, make_node(name))
    for name in ("a", "b", "c", "d"):
        world.on_pod_change(f"default/{name}", make_pod_info(name, "hot"))

    async def read() -> UsageBatch:
        used = [UsageReading(name, "cpu", 1000 * cores, NOW_S) for name, cores in NODES.items()]
        used += [UsageReading(name, "memory", float(GI), NOW_S) for name in NODES]
        return UsageBatch((*used, *(UsageReading(key, "cpu", 500.0, NOW_S) for key in world.pods)))

    free = {"perWorkload": 100, "unavailablePerWorkload": 100, "perNode": 100}
    document = {"policy": POLICY, "limits": free, "protection": {"minReplicas": 1, "minPodAgeS": 0}, **settings}
    stores = SimpleNamespace(
        nodes=SimpleNamespace(items={node.metadata.name: node for node in nodes}),
        pods=SimpleNamespace(items=world.pods),
        netaware_namespace=netaware_namespace,
    )
    descheduler = Descheduler(
        cast("Any", api),
        cast("Any", stores),
        msgspec.convert(document, DeschedulerConfig),
        cast("Any", SimpleNamespace(record=lambda *_: None)),
        CollectorRegistry(),
        scheduling=cast("Any", SimpleNamespace(inputs=world.inputs, plans=SimpleNamespace(simulate_replacement=None))),
        usage_reader=cast("Any", SimpleNamespace(read=read)),
        wall=lambda: NOW_S,
    )
    return descheduler, world


# The taint


def test_nodes_are_tainted_above_the_midpoint_of_their_thresholds_until_they_are_underutilized() -> None:
    """The midpoint of 20 and 50 % is 35 %."""
    nodes = {n.name: n for n in (make_host("plain"), make_host("tainted", taints=[HOT]))}

    def tainted(cpu: float, *, kind: LoadClass = "normal", anomalous: bool = False) -> set[str]:
        states = [NodeState(name, "default", kind, {"cpu": cpu}, {"cpu": 20.0}, {"cpu": 50.0}) for name in nodes]
        return set(nodes_to_taint(states, dict.fromkeys(nodes, AnomalyDetector(is_anomalous=anomalous)), nodes))

    assert tainted(36) == {"plain", "tainted"}
    assert tainted(30) == {"tainted"}
    assert tainted(20) == set()
    assert tainted(20, anomalous=True) == {"plain", "tainted"}
    assert tainted(0, kind="unknown") == {"tainted"}


def test_the_taint_is_added_and_removed_beside_other_taints() -> None:
    other, users = {**HOT, "key": "x"}, {**HOT, "effect": "NoSchedule"}
    taints_by_node = {"a": [], "b": [other], "c": [other, HOT], "d": [HOT], "e": [users]}
    nodes = {name: make_node(name, taints=taints) for name, taints in taints_by_node.items()}
    assert build_taint_patches(nodes, frozenset({"a", "b", "d"})) == {
        "a": [
            {"op": "test", "path": "/metadata/resourceVersion", "value": ""},
            {"op": "add", "path": "/spec/taints", "value": [HOT]},
        ],
        "b": [{"op": "add", "path": "/spec/taints/-", "value": HOT}],
        "c": [
            {"op": "test", "path": "/spec/taints/1/key", "value": HOT_TAINT},
            {"op": "test", "path": "/spec/taints/1/effect", "value": "PreferNoSchedule"},
            {"op": "remove", "path": "/spec/taints/1"},
        ],
    }


NO_STRATEGY = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}


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
async def test_a_descheduler_that_does_not_relieve_nodes_removes_its_taints(settings: dict[str, Any]) -> None:
    """Without the right to patch nodes, it sends one request per round, and its rounds finish."""
    for error in (None, ApiError(403, "Forbidden", "no right to patch nodes")):
        api = Api(patch_error=error)
        nodes = [make_node(name, taints=[HOT, {**HOT, "key": "other"}]) for name in NODES]
        nodes += [make_node("user", taints=[{**HOT, "effect": "NoSchedule"}]), make_node("plain")]
        descheduler, _ = make_descheduler(api, nodes=nodes, **settings)
        if settings.get("enabled", True):
            await descheduler.run_round()
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(descheduler.run(), 0.01)
        assert api.patched == (list(NODES) if error is None else ["hot"])


def act_during_decision(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[bool]:
    """Call ``act`` on the event loop while LowNodeLoad decides; the list tells afterwards whether the loop was free for it."""
    loop, plan_moves = asyncio.get_running_loop(), LowNodeLoadStrategy.plan_moves
    has_acted, was_free = threading.Event(), list[bool]()

    def act_and_signal() -> None:
        act()
        has_acted.set()

    def slow(self: LowNodeLoadStrategy, *args: Any, **more: Any) -> Any:
        loop.call_soon_threadsafe(act_and_signal)
        was_free.append(has_acted.wait(PATIENCE_S))
        return plan_moves(self, *args, **more)

    monkeypatch.setattr(LowNodeLoadStrategy, "plan_moves", slow)
    return was_free


async def test_changes_during_a_round_change_no_decision_and_outdated_moves_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api()
    expected = await make_descheduler(api)[0].run_round()
    assert api.evicted == list_moved_pods(expected) != []
    api = Api()
    descheduler, world = make_descheduler(api)
    first, second, third = expected.plan.moves[:3]

    def change() -> None:
        world.on_pod_change(first.pod, None)
        world.on_pod_change(second.pod, make_pod_info(second.pod.partition("/")[2], "cool", uid="another"))
        world.on_node_change(third.target, None)

    was_free = act_during_decision(monkeypatch, change)
    assert list_moved_pods(await descheduler.run_round()) == list_moved_pods(expected)
    assert was_free == [True], "the event loop was free"
    gone = {first.pod, second.pod}
    kept = [m for m in expected.plan.moves if m.pod not in gone and m.target != third.target]
    assert api.evicted == [move.pod.partition("/")[2] for move in kept] != []


async def test_no_pod_of_the_namespace_in_which_netaware_is_installed_is_evicted() -> None:
    api = Api()
    plan = (await make_descheduler(api, netaware_namespace="default")[0].run_round()).plan
    assert (api.evicted, plan.skip_counts) == ([], {"namespace": 4})
    assert plan.skips[0].reason == "the admission policy forbids evictions in default"


def test_a_snapshot_does_not_change_with_the_cluster() -> None:
    world = make_shop_world({"web-0": "z3-n1", "db-0": "z1-n1", "db-1": "z1-n2"})
    world.budgets.append(make_budget("b", "app", 5))
    volume = {"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": "z1"}}}
    bound = {**volume, "spec": {"claimRef": {"namespace": "default", "name": "c"}}}
    world.volumes.on_volume_change("v", None, msgspec.convert(bound, PersistentVolume))
    claim = msgspec.convert({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}}, PersistentVolumeClaim)
    world.volumes.on_claim_change("default/c", None, claim)
    service = {"metadata": {"name": "db", "namespace": "default"}, "spec": {"selector": {"app": "db"}}}
    world.network.on_service_change("default/db", None, msgspec.convert(service, Service))
    world.network.score("default", "shop", "web")
    before, still = decide_misplacement(world), world.snapshot()
    assert "web-0" in list_moved_pods(before)
    world.network.on_pod_change("default/db-1", world.pods["default/db-1"].group_pod, None)
    world.network.score("default", "shop", "web")
    assert decide_misplacement(still) == before, "scores of the cluster as it is now are not the copy's"
    group = msgspec.structs.replace(world.network.groups["default/shop"], metadata=ObjectMeta(name="x", namespace="y"))
    world.network.on_group_change("y/x", None, group)
    world.network.on_group_change("default/shop", None, None)
    world.network.on_topology_change("default/nt-default", None, None)
    for name in list(world.nodes):
        world.on_node_change(name, None)
    for key in list(world.pods):
        world.on_pod_change(key, None)
    assert list_moved_pods(decide_misplacement(world)) == []
    assert decide_misplacement(still) == before


@pytest.mark.parametrize(("cores", "strategy"), [(0.1, "NetworkMisplacement"), (3.9, "LowNodeLoad")])
def test_a_round_keeps_no_reference_to_its_snapshot(cores: float, strategy: str) -> None:
    """The controller's full garbage collections are rare, and a cluster takes tens of megabytes."""
    world = make_shop_world({"web-0": "z3-n1", "db-0": "z1-n1", "db-1": "z1-n2"})
    used = {name: to_usage(cores if name == "z1-n1" else 0.1, 1) for name in world.nodes}
    view = world.snapshot(UsageView(used, {"default/db-0": to_usage(1, 1)}))
    pods = weakref.ref(view.pods)
    gc.disable()
    try:
        assert [move.strategy for move in decide_misplacement(view).plan.moves] == [strategy]
        del view
        assert pods() is None
    finally:
        gc.enable()


MOVE = Move("default/p", "uid-default-p", "default/Deployment/w", "n", "m", "LowNodeLoad", "r")


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (None, "evicted", ""),
        (ApiError(429, "TooManyRequests", "budget", causes=("DisruptionBudget",)), "disruption-budget", "was refused"),
        (ApiError(429, "TooManyRequests", "busy", retry_after_s=7), "throttled", "failed"),
        (ApiError(503, "ServiceUnavailable", ""), "throttled", "failed"),
        (ApiError(404, "NotFound", ""), "gone", ""),
        (ApiError(409, "Conflict", "the UID in the precondition does not match"), "gone", ""),
        (ApiError(403, "Forbidden", "no"), "forbidden", "was refused"),
        (ApiError(500, "InternalError", "This pod has more than one PodDisruptionBudget"), "refused", "was refused"),
        # The pod may have been evicted.
        (UnreachableError("no answer"), "unknown", "may have failed"),
    ],
)
async def test_the_api_servers_answer_decides_the_result_and_the_event_of_an_eviction(
    error: KubekitError | None, kind: str, outcome: str
) -> None:
    api, events = Api(error), list[tuple[str, str]]()
    recorder = SimpleNamespace(record=lambda _type, _pod, reason, note: events.append((reason, note)))
    result, dry_run_result = [await evict(cast("Any", api), MOVE, dry_run=dry_run) for dry_run in (False, True)]
    assert (result.kind, dry_run_result.kind) == (kind, kind if error else "dry-run")
    assert result.stops_evictions == outcome.endswith("failed")
    assert api.evictions == [("default", "p", "uid-default-p", dry_run) for dry_run in (False, True)]
    DeschedulerReporter(cast("Any", recorder)).report_eviction(MOVE, dry_run_result)
    reason = "EvictionFailed" if result.stops_evictions else "EvictionRefused"
    note = f'Eviction from node "n" for the reason "r" {outcome}: {result.message}'
    assert events == ([(reason, note)] if outcome else [])


@pytest.mark.parametrize(("unschedulable", "ready"), [(True, True), (False, False)])
def test_a_move_is_outdated_if_its_target_takes_no_more_pods(unschedulable: bool, ready: bool) -> None:
    pods, nodes = {"default/p": make_pod_info("p", "n")}, {"n": make_host("n"), "m": make_host("m")}
    assert outdated_reason(MOVE, pods, nodes) == ""
    nodes["m"] = make_host("m", unschedulable=unschedulable, ready=ready)
    assert outdated_reason(MOVE, pods, nodes) == "node m, its target, takes no more pods"
