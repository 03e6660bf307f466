"""Gates open in the planned order and in time, and plans and affinity hold, on the stock kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.pods import GATE, Pod, target_of
from controller.scheduler.config import GatesConfig, SchedulerConfig
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.wire import NAMESPACES, PODS, Object
from lab.polling import poll_until
from tests.integration.conftest import MakeNode
from tests.integration.scheduler.conftest import (
    LONG_WAIT,
    MakeZones,
    Scheduling,
    create_group,
    create_pod,
    read_pod,
    set_costs,
    wait_for_event,
    wait_until_bound,
)
from tests.support.admission import POLICIES, POLICY_BINDINGS
from tests.support.scheduling import running

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(600)]

BOUTIQUE = Path(__file__).parents[3] / "manifests" / "examples" / "online-boutique" / "appgroup.yaml"
ORDER = "P1 P10 P9 P8 P7 P6 P5 P4 P3 P2 P11"
OPT_IN = {"netaware.io/placement": "affinity"}
IN_GROUP: dict[str, Any] = {"group": "g", "workload": "A"}
FAR = {("a", "b"): 40, ("b", "a"): 40, ("a", "c"): 5, ("c", "a"): 5, ("b", "c"): 40, ("c", "b"): 40}


@asynccontextmanager
async def recorded_bindings(client: Client, namespace: str) -> AsyncIterator[list[str]]:
    """Record the names of pods in the order in which they are bound."""
    bound: list[str] = []

    def record(_: str, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name and (old is None or not old.spec.node_name):
            bound.append(new.metadata.name)

    store: Reflector[Pod] = Reflector(client, PODS, Pod, namespace=namespace)
    store.subscribe(record)
    async with running({"pods": store.run()}):
        await store.synced.wait()
        yield bound


async def test_the_online_boutique_is_bound_in_the_order_of_its_algorithm(
    client: Client, namespace: str, scheduling: Scheduling, zones: MakeZones
) -> None:
    await zones("a", "b", "c", costs=FAR)
    async with scheduling(SchedulerConfig(gates=LONG_WAIT)), recorded_bindings(client, namespace) as bound:
        group: dict[str, Any] = yaml.safe_load(BOUTIQUE.read_text())
        group["spec"]["topologySortingAlgorithm"] = "KahnSort"
        await client.create(APPGROUPS, group, AppGroup, namespace=namespace)
        for workload in group["spec"]["workloads"]:
            selector = workload["workload"]["selector"]
            await create_pod(client, namespace, selector.lower(), group="online-boutique", workload=selector)
        await poll_until(lambda: len(bound) == len(ORDER.split()))
    assert " ".join(name.upper() for name in bound) == ORDER


@pytest.mark.parametrize("mode", ["extender", "affinity"])
async def test_a_group_that_needs_two_zones_is_split_where_it_costs_least(
    client: Client, namespace: str, mode: Any, scheduling: Scheduling, zones: MakeZones
) -> None:
    """Two chains of two pods, and two pods per node. Z has a limit of 30 to X, so no chain is in b; a and c get one each."""
    await zones("a", "b", "c", capacity={"cpu": "2"}, costs=FAR)
    await create_group(client, namespace, {"W": {"X": 10}, "X": {}, "Y": {"Z": 10}, "Z": {"X": 30}})
    async with scheduling(SchedulerConfig(placement=mode)):
        for workload in "WXYZ":
            await create_pod(client, namespace, workload.lower(), group="a1", workload=workload, requests={"cpu": "1"})
        placed = await wait_until_bound(client, namespace, "w", "x", "y", "z")
        assert placed["w"] == placed["x"]
        assert placed["y"] == placed["z"]
        assert {placed["w"], placed["y"]} == {"n-a", "n-c"}
        pod = await read_pod(client, namespace, "w")
        target = target_of(pod)
        assert target is not None
        assert target.node == placed["w"]
        has_affinity = pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None
        assert has_affinity == (mode == "affinity")
        message = await wait_for_event(client, namespace, "w", "NetworkPlacement")
        assert f"on {placed['w']} as planned with its group" in message


async def test_the_node_affinity_of_a_pod_without_owner_is_not_changed(
    client: Client, namespace: str, ready_node: MakeNode, scheduling: Scheduling
) -> None:
    for zone, disk in (("a", "ssd"), ("b", "ssd"), ("b", "hdd")):
        await ready_node(f"n-{zone}-{disk}", zone=zone, region="r", labels={"disk": disk})
    await set_costs(client, namespace, {("a", "b"): 40, ("b", "a"): 40})
    await create_group(client, namespace, {"P1": {"P2": 10}, "P2": {}})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    own: dict[str, Any] = {
        required: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]},
        preferred: [{"weight": 3, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}],
    }
    async with scheduling(SchedulerConfig(placement="affinity"), with_extender=False):
        await create_pod(client, namespace, "p2", group="a1", workload="P2", nodeName="n-b-hdd")
        await create_pod(client, namespace, "p1", group="a1", workload="P1", affinity={"nodeAffinity": own})
        assert await wait_until_bound(client, namespace, "p1") == {"p1": "n-b-ssd"}
    pod = await read_pod(client, namespace, "p1")
    assert pod.spec.affinity is not None
    kept = msgspec.to_builtins(pod.spec.affinity.node_affinity)
    assert kept[required] == own[required]
    assert kept[preferred][0] == own[preferred][0]
    assert len(kept[preferred]) > 1


async def test_gates_of_invalid_or_incomplete_groups_open_in_time(
    client: Client, namespace: str, ready_node: MakeNode, scheduling: Scheduling
) -> None:
    """The group or workload does not exist, has a cycle, waits for missing workloads, or has an earlier pod that never fits."""
    await ready_node("n-a", zone="a", region="r", capacity={"cpu": "2"})
    config = SchedulerConfig(gates=GatesConfig(max_wait_s=6, missing_workload_timeout_s=2))
    await create_group(client, namespace, {"A": {"B": 5}, "B": {"A": 5}}, name="cycle")
    await create_group(client, namespace, {"A": {"B": 5}, "B": {}}, name="absent", algorithm="ReverseKahn")
    await create_group(client, namespace, {"A": {"B": 5}, "B": {}}, name="huge", algorithm="ReverseKahn")
    async with scheduling(config, with_extender=False):
        await create_pod(client, namespace, "unknown-group", group="unknown", workload="A")
        await create_pod(client, namespace, "unknown-workload", group="absent", workload="C")
        await create_pod(client, namespace, "caller-only", group="absent", workload="A")
        for workload in "AB":
            await create_pod(client, namespace, f"cycle-{workload.lower()}", group="cycle", workload=workload)
        await create_pod(client, namespace, "huge-b", group="huge", workload="B", requests={"cpu": "64"})
        await create_pod(client, namespace, "huge-a", group="huge", workload="A")
        names = ("unknown-group", "unknown-workload", "caller-only", "cycle-a", "cycle-b", "huge-a")
        await wait_until_bound(client, namespace, *names)
        await wait_for_event(client, namespace, "unknown-group", "GateOpened")
    assert not (await read_pod(client, namespace, "huge-b")).is_gated


async def test_an_event_names_the_workloads_that_a_gated_pod_waits_for(
    client: Client, namespace: str, ready_node: MakeNode, scheduling: Scheduling
) -> None:
    await ready_node("n-a", zone="a", region="r")
    config = SchedulerConfig(gates=GatesConfig(max_wait_s=120, missing_workload_timeout_s=60))
    await create_group(client, namespace, {"A": {"B": 5}, "B": {}}, algorithm="ReverseKahn")
    async with scheduling(config, with_extender=False):
        await create_pod(client, namespace, "a", group="a1", workload="A")
        assert "workload B comes first" in await wait_for_event(client, namespace, "a", "WaitingForGroup")
        await create_pod(client, namespace, "b", group="a1", workload="B")
        await wait_until_bound(client, namespace, "a", "b")


async def test_pods_of_appgroups_are_gated_for_our_scheduler_or_by_their_label(
    client: Client, namespace: str, ready_node: MakeNode
) -> None:
    await ready_node("n-a", zone="a", region="r")
    opted_in: dict[str, Any] = {"scheduler": "default-scheduler", "labels": OPT_IN}
    keywords_by_name: dict[str, dict[str, Any]] = {
        "our-scheduler": IN_GROUP,
        "opted-in": IN_GROUP | opted_in,
        "default-scheduler": IN_GROUP | {"scheduler": "default-scheduler"},
        "no-group": {},
        "no-group-opted-in": opted_in,
        "bound": IN_GROUP | {"nodeName": "n-a"},
    }
    pods = [await create_pod(client, namespace, name, **keywords) for name, keywords in keywords_by_name.items()]
    assert [pod.metadata.name for pod in pods if pod.is_gated] == ["our-scheduler", "opted-in"]


async def test_a_namespaces_label_holds_for_pods_without_their_own(client: Client, namespace: str) -> None:
    for_default_scheduler = IN_GROUP | {"scheduler": "default-scheduler"}
    await client.patch(NAMESPACES, namespace, {"metadata": {"labels": OPT_IN}}, Object)

    async def is_later_pod_gated() -> bool:
        later = await create_pod(client, namespace, "later", **for_default_scheduler)
        await client.delete(PODS, "later", namespace=namespace, grace_period_s=0)
        return later.is_gated

    await poll_until(is_later_pod_gated)  # admission sees namespaces through a cache
    opt_out = {"netaware.io/placement": "extender"}
    assert not (await create_pod(client, namespace, "opted-out", labels=opt_out, **for_default_scheduler)).is_gated


async def test_a_pods_other_gates_are_kept(client: Client, namespace: str) -> None:
    other = {"name": "example.com/mine"}
    pod = await create_pod(client, namespace, "p", **IN_GROUP, schedulingGates=[other])
    assert {gate.name for gate in pod.spec.scheduling_gates or ()} == {GATE, "example.com/mine"}


async def annotate_until_refused(client: Client, namespace: str, name: str, annotated: dict[str, Any]) -> None:
    """Add and remove an annotation until a policy refuses it."""
    while True:
        await client.patch(PODS, name, annotated, Object, namespace=namespace)
        await client.patch(PODS, name, {"metadata": {"annotations": None}}, Object, namespace=namespace)
        await asyncio.sleep(0.05)


async def test_a_gate_opens_if_the_api_server_refuses_the_target_annotation(
    client: Client, namespace: str, ready_node: MakeNode, scheduling: Scheduling
) -> None:
    """A policy forbids the annotation, so the pod is released without it."""
    name = f"deny-{namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    expression = "!has(object.metadata.annotations) || !('netaware.io/target' in object.metadata.annotations)"
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "validations": [{"expression": expression, "message": "not here"}],
    }
    await client.create(POLICIES, {"metadata": {"name": name}, "spec": spec}, Object)
    bound = {"policyName": name, "validationActions": ["Deny"]}
    await client.create(POLICY_BINDINGS, {"metadata": {"name": name}, "spec": bound}, Object)
    try:
        await ready_node("n-a", zone="a", region="r")
        await create_pod(client, namespace, "probe", nodeName="n-a")
        annotated = {"metadata": {"annotations": {"netaware.io/target": "x"}}}
        with pytest.raises(ApiError, match=r"^422 .*not here"):
            await asyncio.wait_for(annotate_until_refused(client, namespace, "probe", annotated), 150)
        await create_group(client, namespace, {"A": {}})
        async with scheduling(with_extender=False):
            await create_pod(client, namespace, "a", group="a1", workload="A")
            await wait_until_bound(client, namespace, "a")
    finally:
        for resource in (POLICY_BINDINGS, POLICIES):
            await client.delete(resource, name)
