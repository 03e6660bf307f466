"""The descheduler respects fit, budgets and dry runs, on a real control plane with usage from a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller.descheduler.disruption_budgets import DISRUPTION_BUDGETS
from controller.descheduler.evict import evict
from controller.descheduler.plan import Move
from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, NODES, PODS, Node, Object, Pod
from lab.polling import poll_until
from netperf.contract import CONTROLLER, HOT_TAINT
from tests.integration.conftest import CreateNode, StartScheduler
from tests.integration.descheduler.harness import (
    DeschedulerHarness,
    count_eviction_attempts,
    create_bound_replica_set,
    create_nodes,
    wait_for_rounds,
)


@pytest_asyncio.fixture(autouse=True)
async def stock_scheduler(start_scheduler: StartScheduler) -> None:
    """kube-scheduler without the extender, for replacements."""
    await start_scheduler()


def make_move(pod: Pod, uid: str = "") -> Move:
    return Move(pod.metadata.key, uid or pod.metadata.uid, "", pod.spec.node_name, "", "LowNodeLoad", "")


async def run_dry_run(harness: DeschedulerHarness) -> Any:
    """The JSON of `kubectl netaware deschedule --dry-run` with the configuration in the cluster."""
    head = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    data = {"config.yaml": yaml.safe_dump({**head, "descheduler": harness.make_config()})}
    labels, volume = {"app": CONTROLLER}, {"name": "config", "configMap": {"name": "config"}}
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": [volume]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}}
    for resource, name, body in ((CONFIGMAPS, "config", {"data": data}), (DEPLOYMENTS, CONTROLLER, deployment)):
        whole = {**resource.type_meta, "metadata": {"name": name}, **body}
        await harness.client.create(resource, whole, Object, namespace=harness.netaware_namespace)
    script = Path(sys.executable).parent / "kubectl-netaware"
    flags = ["--kubeconfig", str(harness.control_plane.kubeconfig), "--netaware-namespace", harness.netaware_namespace]
    process = await asyncio.create_subprocess_exec(
        script,
        *("deschedule", "--dry-run", "-o", "json"),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


@pytest.mark.timeout(240)
async def test_pods_that_fit_nowhere_else_stay_and_an_event_on_the_node_says_why(
    harness: DeschedulerHarness, create_node: CreateNode
) -> None:
    names = await create_nodes(harness, create_node, 3)
    only_here = {"nodeSelector": {"kubernetes.io/hostname": names[0]}}
    await create_bound_replica_set(harness.client, harness.namespace, "tied", 0.8, [names[0]] * 6, **only_here)
    await harness.wait_for_running_pods(6)
    replica = harness.start_manager()

    async def has_event() -> bool:
        return any(names[0] in event.metadata.name for event in await harness.list_events("NotRelieved", "default"))

    await poll_until(has_event)
    (note,) = {e.note for e in await harness.list_events("NotRelieved", "default") if names[0] in e.metadata.name}
    assert note == "Node is overutilized, but no further pod can be moved: 6 node-fit"
    await wait_for_rounds(replica, 10)
    assert await count_eviction_attempts(replica) == 0
    assert (await replica.read_metrics())["netaware_descheduler_stuck_nodes"] == 1


@pytest.mark.timeout(240)
async def test_a_budget_with_zero_disruptions_keeps_its_pods_and_the_dry_run_says_so(
    harness: DeschedulerHarness, create_node: CreateNode
) -> None:
    names = await create_nodes(harness, create_node, 3)
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    budget = {**DISRUPTION_BUDGETS.type_meta, "metadata": {"name": "never"}, "spec": spec}
    await harness.client.create(DISRUPTION_BUDGETS, budget, Object, namespace=harness.namespace)
    await create_bound_replica_set(harness.client, harness.namespace, "guarded", 0.8, [names[0]] * 6)
    await harness.wait_for_running_pods(6)
    replica = harness.start_manager()
    await wait_for_rounds(replica, 15)
    assert await count_eviction_attempts(replica) == 0
    assert (await replica.read_metrics())['netaware_descheduler_skipped_pods{condition="disruption-budget"}'] == 6
    plan = (await run_dry_run(harness))["plan"]
    assert plan["moves"] == []
    reason = f"PodDisruptionBudget {harness.namespace}/never allows no disruption now"
    assert {(skip["condition"], skip["reason"]) for skip in plan["skips"]} == {("disruption-budget", reason)}
    (pod, *_) = harness.usage.running_pods()[names[0]]
    result = await evict(harness.client, make_move(pod))
    assert result.kind == "disruption-budget", "the API server says the same"


@pytest.mark.timeout(240)
async def test_a_dry_run_evicts_no_pod_and_shows_the_moves_of_the_live_loop(
    harness: DeschedulerHarness, create_node: CreateNode
) -> None:
    names = await create_nodes(harness, create_node, 4)
    await create_bound_replica_set(harness.client, harness.namespace, "a", 0.8, [names[0]] * 3)
    await create_bound_replica_set(harness.client, harness.namespace, "b", 0.7, [names[0]] * 3)
    await harness.wait_for_running_pods(6)
    taints = [{"key": key, "effect": "PreferNoSchedule"} for key in ("other", HOT_TAINT)]
    await harness.client.patch(NODES, names[0], {"spec": {"taints": taints}}, Node)
    dry_run = harness.start_manager(dryRun=True)

    async def has_planned() -> bool:
        return await count_eviction_attempts(dry_run) > 0

    await poll_until(has_planned)
    metrics = await dry_run.read_metrics()
    assert {name for name, count in metrics.items() if "evictions_total" in name and count} == {
        'netaware_descheduler_evictions_total{result="dry-run",strategy="LowNodeLoad"}'
    }
    untainted = await harness.client.get(NODES, names[0], Node)
    assert [taint.key for taint in untainted.spec.taints or []] == ["other"]
    (planned_move,) = (await run_dry_run(harness))["plan"]["moves"]
    assert planned_move["target"] in names[1:]
    assert planned_move["nodeBefore"]["cpu"] > 50 > planned_move["nodeAfter"]["cpu"]
    assert len(harness.usage.running_pods()[names[0]]) == 6
    await dry_run.stop()
    live = harness.start_manager()

    async def has_evicted() -> bool:
        return bool(await harness.list_events("Descheduled"))

    await poll_until(has_evicted)
    await wait_for_rounds(live, 3)
    (event,) = await harness.list_events("Descheduled")
    assert event.metadata.name.startswith(planned_move["pod"].partition("/")[2])
    assert planned_move["pod"] not in harness.usage.pods.items


async def test_an_eviction_does_not_evict_another_pod_of_the_same_name(
    harness: DeschedulerHarness, create_node: CreateNode, client: Client
) -> None:
    (name,) = await create_nodes(harness, create_node, 1)
    await create_bound_replica_set(client, harness.namespace, "one", 0.1, [name])
    await harness.wait_for_running_pods(1)
    ((pod,),) = harness.usage.running_pods().values()
    assert (await evict(client, make_move(pod, uid="another"))).kind == "gone"
    assert (
        await client.get(PODS, pod.metadata.name, Pod, namespace=harness.namespace)
    ).metadata.uid == pod.metadata.uid
    assert (await evict(client, make_move(pod))).kind == "evicted"
