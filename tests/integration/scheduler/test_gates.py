"""Gates open in the planned order and in time, on the stock kube-scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.pods import Pod
from controller.scheduler.config import GatesConfig, SchedulerConfig
from controller.scheduler.gating.opener import GateOpener
from kubekit.reflector import Reflector
from kubekit.wire import PODS
from lab.polling import poll_until
from tests.integration.scheduler.harness import LONG_WAIT, SchedulerHarness
from tests.support.online_boutique import EXPECTED_ORDERS
from tests.support.tasks import supervised_tasks

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(600)]

BOUTIQUE_FILE = Path(__file__).parents[3] / "manifests" / "examples" / "online-boutique" / "appgroup.yaml"


@asynccontextmanager
async def record_bindings(harness: SchedulerHarness) -> AsyncIterator[list[str]]:
    """Record the names of pods in the order in which they are bound."""
    bound_names: list[str] = []

    def record(_: str, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name and (old is None or not old.spec.node_name):
            bound_names.append(new.metadata.name)

    store: Reflector[Pod] = Reflector(harness.client, PODS, Pod, namespace=harness.namespace)
    store.subscribe(record)
    async with supervised_tasks({"pods": store.run()}):
        await store.synced.wait()
        yield bound_names


async def test_the_online_boutique_is_bound_in_the_order_of_its_algorithm(harness: SchedulerHarness) -> None:
    await harness.create_zones("a", "b", "c")
    order = EXPECTED_ORDERS["KahnSort"].split()
    async with harness.run_scheduling(SchedulerConfig(gates=LONG_WAIT)), record_bindings(harness) as bound_names:
        group: dict[str, Any] = yaml.safe_load(BOUTIQUE_FILE.read_text())
        group["spec"]["topologySortingAlgorithm"] = "KahnSort"
        await harness.client.create(APPGROUPS, group, AppGroup, namespace=harness.namespace)
        for workload in group["spec"]["workloads"]:
            selector = workload["workload"]["selector"]
            await harness.create_pod(selector.lower(), group="online-boutique", workload=selector)
        await poll_until(lambda: len(bound_names) == len(order))
    assert [name.upper() for name in bound_names] == order


async def test_gates_of_invalid_or_incomplete_groups_open_in_time(harness: SchedulerHarness) -> None:
    """The group or workload is unknown, has a cycle, lacks a workload, or has an earlier pod that never fits."""
    await harness.create_ready_node("n-a", zone="a", region="r", capacity={"cpu": "2"})
    config = SchedulerConfig(gates=GatesConfig(max_wait_s=6, missing_workload_timeout_s=2))
    await harness.create_group({"A": {"B": 5}, "B": {"A": 5}}, name="cycle")
    await harness.create_group({"A": {"B": 5}, "B": {}}, name="absent", algorithm="ReverseKahn")
    await harness.create_group({"A": {"B": 5}, "B": {}}, name="huge", algorithm="ReverseKahn")
    async with harness.run_scheduling(config, with_extender=False):
        await harness.create_pod("unknown-group", group="unknown", workload="A")
        await harness.create_pod("unknown-workload", group="absent", workload="C")
        await harness.create_pod("caller-only", group="absent", workload="A")
        for workload in "AB":
            await harness.create_pod(f"cycle-{workload.lower()}", group="cycle", workload=workload)
        await harness.create_pod("huge-b", group="huge", workload="B", requests={"cpu": "64"})
        await harness.create_pod("huge-a", group="huge", workload="A")
        names = ("unknown-group", "unknown-workload", "caller-only", "cycle-a", "cycle-b", "huge-a")
        await harness.wait_until_bound(*names)
        await harness.wait_for_event("unknown-group", "GateOpened")
    assert not (await harness.read_pod("huge-b")).is_gated


async def test_an_event_names_the_workloads_that_a_gated_pod_waits_for(harness: SchedulerHarness) -> None:
    await harness.create_ready_node("n-a", zone="a", region="r")
    config = SchedulerConfig(gates=GatesConfig(max_wait_s=120, missing_workload_timeout_s=60))
    await harness.create_group({"A": {"B": 5}, "B": {}}, algorithm="ReverseKahn")
    async with harness.run_scheduling(config, with_extender=False):
        await harness.create_pod("a", group="a1", workload="A")
        assert "workload B comes first" in await harness.wait_for_event("a", "WaitingForGroup")
        await harness.create_pod("b", group="a1", workload="B")
        await harness.wait_until_bound("a", "b")


async def test_overdue_gates_are_opened_without_a_controller(harness: SchedulerHarness) -> None:
    await harness.create_ready_node("n-a", zone="a", region="r")
    await harness.start_scheduler()
    await harness.create_group({"A": {}})
    for name in ("a-1", "a-2"):
        await harness.create_pod(name, group="a1", workload="A")
    async with supervised_tasks(GateOpener(harness.client, max_wait_s=1.0).tasks()):
        await harness.wait_until_bound("a-1", "a-2")
