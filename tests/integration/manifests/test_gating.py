"""Pods of AppGroups are gated, alike by the admission policy and by the webhook for Kubernetes before 1.36."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest_asyncio
import yaml

from controller.cluster.pods import GATE
from kubekit.client import Client
from kubekit.wire import NAMESPACES, Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.manifests.attacks import dry_run_pod
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl
from tests.support.controller_program import generate_webhook_manifests, start_webhook

POLICY = str(MANIFESTS / "policies" / "appgroup-gate.yaml")
GROUP = {"appgroup.diktyo.x-k8s.io": "shop"}
OPT_IN = {"netaware.io/placement": "affinity"}
OPT_OUT = {"netaware.io/placement": "extender"}
LABELS_BY_NAMESPACE: dict[str, dict[str, str]] = {"plain": {}, "opted-in": OPT_IN}


class NewPod(NamedTuple):
    """A pod before it is created."""

    labels: dict[str, str]
    namespace: str = "plain"
    scheduler: str = "default-scheduler"
    node_name: str = ""
    gates: Set[str] = frozenset()
    annotations: dict[str, str] = {}


OF_OUR_SCHEDULER = NewPod(GROUP, scheduler="network-aware-scheduler")
GATED = (
    OF_OUR_SCHEDULER,
    OF_OUR_SCHEDULER._replace(gates={"example.com/mine"}),
    NewPod(GROUP | OPT_IN),
    NewPod(GROUP, "opted-in"),
    NewPod(GROUP, "opted-in", annotations={"large": "x" * 200_000}),
)
NOT_GATED = (
    NewPod(GROUP),
    OF_OUR_SCHEDULER._replace(labels={"app": "no-group"}),
    NewPod(OPT_IN),
    NewPod(GROUP | OPT_OUT, "opted-in"),
    OF_OUR_SCHEDULER._replace(node_name="n"),
)


@pytest_asyncio.fixture
async def namespaces(kubectl: Kubectl, admin: Client) -> AsyncIterator[None]:
    for name, labels in LABELS_BY_NAMESPACE.items():
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        await admin.apply(NAMESPACES, name, body, Object, field_manager="tests")
    yield
    await kubectl("delete", "--wait=true", "--timeout=60s", "namespace", *LABELS_BY_NAMESPACE)


@pytest_asyncio.fixture
async def policy(kubectl: Kubectl, namespaces: None) -> AsyncIterator[None]:
    await kubectl("apply", "--server-side", "-f", POLICY)
    yield
    await kubectl("delete", "-f", POLICY)


@pytest_asyncio.fixture
async def webhook(plane: ControlPlane, kubectl: Kubectl, namespaces: None, tmp_path: Path) -> AsyncIterator[Program]:
    """The webhook as a program that the API server calls by URL."""
    program, configuration = start_webhook(plane.programs, tmp_path)
    await kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(configuration))
    yield program
    await kubectl("delete", "-f", "-", stdin=yaml.safe_dump(configuration))
    await plane.programs.stop(program)


async def dry_run_gates(admin: Client, pod: NewPod) -> set[str]:
    """The gates that a pod gets if it is created, or the refusal; a dry run."""
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "schedulerName": pod.scheduler,
        "nodeName": pod.node_name,
        "schedulingGates": [{"name": name} for name in pod.gates],
    }
    metadata = {"generateName": "x-", "labels": pod.labels, "annotations": pod.annotations}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    refusal, response = await dry_run_pod(admin, pod.namespace, body)
    if refusal:
        return {refusal}
    return {gate["name"] for gate in msgspec.json.decode(response)["spec"].get("schedulingGates", [])}


async def assert_pods_are_gated(admin: Client) -> None:
    """Wait until pods of `GATED` get our gate beside their own, and check that those of `NOT_GATED` get none."""

    async def are_gated() -> bool:
        return all([await dry_run_gates(admin, pod) == {GATE, *pod.gates} for pod in GATED])

    await poll_until(are_gated)
    assert [pod for pod in NOT_GATED if await dry_run_gates(admin, pod)] == []


def test_the_component_with_cert_manager_has_the_generated_configuration() -> None:
    _, configuration = generate_webhook_manifests()
    for hook in configuration["webhooks"]:
        del hook["clientConfig"]["caBundle"]
    file = MANIFESTS / "components" / "webhook-cert-manager" / "configuration.yaml"
    component = yaml.safe_load(file.read_text())
    assert component["metadata"].pop("annotations") == {
        "cert-manager.io/inject-ca-from": "netaware-system/netaware-webhook"
    }
    assert component == configuration


async def test_the_policy_gates_pods_of_groups_for_our_scheduler_or_if_they_opt_in(policy: None, admin: Client) -> None:
    await assert_pods_are_gated(admin)


async def test_the_webhook_gates_the_same_pods_and_none_if_it_is_down(
    webhook: Program, plane: ControlPlane, admin: Client
) -> None:
    await assert_pods_are_gated(admin)
    await plane.programs.stop(webhook)
    assert await dry_run_gates(admin, OF_OUR_SCHEDULER) == set(), "failurePolicy Ignore"


async def test_a_gate_without_a_group_is_refused_with_a_reason(policy: None, admin: Client) -> None:
    async def read_refusal() -> str:
        (answer,) = await dry_run_gates(admin, NewPod({}, gates={GATE}))
        return answer if answer != GATE else ""

    refusal = await poll_until(read_refusal)
    assert refusal.startswith("422 ")
    assert "add the label appgroup.diktyo.x-k8s.io with the AppGroup's name" in refusal
