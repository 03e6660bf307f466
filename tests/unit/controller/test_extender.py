"""The extender over HTTP: answers to filter, prioritize and preempt, and errors for requests that cannot be decoded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import AllocatableArgs, SchedulerConfig
from controller.scheduler.extender import encoding, handler
from tests.unit.controller.extender_service import (
    ALL_NODES,
    ExtenderService,
    make_example_state,
    make_planned_pod_body,
    make_pod_body,
    serve_extender,
)
from tests.unit.controller.scheduler_objects import (
    make_node,
    make_pod,
    make_topology,
)

POD = make_pod_body()
LIMIT_BYTES = 4096
FOUND_NO_NODE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
FOREIGN_PODS: dict[str, dict[str, Any]] = {
    "no labels": {"metadata": {"name": "bare", "namespace": "default"}, "spec": {}},
    "null labels": {"metadata": {"name": "bare", "namespace": "default", "labels": None}, "spec": {}},
    "nothing": {},
    "no group": make_pod_body(labels={APPGROUP_LABEL: "unknown", WORKLOAD_LABEL: "P1"}),
    "no workload": make_pod_body(labels={APPGROUP_LABEL: "a1"}),
    "another workload": make_pod_body(labels={APPGROUP_LABEL: "a1", WORKLOAD_LABEL: "no-such-workload"}),
    "another namespace": make_pod_body(namespace="elsewhere", labels={APPGROUP_LABEL: "a2", WORKLOAD_LABEL: "P1"}),
    "another scheduler": make_pod_body(scheduler="default-scheduler"),
    "placed by affinity": make_pod_body(
        labels={APPGROUP_LABEL: "a1", WORKLOAD_LABEL: "P1", "netaware.io/placement": "affinity"}
    ),
}


@pytest.fixture
async def service() -> AsyncIterator[ExtenderService]:
    async with serve_extender() as service:
        yield service


def make_victims(**uids_by_node: list[str]) -> dict[str, Any]:
    """Nodes with the UIDs of their victims, as kube-scheduler writes them."""
    return {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1} for node, uids in uids_by_node.items()
    }


async def preempt(service: ExtenderService, candidates: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """The candidates that remain, with their victims."""
    status, answer = await service.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": candidates})
    assert status == 200, answer
    return dict(answer["NodeNameToMetaVictims"])


@pytest.mark.parametrize("pod", FOREIGN_PODS.values(), ids=FOREIGN_PODS)
async def test_foreign_pods_get_every_node_and_equal_scores(pod: dict[str, Any], service: ExtenderService) -> None:
    answer = await service.ask("filter", pod)
    assert answer == {"nodenames": ALL_NODES, "failedNodes": {}, "failedAndUnresolvableNodes": {}, "error": ""}
    assert await service.read_scores(pod) == dict.fromkeys(ALL_NODES, 0)


@pytest.mark.parametrize("deleted", ["topology", "costs", "group"])
async def test_changes_count_from_the_next_request_on(deleted: str, service: ExtenderService) -> None:
    assert await service.list_passed(POD) == ["n1", "n2"]
    match deleted:
        case "topology":
            service.state.on_topology_change("default/nt-default", None, None)
        case "costs":  # unknown costs refuse no node
            service.state.on_topology_change("default/nt-default", None, make_topology({}))
        case "group":
            service.state.on_group_change("default/a1", service.state.groups["default/a1"], None)
    assert await service.list_passed(POD) == ALL_NODES
    are_scores_equal = set((await service.read_scores(POD)).values()) == {0}
    assert are_scores_equal == (deleted != "costs")


async def test_unknown_nodes_are_scored_as_nodes_without_labels(service: ExtenderService) -> None:
    assert sorted(await service.list_passed(POD, ["brand-new", "n4", "n1"])) == ["brand-new", "n1"]
    assert await service.read_scores(POD, ["brand-new", "n1", "n2"]) == {"brand-new": 0, "n1": 100, "n2": 99}


async def test_the_list_that_filter_returned_is_scored_by_the_present_nodes(service: ExtenderService) -> None:
    passed = await service.list_passed(POD)
    service.state.on_node_change("n2", None, make_node("n2", "r", "z2"))
    assert await service.read_scores(POD, passed) == {"n1": 100, "n2": 0}
    assert await service.read_scores(POD, ["n2", "n3"]) == {"n2": 100, "n3": 100}


async def test_refused_nodes_beyond_the_limit_share_a_reason_per_zone(
    monkeypatch: pytest.MonkeyPatch, service: ExtenderService
) -> None:
    monkeypatch.setattr(encoding, "MAX_NODE_REASONS", 1)
    answer = await service.ask("filter", POD)
    assert set(answer["failedNodes"]) == {"n3"}
    reasons = answer["failedAndUnresolvableNodes"]
    assert reasons["n3"].startswith("Node n3 does not meet")
    assert reasons["n4"] == "in z2: network requirements from Workload dependencies, Satisfied: 0 Violated: 1"


async def test_the_planned_host_scores_highest_then_its_zone_then_others(service: ExtenderService) -> None:
    scores = await service.read_scores(make_planned_pod_body("n4", "z2"))
    assert sorted(scores, key=lambda node: -scores[node]) == ["n4", "n3", "n1", "n2"]
    assert scores["n4"] == 100
    pod_with_undecodable_target = make_pod_body(annotations={"netaware.io/target": "no json"})
    assert await service.read_scores(pod_with_undecodable_target, ["n1", "n2"]) == {"n1": 100, "n2": 0}


async def test_filter_returns_the_planned_host_or_else_its_zone(service: ExtenderService) -> None:
    no_failures = {"failedNodes": {}, "failedAndUnresolvableNodes": {}, "error": ""}
    pod = make_planned_pod_body("n2", "z1")
    assert await service.ask("filter", pod) == {"nodenames": ["n2"], **no_failures}
    assert await service.ask("filter", pod, ["n1", "n3", "n4"]) == {"nodenames": ["n1"], **no_failures}
    metrics = generate_latest(service.registry).decode()
    assert 'netaware_extender_decisions_total{result="planned",verb="filter"} 2.0' in metrics


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(make_planned_pod_body("n4", "z2"), id="the rule refuses the node, because costs have changed"),
        pytest.param(make_planned_pod_body("gone", "z2"), id="the node is gone"),
        pytest.param(make_planned_pod_body("n2", "z1", status=FOUND_NO_NODE), id="another filter may have refused it"),
    ],
)
async def test_filter_follows_the_rule_if_the_plan_cannot_be_followed(
    pod: dict[str, Any], service: ExtenderService
) -> None:
    assert await service.list_passed(pod) == ["n1", "n2"]


async def test_filter_passes_no_node_if_neither_plan_nor_rule_allows_one(service: ExtenderService) -> None:
    assert await service.list_passed(make_planned_pod_body("n2", "z1"), ["n3", "n4"]) == []


async def test_plans_do_not_count_in_upstream_parity() -> None:
    async with serve_extender(SchedulerConfig(parity="upstream")) as service:
        assert await service.list_passed(make_planned_pod_body("n2", "z1")) == ["n1", "n2"]
        assert await service.read_scores(make_planned_pod_body("n4", "z2"), ["n1", "n2"]) == {"n1": 100, "n2": 0}


async def test_filter_passes_every_node_if_pods_are_placed_by_affinity() -> None:
    async with serve_extender(SchedulerConfig(placement="affinity")) as service:
        assert await service.list_passed(make_planned_pod_body("n2", "z1")) == ALL_NODES


async def test_the_first_pod_of_a_group_gets_its_planned_node() -> None:
    config = SchedulerConfig()
    state = make_example_state(config)
    state.on_pod_change("default/p2-0", make_pod("P2", "n1", name="p2-0"), None)
    async with serve_extender(config, state) as service:
        assert await service.list_passed(POD) == ALL_NODES
        assert await service.list_passed(make_planned_pod_body("n4", "z2")) == ["n4"]


async def test_allocatable_adds_its_weighted_score_for_our_pods_only() -> None:
    pod_without_group = {"metadata": {"name": "bare"}, "spec": {"schedulerName": "network-aware-scheduler"}}
    async with serve_extender(SchedulerConfig(allocatable=AllocatableArgs(weight=2))) as service:
        # n1 to n4 have 1 to 4 cores: 100, 66, 33 and 0 points, times 2.
        assert await service.read_scores(pod_without_group) == {"n1": 200, "n2": 132, "n3": 66, "n4": 0}
        assert await service.read_scores(POD, ["n1", "n2"]) == {"n1": 200 + 100, "n2": 0}
        assert await service.read_scores(FOREIGN_PODS["another scheduler"]) == dict.fromkeys(ALL_NODES, 0)


async def test_preempt_keeps_the_nodes_that_filter_passes_without_the_victims(service: ExtenderService) -> None:
    """The cost from z2 to P2 in z1 is above the limit, so filter would refuse nodes of z2 after the evictions."""
    candidates = make_victims(n1=[], n2=["other"], n3=["other"], n4=[])
    assert await preempt(service, candidates, POD) == {name: candidates[name] for name in ("n1", "n2")}


@pytest.mark.parametrize(
    ("target", "violations", "nodes"), [("n2", 0, {"n2"}), ("n2", 1, {"n1", "n2"}), ("n3", 0, {"n1", "n2"})]
)
async def test_preempt_keeps_only_the_planned_node_unless_another_violates_fewer_budgets(
    target: str, violations: int, nodes: set[str], service: ExtenderService
) -> None:
    candidates = make_victims(n1=["x"], n2=["y"], n3=["z"])
    candidates["n2"]["NumPDBViolations"] += violations
    assert set(await preempt(service, candidates, make_planned_pod_body(target, ""))) == nodes


async def test_victims_that_the_pod_depends_on_do_not_count(service: ExtenderService) -> None:
    """Two pods of P2 in z2 and one in z1: P1 may run in z2, unless they would be evicted for it.

    Each has replaced a pod of the same name and node while the watch was interrupted, as a StatefulSet's pods do.
    """
    for uid in ("a", "b"):
        old, new = (make_pod("P2", "n3", name=uid, metadata={"uid": value}) for value in (f"old-{uid}", uid))
        service.state.on_pod_change(f"default/{uid}", None, old)
        service.state.on_pod_change(f"default/{uid}", old, new)
    assert set(await preempt(service, make_victims(n1=[], n3=[], n4=[]), POD)) == {"n3", "n4"}
    assert set(await preempt(service, make_victims(n3=["a"], n4=["a", "b"]), POD)) == {"n3"}


@pytest.mark.parametrize("name", ["another scheduler", "no workload", "no group"])
async def test_preempt_keeps_all_nodes_of_foreign_pods(name: str, service: ExtenderService) -> None:
    candidates = make_victims(n3=["x"])
    remaining = await preempt(service, {**candidates, "n4": None}, FOREIGN_PODS[name])
    assert remaining.keys() == {"n3", "n4"}
    assert remaining["n3"] == candidates["n3"]


@pytest.mark.parametrize(
    ("nodes", "passed", "refused"), [([], [], set()), (None, [], set()), (["n1", "n1", "n3", "n3"], ["n1"], {"n3"})]
)
async def test_unusual_lists_of_nodes_are_answered(
    nodes: list[str] | None, passed: list[str], refused: set[str], service: ExtenderService
) -> None:
    answer = await service.ask("filter", POD, nodes)
    assert answer["nodenames"] == passed
    assert answer["error"] == ""
    assert set(answer["failedAndUnresolvableNodes"]) == refused
    assert (await service.read_scores(POD, nodes)).keys() == set(nodes or ())


@pytest.mark.parametrize("keys", ["Pod NodeNames", "pod nodenames", "POD NODENAMES", "NodeNames Pod"])
async def test_keys_may_have_any_case_as_in_go(keys: str, service: ExtenderService) -> None:
    values = {"pod": POD, "nodenames": ALL_NODES}
    status, answer = await service.post("filter", {key: values[key.lower()] for key in keys.split()})
    assert status == 200
    assert answer["nodenames"] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("verbs", "body", "status", "message"),
    [
        ("filter prioritize", b"", 400, "no ExtenderArgs"),
        ("filter prioritize", b"[]", 400, "no ExtenderArgs"),
        ("filter prioritize", b'{"pod": 3, "nodenames": []}', 400, "no ExtenderArgs"),
        ("filter prioritize", b'{"pod": {"metadata": {"labels": {"a": 1}}}, "nodenames": []}', 400, "no ExtenderArgs"),
        ("filter prioritize", b'{"pod": {}, "nodes": {"items": []}}', 400, "nodeCacheCapable"),
        ("filter prioritize", b'{"pod": {}, "nodenames": "n1"}', 400, "nodenames"),
        ("filter prioritize", msgspec.json.encode({"pod": POD, "nodenames": ["n1", 3]}), 400, "nodenames"),
        ("filter prioritize", b'{"pod": {}, "nodenames": "' + b"x" * LIMIT_BYTES + b'"}', 413, "larger than 4096 bytes"),
        ("preempt", msgspec.json.encode({"Pod": POD, "NodeNameToVictims": {}}), 400, "nodeCacheCapable"),
        ("preempt", b'{"x":' + b"[" * 1_500, 400, "no ExtenderPreemptionArgs"),
    ],
)  # fmt: skip
async def test_undecodable_requests_get_an_error_with_the_reason(
    verbs: str, body: bytes, status: int, message: str, monkeypatch: pytest.MonkeyPatch, service: ExtenderService
) -> None:
    monkeypatch.setattr(handler, "MAX_REQUEST_BYTES", LIMIT_BYTES)
    for verb in verbs.split():
        actual_status, answer = await service.post(verb, body)
        assert actual_status == status
        assert message in answer["error"]
        metrics = generate_latest(service.registry).decode()
        assert f'netaware_extender_errors_total{{status="{status}",verb="{verb}"}} 1.0' in metrics
    assert await service.list_passed(POD) == ["n1", "n2"], "the next request is answered"


async def test_a_body_of_unknown_length_is_refused_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, service: ExtenderService
) -> None:
    monkeypatch.setattr(handler, "MAX_REQUEST_BYTES", LIMIT_BYTES)

    async def stream_body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 1024

    async with service.session.post(f"{service.url}/filter", data=stream_body()) as answer:
        assert answer.status == 413


async def test_requests_are_refused_before_the_stores_are_listed(service: ExtenderService) -> None:
    service.unready_reason = "not listed yet: pods"
    status, answer = await service.post("filter", {"pod": POD, "nodenames": ALL_NODES})
    assert status == 503
    assert "not listed yet: pods" in answer["error"]
