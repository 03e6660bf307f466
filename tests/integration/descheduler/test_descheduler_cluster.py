"""The descheduler respects fit, budgets and dry runs, on a real control plane with usage from a real Prometheus."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
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
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program, run_command
from netperf.contract import CONTROLLER, HOT_TAINT
from tests.integration.conftest import CreateNode, StartScheduler
from tests.integration.descheduler.harness import (
    DeschedulerHarness,
    count_eviction_attempts,
    serve_usage,
    wait_for_rounds,
)
from tests.support.bodies import make_deployment
from tests.support.prometheus_program import run_prometheus


@pytest_asyncio.fixture(autouse=True)
async def stock_scheduler(start_scheduler: StartScheduler) -> None:
    """kube-scheduler without the extender, for replacements."""
    await start_scheduler()


@pytest_asyncio.fixture
async def harness(
    client: Client,
    namespace: str,
    netaware_namespace: str,
    control_plane: ControlPlane,
    kwok: Program,
    prometheus_programs: Mapping[str, Path],
    create_node: CreateNode,
    tmp_path: Path,
) -> AsyncIterator[DeschedulerHarness]:
    """Replicas that a test leaves running are stopped at its end."""
    async with serve_usage(client, namespace) as usage:
        job = {"job_name": "usage", "static_configs": [{"targets": [f"127.0.0.1:{usage.port}"]}]}
        async with run_prometheus(prometheus_programs, tmp_path, jobs=[job]) as prometheus:
            harness = DeschedulerHarness(
                client, namespace, netaware_namespace, control_plane, tmp_path, usage, prometheus.url, create_node
            )
            yield harness
            for replica in harness.replicas:
                await replica.stop()


def make_move(pod: Pod, uid: str = "") -> Move:
    return Move(pod.metadata.key, uid or pod.metadata.uid, "", pod.spec.node_name, "", "LowNodeLoad", "")


async def run_dry_run(harness: DeschedulerHarness) -> Any:
    """The JSON of `kubectl netaware deschedule --dry-run` with the configuration in the cluster."""
    head = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    data = {"config.yaml": yaml.safe_dump({**head, "descheduler": harness.make_config()})}
    config_map = {**CONFIGMAPS.type_meta, "metadata": {"name": "config"}, "data": data}
    await harness.client.create(CONFIGMAPS, config_map, Object, namespace=harness.netaware_namespace)
    volume = {"name": "config", "configMap": {"name": "config"}}
    deployment = make_deployment(CONTROLLER, {"name": "main", "image": "none"}, replicas=0, volumes=[volume])
    await harness.client.create(DEPLOYMENTS, deployment, Object, namespace=harness.netaware_namespace)
    program = Path(sys.executable).parent / "kubectl-netaware"
    flags = [f"--kubeconfig={harness.control_plane.kubeconfig}", f"--netaware-namespace={harness.netaware_namespace}"]
    output = await run_command([program, "deschedule", "--dry-run", "-o", "json", *flags], "deschedule", 60)
    return json.loads(output)


@pytest.mark.timeout(240)
async def test_pods_that_fit_nowhere_else_stay_and_an_event_on_the_node_says_why(harness: DeschedulerHarness) -> None:
    (hot_node, *_) = await harness.create_nodes(3)
    only_here = {"nodeSelector": {"kubernetes.io/hostname": hot_node}}
    await harness.create_bound_pods("tied", 0.8, [hot_node] * 6, **only_here)
    replica = harness.start_manager()

    async def list_notes() -> set[str]:
        events = await harness.list_events("NotRelieved", "default")
        return {event.note for event in events if hot_node in event.metadata.name}

    (note,) = await poll_until(list_notes)
    assert note == "Node is overutilized, but no further pod can be moved: 6 node-fit"
    await wait_for_rounds(replica, 10)
    assert await count_eviction_attempts(replica) == 0
    assert (await replica.read_metrics())["netaware_descheduler_stuck_nodes"] == 1


@pytest.mark.timeout(240)
async def test_a_budget_with_zero_disruptions_keeps_its_pods_and_the_dry_run_says_so(
    harness: DeschedulerHarness,
) -> None:
    (hot_node, *_) = await harness.create_nodes(3)
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    budget = {**DISRUPTION_BUDGETS.type_meta, "metadata": {"name": "never"}, "spec": spec}
    await harness.client.create(DISRUPTION_BUDGETS, budget, Object, namespace=harness.namespace)
    await harness.create_bound_pods("guarded", 0.8, [hot_node] * 6)
    replica = harness.start_manager()

    await wait_for_rounds(replica, 15)

    assert await count_eviction_attempts(replica) == 0
    assert (await replica.read_metrics())['netaware_descheduler_skipped_pods{condition="disruption-budget"}'] == 6
    plan = (await run_dry_run(harness))["plan"]
    assert plan["moves"] == []
    reason = f"PodDisruptionBudget {harness.namespace}/never allows no disruption now"
    assert {(skip["condition"], skip["reason"]) for skip in plan["skips"]} == {("disruption-budget", reason)}
    (pod, *_) = harness.usage.list_running_pods()[hot_node]
    result = await evict(harness.client, make_move(pod))
    assert result.kind == "disruption-budget", "the API server says the same"


@pytest.mark.timeout(240)
async def test_a_dry_run_evicts_no_pod_and_shows_the_moves_of_the_live_loop(harness: DeschedulerHarness) -> None:
    hot_node, *other_nodes = await harness.create_nodes(4)
    await harness.create_bound_pods("a", 0.8, [hot_node] * 3)
    await harness.create_bound_pods("b", 0.7, [hot_node] * 3)
    taints = [{"key": key, "effect": "PreferNoSchedule"} for key in ("other", HOT_TAINT)]
    await harness.client.patch(NODES, hot_node, {"spec": {"taints": taints}}, Node)

    dry_run = harness.start_manager(dryRun=True)
    await poll_until(partial(count_eviction_attempts, dry_run))
    counts = {name: count for name, count in (await dry_run.read_metrics()).items() if "evictions_total" in name}
    (counted_name,) = (name for name, count in counts.items() if count)
    assert counted_name == 'netaware_descheduler_evictions_total{result="dry-run",strategy="LowNodeLoad"}'
    untainted_node = await harness.client.get(NODES, hot_node, Node)
    assert [taint.key for taint in untainted_node.spec.taints or []] == ["other"]
    (planned_move,) = (await run_dry_run(harness))["plan"]["moves"]
    assert planned_move["target"] in other_nodes
    assert planned_move["nodeBefore"]["cpu"] > 50 > planned_move["nodeAfter"]["cpu"], "50 % is the high threshold"
    assert len(harness.usage.list_running_pods()[hot_node]) == 6
    await dry_run.stop()

    live = harness.start_manager()
    await poll_until(partial(harness.list_events, "Descheduled"))
    await wait_for_rounds(live, 3)
    (event,) = await harness.list_events("Descheduled")
    assert event.metadata.name.startswith(planned_move["pod"].partition("/")[2])
    assert planned_move["pod"] not in harness.usage.pods.items


async def test_an_eviction_does_not_evict_another_pod_of_the_same_name(harness: DeschedulerHarness) -> None:
    nodes = await harness.create_nodes(1)
    await harness.create_bound_pods("one", 0.1, nodes)
    ((pod,),) = harness.usage.list_running_pods().values()
    assert (await evict(harness.client, make_move(pod, uid="another"))).kind == "gone"
    stored_pod = await harness.client.get(PODS, pod.metadata.name, Pod, namespace=harness.namespace)
    assert stored_pod.metadata.uid == pod.metadata.uid
    assert (await evict(harness.client, make_move(pod))).kind == "evicted"
