"""From a planned move to an eviction: the planner confirms the move, it may be outdated, and the API server answers."""

from __future__ import annotations

from unittest.mock import AsyncMock, Mock, call

import msgspec
import pytest

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.pods import TARGET_ANNOTATION
from controller.descheduler.evict import evict, outdated_reason
from controller.descheduler.reporting import DeschedulerReporter
from controller.scheduler.placement.planner import PlanningError
from kubekit.errors import ApiError, KubekitError, UnreachableError
from tests.support.descheduler_builders import (
    NOW_S,
    History,
    Move,
    ReasonDurations,
    Target,
    UsageView,
    World,
    decide,
    list_moved_pods,
    make_config,
    make_host,
    make_pod_info,
    make_single_pod,
    to_usage,
)
from tests.unit.controller.misplacement import APART, make_shop_pod, make_shop_world

MOVE = Move("default/p", "uid-default-p", "default/Deployment/w", "n", "m", "LowNodeLoad", "r")
NODE_USAGE = {"hot1": to_usage(2.5, 1), "hot2": to_usage(2.5, 1), "idle": to_usage(0.5, 1), "large": to_usage(7, 1)}


def make_world_of_planned_pods(**node_by_group: str) -> World:
    """Two overutilized nodes, an idle and a large one, and groups with one pod each, which the group's plan placed."""
    world = World()
    for name, cores in (("hot1", "4"), ("hot2", "4"), ("idle", "4"), ("large", "40")):
        world.nodes[name] = make_host(name, cpu=cores)
    for name, node_name in node_by_group.items():
        group = {"metadata": {"name": name, "namespace": "default"}, "spec": {"numMembers": 1, "workloads": []}}
        world.network.on_group_change(f"default/{name}", None, msgspec.convert(group, AppGroup))
        labels = {APPGROUP_LABEL: name, WORKLOAD_LABEL: "w"}
        plan = {TARGET_ANNOTATION: f'{{"node": "{node_name}"}}'}
        world.pods[f"default/{name}"] = make_single_pod(name, node_name, labels=labels, annotations=plan)
    return world


def read_usage(world: World) -> UsageView:
    return UsageView(NODE_USAGE, dict.fromkeys(world.pods, to_usage(1.2, 0.1)))


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
    client, recorder = Mock(evict=AsyncMock(side_effect=error)), Mock()

    result = await evict(client, MOVE, dry_run=False)
    dry_run_result = await evict(client, MOVE, dry_run=True)
    DeschedulerReporter(recorder).report_eviction(MOVE, dry_run_result, dry_run=True)

    assert result.kind == kind
    assert dry_run_result.kind == (kind if error else "dry-run")
    assert result.stops_evictions == outcome.endswith("failed")
    calls = [call("default", "p", "uid-default-p", dry_run=dry_run) for dry_run in (False, True)]
    assert client.evict.await_args_list == calls
    reason = "EvictionFailed" if result.stops_evictions else "EvictionRefused"
    note = f'Dry run of the eviction from node "n" for the reason "r" {outcome}: {result.message}'
    assert [event.args[2:] for event in recorder.record.call_args_list] == ([(reason, note)] if outcome else [])


@pytest.mark.parametrize(("unschedulable", "ready"), [(True, True), (False, False)])
def test_a_move_is_outdated_if_its_target_takes_no_more_pods(unschedulable: bool, ready: bool) -> None:
    pods, nodes = {"default/p": make_pod_info("p", "n")}, {"n": make_host("n"), "m": make_host("m")}
    assert outdated_reason(MOVE, pods, nodes) == ""
    nodes["m"] = make_host("m", unschedulable=unschedulable, ready=ready)
    assert outdated_reason(MOVE, pods, nodes) == "node m, its target, takes no more pods"


@pytest.mark.parametrize(
    ("planned_nodes", "target", "cost_after"),
    [
        pytest.param(("z1-n2", "z1-n2"), "z1-n2", 1, id="the zone of its peer"),
        pytest.param(("z1-n1", "z2-n1"), "z1-n1", 0, id="two better nodes"),
        pytest.param(("z3-n1", "z3-n1"), "", None, id="the same node"),
        pytest.param(("z1-n1", "z3-n2"), "", None, id="the second is no better"),
        pytest.param((None, None), "", None, id="no node"),
        pytest.param(("z1-n1", "refuses"), "", None, id="the planner refuses"),
    ],
)
async def test_a_planned_pod_moves_only_if_two_new_plans_place_its_replacement_on_a_better_node(
    planned_nodes: tuple[str | None, ...], target: str, cost_after: int | None
) -> None:
    async def simulate_replacement(group: str, key: str, seed: int) -> Target | None:
        assert (group, key) == ("default/shop", "default/web-1")
        planned_node = planned_nodes[seed]
        if planned_node == "refuses":
            raise PlanningError("TooManyPods", "too many")
        return None if planned_node is None else Target(node=planned_node)

    world, annotations = make_shop_world(APART), {TARGET_ANNOTATION: '{"node": "z3-n1", "zone": "z3"}'}
    world.on_pod_change("default/web-1", make_shop_pod("web-1", "z3-n1", annotations=annotations))
    config = make_config(misplacement={"enabled": True})
    unconfirmed = decide(world.snapshot(), History(), ReasonDurations(), config, NOW_S, ignore_durations=True)

    decision = await unconfirmed.confirm(simulate_replacement)

    moves = [] if cost_after is None else [(target, cost_after)]
    assert [(move.target, move.cost_after) for move in decision.plan.moves] == moves
    assert [pending.move.target for pending in decision.pending_moves] == [target for target, _ in moves]
    assert [expected.node for expected in decision.replacement_targets.values()] == [target for target, _ in moves]
    conditions = [skip.condition for skip in decision.plan.skips if skip.pod == "default/web-1"]
    assert conditions == ([] if moves else ["planner"])


async def test_two_moves_of_one_round_do_not_use_the_same_capacity() -> None:
    """The plans of two groups have a pod each on the idle node; both pods would make it overutilized."""

    async def simulate_replacement(_group: str, _key: str, _seed: int) -> Target:
        return Target(node="idle")

    world = make_world_of_planned_pods(a="hot1", b="hot2")
    view = world.snapshot(read_usage(world))
    unconfirmed = decide(view, History(), ReasonDurations(), make_config(), NOW_S, ignore_durations=True)
    assert list_moved_pods(unconfirmed.decision) == ["a", "b"]

    plan = (await unconfirmed.confirm(simulate_replacement)).plan

    assert [(move.pod, move.target) for move in plan.moves] == [("default/a", "idle")]
    (skip,) = plan.skips
    assert (skip.pod, skip.condition) == ("default/b", "planner")
    assert "cpu usage would exceed the high threshold" in skip.reason


@pytest.mark.parametrize("max_skips", [2000, 0])
async def test_a_pod_whose_move_the_planner_would_undo_backs_off_so_that_others_move(
    max_skips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That pod has the lower priority, so it is chosen first in each round; its back-off does not depend on how many skipped pods the plan lists."""
    simulated_pods: list[str] = []

    async def simulate_replacement(_group: str, key: str, _seed: int) -> Target:
        simulated_pods.append(key)
        return Target(node="hot1")

    monkeypatch.setattr("controller.descheduler.plan_builder.MAX_SKIPS", max_skips)
    world = make_world_of_planned_pods(first="hot1")
    world.pods["default/second"] = make_single_pod("second", "hot1", priority=10)
    history, moves = History(), []
    for i in range(8):
        view = world.snapshot(read_usage(world))
        unconfirmed = decide(view, history, ReasonDurations(), make_config(), NOW_S + 60 * i, ignore_durations=True)
        decision = await unconfirmed.confirm(simulate_replacement)
        history = decision.history
        moves.append(list_moved_pods(decision))

    assert moves == [[], *[["second"]] * 4, [], *[["second"]] * 2]
    assert simulated_pods == ["default/first"] * 2, "the planner is asked again after five minutes, then after ten"
