"""Commands judge as the scheduler does: by the running controller's configuration, by its groups, costs and nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.cli.session import Session
from controller.cli.shared import read_facts_of, state_of
from controller.scheduler.config import SchedulerConfig
from kubekit.errors import ConfigError
from tests.unit.controller.test_cli_output import parsed
from tests.unit.controller.test_one_answer import HEAD, HOME, NODES, group, pod, session_of, topology, weight

APPGROUPS = "appgroup.diktyo.x-k8s.io/v1alpha1"
MINE = (
    HEAD
    + """
topology: {costPolicy: {unitUs: 250}}
scheduler:
  schedulerNames: [mine]
  gates: {maxWaitS: 300}
  networkOverhead: {weightsName: Mine, networkTopologyName: ours}
"""
)
COSTS = topology(weight("Mine", 7), weight("UserDefined", 2), name="ours", namespace=HOME)
OTHER = topology(weight("UserDefined", 3))


async def answer_of(session: Session, *argv: str) -> Any:
    command, options = parsed(*argv)
    return await command.run(session, options)


def group_file(folder: Any, *made: Any) -> str:
    """A file of an AppGroup and other objects."""
    file = folder / "group.json"
    file.write_text(json.dumps([{**each, "apiVersion": each.get("apiVersion") or APPGROUPS} for each in made]))
    return str(file)


async def test_a_snapshot_has_what_the_controller_was_configured_with() -> None:
    session = session_of(MINE, *NODES)
    snapshot = await session.snapshot()
    assert session.notes == {}
    facts = await read_facts_of(session)
    assert (snapshot.rules.weights_name, snapshot.rules.network_topology_name) == ("Mine", "ours")
    assert snapshot.policy.unit_us == 250
    assert (facts.max_wait_s, facts.our_schedulers) == (300, ("mine",))


@pytest.mark.parametrize("config", [None, HEAD + "unheard: of\n"])
async def test_a_configuration_that_cannot_be_read_is_noted_and_the_defaults_count(config: str | None) -> None:
    session = session_of(config, *NODES)
    snapshot = await session.snapshot()
    assert snapshot.scheduler == SchedulerConfig()
    assert "defaults are used" in session.notes["configuration"]


async def test_commands_look_costs_up_where_the_scheduler_does(tmp_path: Any) -> None:
    objects = (*NODES, COSTS, OTHER, group(most=5), pod("a", "n1"), pod("b", "n2"))
    file = group_file(tmp_path, group(most=5))
    session = session_of(MINE, *objects)
    shown = await answer_of(session, "costs")
    (view,) = await answer_of(session, "graph")
    simulated = await answer_of(session, "simulate", "-f", file)
    explained = await answer_of(session, "explain", "pod", "a-n1")
    assert (shown.network.topology, shown.network.weights) == (f"{HOME}/ours", "Mine")
    assert [(edge.cost, edge.state) for edge in view.edges] == [(7, "violated")]
    assert (simulated.topology, simulated.weights) == (f"{HOME}/ours", "Mine")
    assert (explained.now.topology, explained.now.weight) == (f"{HOME}/ours", "Mine")


@pytest.mark.parametrize(
    ("odd", "told"),
    [({"kind": []}, "holds 0 AppGroups"), ({"kind": "Deployment", "metadata": [1]}, r"Deployment \?: ")],
)
async def test_a_file_of_odd_objects_is_told_and_does_not_end_the_command(
    odd: dict[str, Any], told: str, tmp_path: Any
) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps([odd]))
    session = session_of(HEAD)
    with pytest.raises(ConfigError, match=told):
        await answer_of(session, "simulate", "-f", str(file))


def deployment(name: str, *, replicas: int) -> dict[str, Any]:
    made = pod(name, "", namespace="default")
    labels = {**made["metadata"]["labels"], "app": name}
    spec = {"replicas": replicas, "template": {"metadata": {"labels": labels}, "spec": {}}}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


async def test_more_replicas_than_a_plan_may_have_are_refused(tmp_path: Any) -> None:
    file = group_file(tmp_path, group("default"), deployment("a", replicas=2_000_000_000))
    with pytest.raises(ConfigError, match="at most 10000 are planned"):
        await answer_of(session_of(HEAD, *NODES), "simulate", "-f", file)


def large(name: str, on: str = "", **more: Any) -> dict[str, Any]:
    """A pod, or a template, that takes three of a node's four CPUs."""
    made = pod(name, on, namespace="shop")
    containers = [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]
    return {**made, "spec": {**made["spec"], "containers": containers}, **more}


async def test_the_room_of_a_groups_own_pods_is_free_for_it_whichever_namespace_they_are_in(tmp_path: Any) -> None:
    nodes = [{**each, "status": {"allocatable": {"cpu": "4", "pods": "110"}}} for each in NODES]
    mine = group("default")
    made = [mine]
    for name in "ab":
        template = large(name)
        template["spec"] = {"containers": template["spec"]["containers"]}
        one = deployment(name, replicas=1)
        made.append({**one, "spec": {**one["spec"], "template": template}})
    file = group_file(tmp_path, *made)
    session = session_of(HEAD, *nodes, mine, large("a", "n1"), large("b", "n2"))
    session.namespace = "default"
    simulated = await answer_of(session, "simulate", "-f", file)
    assert simulated.network_aware.unplaced == simulated.default.unplaced == 0


async def test_a_simulation_follows_the_groups_annotations_and_the_services_and_needs_no_costs(tmp_path: Any) -> None:
    nodes = [{**each, "status": {"allocatable": {"cpu": "4", "pods": "110"}}} for each in NODES]
    spec = {"selector": {"app": "b"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferClose"}
    near = {"kind": "Service", "metadata": {"name": "b", "namespace": "default"}, "spec": spec}
    found: dict[str, Any] = {}
    for spread, more in (("none", ()), ("zone", (near, topology(weight("UserDefined", 7))))):
        made = group("default")
        made["metadata"]["annotations"] = {"netaware.io/spread": spread}
        file = group_file(tmp_path, made, *(deployment(name, replicas=2) for name in "ab"))
        session = session_of(HEAD, *nodes, *more)
        found[spread] = await answer_of(session, "simulate", "-f", file)
    packed, apart = found["none"].network_aware.zones, found["zone"].network_aware.zones
    assert len({*packed["a"], *packed["b"]}) == 1
    assert found["none"].default.violations == 0
    # Each caller has a replica in its own zone, which answers it.
    assert sorted(apart["a"]) == sorted(apart["b"]) == ["z1", "z2"]
    assert found["zone"].network_aware.violations == 0


HERE = {"plain": HEAD, "parity": HEAD + "scheduler: {parity: upstream}\n"}
ELSEWHERE = (topology(weight("UserDefined", 7), name="other", namespace="a"), topology(name="another", namespace="b"))


@pytest.mark.parametrize(
    ("config", "topologies"),
    [
        ("plain", (topology(weight("Mine", 7)),)),
        ("plain", ELSEWHERE),
        ("parity", (topology(weight("NetperfCosts", 7), namespace=HOME),)),
    ],
)
async def test_plans_go_by_no_other_costs_than_the_scheduler_and_views_say_when_they_show_others(
    config: str, topologies: tuple[dict[str, Any], ...], tmp_path: Any
) -> None:
    file = group_file(tmp_path, group())
    session = session_of(HERE[config], *NODES, *topologies)
    used = state_of(await session.snapshot(), ()).costs("x")
    simulated = await answer_of(session, "simulate", "-f", file)
    session.notes.clear()
    shown = await answer_of(session, "costs")
    assert used.weight == ""
    assert (simulated.topology or "", simulated.weights or "") == (used.topology, used.weight)
    assert shown.network.weights is not None
    assert shown.network.unused
    assert "the scheduler does not use" in session.notes["costs"]


async def test_costs_that_the_scheduler_uses_are_shown_without_a_note() -> None:
    own, shared = (topology(weight("UserDefined", cost), namespace=at) for at, cost in (("x", 7), ("default", 3)))
    session = session_of(HEAD, *NODES, own, shared)
    assert not (await answer_of(session, "costs")).network.unused
    assert session.notes == {}
