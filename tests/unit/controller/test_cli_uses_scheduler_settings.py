"""Commands use the running controller's configuration, AppGroups, costs and nodes."""

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
CUSTOM_CONFIG = (
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


def group_file(folder: Any, *objects: Any) -> str:
    """A file of an AppGroup and other objects."""
    file = folder / "group.json"
    file.write_text(json.dumps([{**each, "apiVersion": each.get("apiVersion") or APPGROUPS} for each in objects]))
    return str(file)


async def test_a_snapshot_has_the_settings_of_the_running_controller() -> None:
    session = session_of(CUSTOM_CONFIG, *NODES)
    snapshot = await session.snapshot()
    assert session.notes == {}
    facts = await read_facts_of(session)
    assert (snapshot.rules.weights_name, snapshot.rules.network_topology_name) == ("Mine", "ours")
    assert snapshot.policy.unit_us == 250
    assert (facts.max_wait_s, facts.our_schedulers) == (300, ("mine",))


@pytest.mark.parametrize("config", [None, HEAD + "unheard: of\n"])
async def test_an_unreadable_configuration_is_noted_and_defaults_are_used(config: str | None) -> None:
    session = session_of(config, *NODES)
    snapshot = await session.snapshot()
    assert snapshot.scheduler == SchedulerConfig()
    assert "defaults are used" in session.notes["configuration"]


async def test_all_commands_use_the_networktopology_and_weights_of_the_scheduler(tmp_path: Any) -> None:
    objects = (*NODES, COSTS, OTHER, group(most=5), pod("a", "n1"), pod("b", "n2"))
    file = group_file(tmp_path, group(most=5))
    session = session_of(CUSTOM_CONFIG, *objects)
    shown = await answer_of(session, "costs")
    assert (shown.network.unused, session.notes) == (False, {})
    (view,) = await answer_of(session, "graph")
    simulated = await answer_of(session, "simulate", "-f", file)
    explained = await answer_of(session, "explain", "pod", "a-n1")
    assert (shown.network.topology, shown.network.weights) == (f"{HOME}/ours", "Mine")
    assert [(edge.cost, edge.state) for edge in view.edges] == [(7, "violated")]
    assert (simulated.topology, simulated.weights) == (f"{HOME}/ours", "Mine")
    assert (explained.now.topology, explained.now.weight) == (f"{HOME}/ours", "Mine")


@pytest.mark.parametrize(
    ("document", "message"),
    [({"kind": []}, "holds 0 AppGroups"), ({"kind": "Deployment", "metadata": [1]}, r"Deployment \?: ")],
)
async def test_malformed_documents_are_usage_errors(document: dict[str, Any], message: str, tmp_path: Any) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps([document]))
    session = session_of(HEAD)
    with pytest.raises(ConfigError, match=message):
        await answer_of(session, "simulate", "-f", str(file))


def deployment(name: str, *, replicas: int) -> dict[str, Any]:
    template = pod(name, "", namespace="default")
    labels = {**template["metadata"]["labels"], "app": name}
    spec = {"replicas": replicas, "template": {"metadata": {"labels": labels}, "spec": {}}}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


async def test_more_replicas_than_a_plan_may_have_are_refused(tmp_path: Any) -> None:
    file = group_file(tmp_path, group("default"), deployment("a", replicas=2_000_000_000))
    with pytest.raises(ConfigError, match="at most 10000 are planned"):
        await answer_of(session_of(HEAD, *NODES), "simulate", "-f", file)


def three_cpu_pod(name: str, node: str = "") -> dict[str, Any]:
    """A pod, or a template, that takes three of a node's four CPUs."""
    found = pod(name, node, namespace="shop")
    containers = [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]
    return {**found, "spec": {**found["spec"], "containers": containers}}


async def test_simulate_ignores_resources_of_the_groups_own_pods_in_any_namespace(tmp_path: Any) -> None:
    nodes = [{**each, "status": {"allocatable": {"cpu": "4", "pods": "110"}}} for each in NODES]
    app_group = group("default")
    objects = [app_group]
    for name in "ab":
        template = three_cpu_pod(name)
        template["spec"] = {"containers": template["spec"]["containers"]}
        one = deployment(name, replicas=1)
        objects.append({**one, "spec": {**one["spec"], "template": template}})
    file = group_file(tmp_path, *objects)
    session = session_of(HEAD, *nodes, app_group, three_cpu_pod("a", "n1"), three_cpu_pod("b", "n2"))
    session.namespace = "default"
    simulated = await answer_of(session, "simulate", "-f", file)
    assert simulated.network_aware.unplaced == simulated.default.unplaced == 0


async def test_simulate_uses_the_spread_annotation_and_the_services_traffic_distribution(tmp_path: Any) -> None:
    nodes = [{**each, "status": {"allocatable": {"cpu": "4", "pods": "110"}}} for each in NODES]
    app_group = group("default")
    app_group["metadata"]["annotations"] = {"netaware.io/spread": "zone"}
    file = group_file(tmp_path, app_group, *(deployment(name, replicas=2) for name in "ab"))
    spec = {"selector": {"app": "b"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferClose"}
    service = {"kind": "Service", "metadata": {"name": "b", "namespace": "default"}, "spec": spec}
    session = session_of(HEAD, *nodes, service, topology(weight("UserDefined", 7)))
    simulated = await answer_of(session, "simulate", "-f", file)
    zones = simulated.network_aware.zones
    assert sorted(zones["a"]) == sorted(zones["b"]) == ["z1", "z2"]
    assert simulated.network_aware.violations == 0, "each caller has a replica in its own zone, which answers it"


CONFIGS = {"plain": HEAD, "parity": HEAD + "scheduler: {parity: upstream}\n"}
UNUSED_TOPOLOGIES = (
    topology(weight("UserDefined", 7), name="other", namespace="a"),
    topology(name="another", namespace="b"),
)


@pytest.mark.parametrize(
    ("config", "topologies"),
    [
        ("plain", (topology(weight("Mine", 7)),)),
        ("plain", UNUSED_TOPOLOGIES),
        ("parity", (topology(weight("NetperfCosts", 7), namespace=HOME),)),
    ],
)
async def test_plans_use_only_the_schedulers_costs_and_views_mark_unused_ones(
    config: str, topologies: tuple[dict[str, Any], ...], tmp_path: Any
) -> None:
    file = group_file(tmp_path, group())
    session = session_of(CONFIGS[config], *NODES, *topologies)
    used = state_of(await session.snapshot(), ()).costs("x")
    simulated = await answer_of(session, "simulate", "-f", file)
    session.notes.clear()
    shown = await answer_of(session, "costs")
    assert used.weight == ""
    assert (simulated.topology or "", simulated.weights or "") == (used.topology, used.weight)
    assert shown.network.weights is not None
    assert shown.network.unused
    assert "the scheduler does not use" in session.notes["costs"]
