"""The manager writes order and status of AppGroups but never their spec, and reports pods of unknown workloads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.cli.session import Session
from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, WORKLOAD_LABEL
from controller.diagnosis.events import EventReporter
from kubekit.client import MERGE_PATCH
from kubekit.events import EventRecorder
from kubekit.wire import SERVICES, Object
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.conftest import CreateNode
from tests.integration.controller.appgroups import AppGroupNamespace, make_group
from tests.integration.controller.harness import Replica, StartManager
from tests.support.bodies import make_topology_body, make_weight_body

DEBOUNCE_S = 1.0
"""Longer than the manager waits after a change of a group before it writes."""


@pytest.fixture
def replica(crds: list[str], start_manager: StartManager) -> Replica:
    return start_manager()


async def test_the_manager_never_writes_the_spec_and_not_the_status_of_an_unchanged_spec(
    replica: Replica, groups: AppGroupNamespace
) -> None:
    await groups.create_group_from_body(make_group({"a": "b", "b": ""}))
    created: dict[str, Any] = await groups.client.get(APPGROUPS, "g", dict, namespace=groups.namespace)
    await groups.wait_for_group_condition("SpecValid", "True")
    write_count = (await replica.read_metrics())["netaware_appgroup_writes_total"]

    annotation = {"metadata": {"annotations": {"touched": "yes"}}}
    await groups.patch_group(annotation)
    await asyncio.sleep(DEBOUNCE_S)

    assert (await replica.read_metrics())["netaware_appgroup_writes_total"] == write_count
    group: dict[str, Any] = await groups.client.get(APPGROUPS, "g", dict, namespace=groups.namespace)
    assert group["spec"] == created["spec"]


async def test_the_status_has_the_number_of_pods_and_whether_costs_are_met(
    replica: Replica, groups: AppGroupNamespace, kwok: Program, create_node: CreateNode
) -> None:
    near, far = f"{groups.namespace}-near", f"{groups.namespace}-far"
    await create_node(near, zone="z1", region="west")
    await create_node(far, zone="z2", region="west")
    topology = make_topology_body(weights=[make_weight_body({("z1", "z2"): 30})])
    await groups.client.create(NETWORK_TOPOLOGIES, topology, Object, namespace=groups.namespace)
    await groups.create_group_from_body(make_group({"a": "b", "b": ""}, members=2, max_cost=15))
    await groups.wait_for_group_condition("Complete", "False", "0 of 2")

    await groups.create_bound_pod("a", near)
    await groups.create_bound_pod("b", far)
    await groups.wait_for_group_condition("Complete", "True", "2 of 2 pods run")
    await groups.wait_for_group_condition("CostsMet", "False", "a to b costs 30, at most 15 (z1 to z2)")
    status = (await groups.read_group()).status
    assert status.running_workloads == 2
    assert status.schedule_start_time is not None

    await groups.delete_pod("b")
    await groups.create_bound_pod("b", near, "b2")
    await groups.wait_for_group_condition("CostsMet", "True", "1 of 1")


async def test_a_condition_names_a_service_that_needs_traffic_distribution(
    replica: Replica, groups: AppGroupNamespace, kwok: Program, create_node: CreateNode
) -> None:
    service = {"metadata": {"name": "b"}, "spec": {"selector": {WORKLOAD_LABEL: "b"}, "ports": [{"port": 80}]}}
    await groups.client.create(SERVICES, service, Object, namespace=groups.namespace)
    await groups.create_group_from_body(make_group({"a": "b", "b": ""}, members=4, max_cost=10_000))
    for zone in ("z1", "z2"):
        await create_node(f"{groups.namespace}-{zone}", zone=zone, region="west")
        for workload in ("a", "b"):
            await groups.create_bound_pod(workload, f"{groups.namespace}-{zone}", f"{workload}-{zone}")

    no_distribution = f"Service {groups.namespace}/b has no trafficDistribution: with PreferSameZone a call would take"
    await groups.wait_for_group_condition("RoutedNear", "False", no_distribution)
    await groups.wait_for_group_condition("Balanced", "True")

    same_zone = {"spec": {"trafficDistribution": "PreferSameZone"}}
    await groups.client.patch(SERVICES, "b", same_zone, Object, patch_type=MERGE_PATCH, namespace=groups.namespace)
    await groups.wait_for_group_condition("RoutedNear", "True")


async def test_a_running_pod_of_an_unknown_workload_gets_one_event(groups: AppGroupNamespace) -> None:
    await groups.create_group_from_body(make_group({"web": ""}))
    pod = await groups.create_bound_pod("wbe", "nowhere")
    session = Session(groups.client, None, None, groups.namespace)
    recorder = EventRecorder(groups.client, component="test", instance="test")
    reporter = EventReporter(lambda: session.read_snapshot(everything=True), recorder)

    async def report_and_list_events() -> list[dict[str, Any]]:
        await reporter.report()
        return [event for event in await groups.list_events() if event["reason"] == "UnknownWorkload"]

    recording = asyncio.ensure_future(recorder.run())
    try:
        await poll_until(report_and_list_events)
        for _ in range(2):
            await report_and_list_events()
        (event,) = await report_and_list_events()
    finally:
        recording.cancel()
    assert event["regarding"]["uid"] == pod.metadata.uid
    assert event["type"] == "Warning"
    assert "series" not in event
    assert "no workload with selector wbe" in event["note"]
