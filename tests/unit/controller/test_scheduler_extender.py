"""The extender's answers over HTTP, and its errors for requests that cannot be decoded."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.scheduler.config import AllocatableArgs, SchedulerConfig
from controller.scheduler.extender import encoding, handler
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.rules import NodeScore, ScoreTable
from controller.scheduler.state import State
from kubekit.errors import ConfigError
from kubekit.http import Server
from tests.unit.controller.scheduler_objects import (
    GROUP,
    WORKLOAD,
    make_group_state,
    make_node,
    make_pod,
    make_topology,
)


def example(config: SchedulerConfig) -> State:
    """Four nodes in two zones with cost 20 between them; P1 depends on P2 (at most 10), which runs on n1."""
    nodes = [make_node(f"n{i}", "r", f"z{(i + 1) // 2}", cpu=str(i), memory="1Gi") for i in range(1, 5)]
    costs = make_topology({("z1", "z2"): 20, ("z2", "z1"): 20})
    return make_group_state(nodes, costs, {"P1": {"P2": 10}, "P2": {}}, [("P2", "n1")], config)


def group_pod(scheduler: str = "network-aware-scheduler", **metadata: Any) -> dict[str, Any]:
    labels = {GROUP: "a1", WORKLOAD: "P1"}
    meta = {"name": "p1", "namespace": "default", "uid": "u1", "labels": labels, **metadata}
    return {"metadata": meta, "spec": {"schedulerName": scheduler, "containers": [{"name": "c"}]}}


def arguments(pod: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    return {"pod": pod, "nodes": None, "nodenames": names}


class Service:
    def __init__(self, session: aiohttp.ClientSession, url: str, state: State, registry: CollectorRegistry) -> None:
        self.session, self.url, self.state, self.registry = session, url, state, registry
        self.unready_reason = ""

    async def post(self, verb: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session.post(f"{self.url}/{verb}", data=data) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def ask(self, verb: str, pod: dict[str, Any], names: list[str]) -> Any:
        status, answer = await self.post(verb, arguments(pod, names))
        assert status == 200, answer
        return answer

    async def scores(self, pod: dict[str, Any], names: list[str]) -> dict[str, int]:
        return {entry["host"]: entry["score"] for entry in await self.ask("prioritize", pod, names)}


@asynccontextmanager
async def serve_extender(config: SchedulerConfig | None = None, state: State | None = None) -> AsyncIterator[Service]:
    config = config or SchedulerConfig()
    registry = CollectorRegistry()
    server = Server("127.0.0.1:0", registry=registry)
    state = state or example(config)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
        service = Service(session, "", state, registry)
        Extender(state, config, ExtenderMetrics(registry), lambda: service.unready_reason).add_routes(server.app)
        async with server.running() as address:
            service.url = f"http://{address}"
            yield service


ALL = ["n1", "n2", "n3", "n4"]


async def test_filter_and_prioritize_follow_the_rule() -> None:
    async with serve_extender() as service:
        answer = await service.ask("filter", group_pod(), ALL)
        assert answer["nodenames"] == ["n1", "n2"]
        assert set(answer["failedAndUnresolvableNodes"]) == {"n3", "n4"}
        assert await service.scores(group_pod(), ["n1", "n2"]) == {"n1": 100, "n2": 0}
        assert await service.scores(group_pod(), ["n3", "n2", "n1"]) == {"n1": 100, "n2": 95, "n3": 0}


FOREIGN: dict[str, dict[str, Any]] = {
    "no-labels": {"metadata": {"name": "bare", "namespace": "default"}, "spec": {}},
    "null-labels": {"metadata": {"name": "bare", "namespace": "default", "labels": None}, "spec": {}},
    "nothing": {},
    "no-group": group_pod(labels={GROUP: "unknown", WORKLOAD: "P1"}),
    "no-workload": group_pod(labels={GROUP: "a1"}),
    "other-workload": group_pod(labels={GROUP: "a1", WORKLOAD: "no-such-workload"}),
    "elsewhere": group_pod(namespace="elsewhere", labels={GROUP: "a2", WORKLOAD: "P1"}),
    "not-ours": group_pod(scheduler="default-scheduler"),
    "affinity": group_pod(labels={GROUP: "a1", WORKLOAD: "P1", "netaware.io/placement": "affinity"}),
}


@pytest.mark.parametrize("pod", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_pods_get_every_node_and_equal_scores(pod: dict[str, Any]) -> None:
    async with serve_extender() as service:
        answer = await service.ask("filter", pod, ALL)
        assert answer == {"nodenames": ALL, "failedNodes": {}, "failedAndUnresolvableNodes": {}, "error": ""}
        assert await service.scores(pod, ALL) == dict.fromkeys(ALL, 0)


@pytest.mark.parametrize("deleted", ["topology", "costs", "group"])
async def test_changes_count_from_the_next_request_on(deleted: str) -> None:
    async with serve_extender() as service:
        assert (await service.ask("filter", group_pod(), ALL))["nodenames"] == ["n1", "n2"]
        match deleted:
            case "topology":
                service.state.on_topology_change("default/nt-default", None, None)
            case "costs":  # unknown costs refuse no node
                service.state.on_topology_change("default/nt-default", None, make_topology({}))
            case "group":
                service.state.on_group_change("default/a1", service.state.groups["default/a1"], None)
        assert (await service.ask("filter", group_pod(), ALL))["nodenames"] == ALL
        scores = await service.scores(group_pod(), ALL)
        assert set(scores.values()) == {0} or deleted == "costs"


def test_a_list_that_lacks_some_nodes_of_a_zone_is_scored_in_linear_time() -> None:
    nodes = [make_node(f"ip-10-0-{i}.compute.internal", "r", "z") for i in range(10_000)]
    encoder = encoding.AnswerEncoder(make_group_state(nodes, make_topology({}), {}), 1)
    names = [each.metadata.name for each in nodes]
    score_table = ScoreTable("", [NodeScore()] * 2, {name: NodeScore(1, 0, 1) for name in names[:5000]})

    def cpu_seconds(requested: list[str]) -> float:
        parsed, started = encoder.parse_names(msgspec.json.encode(requested)), time.thread_time()
        encoder.encode_priorities(parsed, score_table, None, with_allocatable=False)
        return time.thread_time() - started

    assert cpu_seconds(names[1:]) < 10 * cpu_seconds(names)


async def test_unknown_nodes_are_scored_as_nodes_without_labels() -> None:
    async with serve_extender() as service:
        answer = await service.ask("filter", group_pod(), ["brand-new", "n4", "n1"])
        assert sorted(answer["nodenames"]) == ["brand-new", "n1"]
        assert await service.scores(group_pod(), ["brand-new", "n1", "n2"]) == {"brand-new": 0, "n1": 100, "n2": 99}


@pytest.mark.parametrize(
    ("names", "passed", "refused"), [([], [], set()), (None, [], set()), (["n1", "n1", "n3", "n3"], ["n1"], {"n3"})]
)
async def test_unusual_lists_of_nodes_are_answered(
    names: list[str] | None, passed: list[str], refused: set[str]
) -> None:
    async with serve_extender() as service:
        status, answer = await service.post("filter", arguments(group_pod(), names))
        assert (status, answer["nodenames"], answer["error"]) == (200, passed, "")
        assert set(answer["failedAndUnresolvableNodes"]) == refused
        status, scores = await service.post("prioritize", arguments(group_pod(), names))
        assert (status, len(scores)) == (200, len(set(names or ())))


async def test_the_list_that_filter_returned_is_scored_by_the_present_nodes() -> None:
    async with serve_extender() as service:
        filtered = (await service.ask("filter", group_pod(), ALL))["nodenames"]
        service.state.on_node_change("n2", None, make_node("n2", "r", "z2"))
        assert await service.scores(group_pod(), filtered) == {"n1": 100, "n2": 0}
        assert await service.scores(group_pod(), ["n2", "n3"]) == {"n2": 100, "n3": 100}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "no ExtenderArgs"),
        (b"{", 400, "no ExtenderArgs"),
        (b"[]", 400, "no ExtenderArgs"),
        (b'{"pod": 3, "nodenames": []}', 400, "no ExtenderArgs"),
        (b'{"pod": {"metadata": {"labels": {"a": 1}}}, "nodenames": []}', 400, "no ExtenderArgs"),
        (b'{"pod": {}, "nodes": {"items": []}}', 400, "nodeCacheCapable"),
        (b'{"pod": {}, "nodenames": "n1"}', 400, "nodenames"),
        (msgspec.json.encode({"pod": group_pod(), "nodenames": ["n1", 3]}), 400, "nodenames"),
        (b'{"pod": {}, "nodenames": "' + b"x" * 5000 + b'"}', 413, "larger than 4096 bytes"),
    ],
)
async def test_undecodable_requests_get_an_error_with_the_reason(
    body: bytes, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "MAX_REQUEST_BYTES", 4096)
    async with serve_extender() as service:
        for verb in ("filter", "prioritize"):
            actual_status, answer = await service.post(verb, body)
            assert actual_status == status
            assert message in answer["error"]
        assert (await service.ask("filter", group_pod(), ALL))["nodenames"] == ["n1", "n2"]
        metrics = generate_latest(service.registry).decode()
        assert f'netaware_extender_errors_total{{status="{status}",verb="filter"}} 1.0' in metrics


async def test_a_body_of_unknown_length_is_refused_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MAX_REQUEST_BYTES", 4096)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 1024

    async with serve_extender() as service, service.session.post(f"{service.url}/filter", data=chunks()) as answer:
        assert answer.status == 413


async def test_requests_are_refused_before_the_stores_are_listed() -> None:
    async with serve_extender() as service:
        service.unready_reason = "not listed yet: pods"
        status, answer = await service.post("filter", arguments(group_pod(), ALL))
        assert status == 503
        assert "not listed yet: pods" in answer["error"]


@pytest.mark.parametrize("keys", ["Pod NodeNames", "pod nodenames", "POD NODENAMES", "NodeNames Pod"])
async def test_keys_may_have_any_case_as_in_go(keys: str) -> None:
    values = {"pod": group_pod(), "nodenames": ALL}
    async with serve_extender() as service:
        status, answer = await service.post("filter", {key: values[key.lower()] for key in keys.split()})
        assert status == 200
        assert answer["nodenames"] == ["n1", "n2"]


async def test_refused_nodes_beyond_the_limit_share_a_reason_per_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_NODE_REASONS", 1)
    async with serve_extender() as service:
        answer = await service.ask("filter", group_pod(), ALL)
        assert set(answer["failedNodes"]) == {"n3"}
        assert answer["failedAndUnresolvableNodes"]["n3"].startswith("Node n3 does not meet")
        shared = answer["failedAndUnresolvableNodes"]["n4"]
        assert shared == "in z2: network requirements from Workload dependencies, Satisfied: 0 Violated: 1"


async def test_the_planned_host_scores_highest_then_its_zone_then_others() -> None:
    planned = planned_pod("n4", "z2")
    async with serve_extender() as service:
        scores = await service.scores(planned, ALL)
        assert sorted(scores, key=lambda n: -scores[n]) == ["n4", "n3", "n1", "n2"]
        assert scores["n4"] == 100
        undecodable = group_pod(annotations={"netaware.io/target": "no json"})
        assert await service.scores(undecodable, ["n1", "n2"]) == {"n1": 100, "n2": 0}
    async with serve_extender(SchedulerConfig(parity="upstream")) as service:
        assert await service.scores(planned, ["n1", "n2"]) == {"n1": 100, "n2": 0}


def planned_pod(node: str, zone: str, **more: Any) -> dict[str, Any]:
    target = msgspec.json.encode({"zone": zone, "region": "r", "node": node}).decode()
    return {**group_pod(annotations={"netaware.io/target": target}), **more}


async def test_filter_returns_the_planned_host_or_else_its_zone() -> None:
    async with serve_extender() as service:
        no_failures = {"failedNodes": {}, "failedAndUnresolvableNodes": {}, "error": ""}
        assert await service.ask("filter", planned_pod("n2", "z1"), ALL) == {"nodenames": ["n2"], **no_failures}
        others = ["n1", "n3", "n4"]
        assert await service.ask("filter", planned_pod("n2", "z1"), others) == {"nodenames": ["n1"], **no_failures}
        metrics = generate_latest(service.registry).decode()
        assert 'netaware_extender_decisions_total{result="planned",verb="filter"} 2.0' in metrics


async def test_filter_follows_the_rule_if_the_plan_cannot_be_followed() -> None:
    rule = ["n1", "n2"]
    found_nothing = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    async with serve_extender() as service:
        for planned in (
            planned_pod("n4", "z2"),  # the rule refuses the planned node, because costs have changed
            planned_pod("gone", "z2"),
            planned_pod(
                "n2", "z1", status=found_nothing
            ),  # another filter or extender may have refused the planned node
        ):
            assert (await service.ask("filter", planned, ALL))["nodenames"] == rule
        assert (await service.ask("filter", planned_pod("n2", "z1"), ["n3", "n4"]))["nodenames"] == []
    async with serve_extender(SchedulerConfig(parity="upstream")) as service:
        assert (await service.ask("filter", planned_pod("n2", "z1"), ALL))["nodenames"] == rule
    async with serve_extender(SchedulerConfig(placement="affinity")) as service:
        assert (await service.ask("filter", planned_pod("n2", "z1"), ALL))["nodenames"] == ALL


async def test_the_first_pod_of_a_group_gets_its_planned_node() -> None:
    config = SchedulerConfig()
    state = example(config)
    state.on_pod_change("default/p2-0", make_pod("P2", "n1", name="p2-0"), None)
    async with serve_extender(config, state) as service:
        assert (await service.ask("filter", group_pod(), ALL))["nodenames"] == ALL
        assert (await service.ask("filter", planned_pod("n4", "z2"), ALL))["nodenames"] == ["n4"]


async def test_allocatable_adds_its_weighted_score_for_our_pods_only() -> None:
    config = SchedulerConfig(allocatable=AllocatableArgs(weight=2))
    async with serve_extender(config) as service:
        bare = {"metadata": {"name": "bare"}, "spec": {"schedulerName": "network-aware-scheduler"}}
        assert await service.scores(bare, ALL) == {"n1": 200, "n2": 132, "n3": 66, "n4": 0}
        assert await service.scores(group_pod(), ["n1", "n2"]) == {"n1": 300, "n2": 0}
        assert await service.scores(group_pod(scheduler="default-scheduler"), ALL) == dict.fromkeys(ALL, 0)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"gates": {"maxWaitS": 0}}, "scheduler.gates.maxWaitS"),
        ({"gates": {"missingWorkloadTimeoutS": 500}}, "scheduler.gates.missingWorkloadTimeoutS"),
        ({"networkOverhead": {"namespaces": []}}, "scheduler.networkOverhead.namespaces"),
        ({"networkOverhead": {"weightsName": ""}}, "scheduler.networkOverhead.weightsName"),
        ({"allocatable": {"resources": [{"name": "cpu", "weight": 0}]}}, "scheduler.allocatable.resources"),
    ],
)
def test_invalid_settings_are_named(section: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        msgspec.convert(section, SchedulerConfig).validate("scheduler")
    assert refused.value.field == field


def victims(**by_node: list[str]) -> dict[str, Any]:
    """Nodes with the UIDs of their victims, as kube-scheduler writes them."""
    return {node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1} for node, uids in by_node.items()}


def preempt(candidates: dict[str, Any], pod: dict[str, Any], state: State | None = None) -> dict[str, Any]:
    """The candidates that remain, with their victims."""
    config = SchedulerConfig()
    extender = Extender(state or example(config), config, ExtenderMetrics(CollectorRegistry()), lambda: "")
    arguments = {"Pod": pod, "NodeNameToMetaVictims": candidates}
    answer = msgspec.json.decode(extender.answer_preempt(msgspec.json.encode(arguments)))
    return dict(answer["NodeNameToMetaVictims"])


def test_preempt_keeps_the_nodes_that_filter_passes_without_the_victims() -> None:
    """The cost from z2 to P2 in z1 is above the limit, so filter would refuse nodes of z2 after the evictions."""
    candidates = victims(n1=[], n2=["other"], n3=["other"], n4=[])
    assert preempt(candidates, group_pod()) == {name: candidates[name] for name in ("n1", "n2")}


@pytest.mark.parametrize(
    ("target", "violations", "nodes"), [("n2", 0, {"n2"}), ("n2", 1, {"n1", "n2"}), ("n3", 0, {"n1", "n2"})]
)
def test_preempt_keeps_only_the_planned_node_unless_another_violates_fewer_budgets(
    target: str, violations: int, nodes: set[str]
) -> None:
    candidates = victims(n1=["x"], n2=["y"], n3=["z"])
    candidates["n2"]["NumPDBViolations"] += violations
    assert set(preempt(candidates, planned_pod(target, ""))) == nodes


def test_victims_that_the_pod_depends_on_do_not_count() -> None:
    """Two pods of P2 in z2 and one in z1: P1 may run in z2, unless they would be evicted for it.

    Each has replaced a pod of the same name and node while the watch was interrupted, as a StatefulSet's pods do.
    """
    state = example(SchedulerConfig())
    for uid in ("a", "b"):
        old, new = (make_pod("P2", "n3", name=uid, metadata={"uid": value}) for value in (f"old-{uid}", uid))
        state.on_pod_change(f"default/{uid}", None, old)
        state.on_pod_change(f"default/{uid}", old, new)
    assert set(preempt(victims(n1=[], n3=[], n4=[]), group_pod(), state)) == {"n3", "n4"}
    assert set(preempt(victims(n3=["a"], n4=["a", "b"]), group_pod(), state)) == {"n3"}


@pytest.mark.parametrize(
    "pod", [group_pod("default-scheduler"), group_pod(labels={}), group_pod(labels={GROUP: "none", WORKLOAD: "P1"})]
)
def test_preempt_keeps_all_nodes_of_foreign_pods(pod: dict[str, Any]) -> None:
    candidates = victims(n3=["x"])
    answer = preempt({**candidates, "n4": None}, pod)
    assert (set(answer), answer["n3"]) == ({"n3", "n4"}, candidates["n3"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (msgspec.json.encode({"Pod": group_pod(), "NodeNameToVictims": {}}), "nodeCacheCapable"),
        (b'{"x":' + b"[" * 1_500, "no ExtenderPreemptionArgs"),
    ],
)
async def test_undecodable_preemption_requests_get_an_error_with_the_reason(body: bytes, message: str) -> None:
    async with serve_extender() as service:
        status, answer = await service.post("preempt", body)
    assert status == 400
    assert message in answer["error"]
