"""The webhook for Kubernetes before 1.36 gates pods when a real API server calls it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio
import yaml

from kubekit.client import Client
from kubekit.wire import NAMESPACES, Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from tests.integration.manifests.attacks import dry_run_pod
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl
from tests.support.controller_program import generate_webhook_manifests, start_webhook

GATE = {"name": "netaware.io/topological-order"}
GROUP = {"appgroup.diktyo.x-k8s.io": "shop"}
OUR_SCHEDULER: dict[str, Any] = {"schedulerName": "network-aware-scheduler"}
PLACED_BY_AFFINITY = {"netaware.io/placement": "affinity"}


@pytest_asyncio.fixture
async def webhook(plane: ControlPlane, kubectl: Kubectl, admin: Client, tmp_path: Path) -> AsyncIterator[None]:
    """The webhook as a program that the API server calls by URL."""
    program, configuration = start_webhook(plane.programs, tmp_path)
    for name, labels in (("netaware-system", {}), ("gated", PLACED_BY_AFFINITY), ("plain", {})):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        await admin.apply(NAMESPACES, name, body, Object, field_manager="tests")
    documents = yaml.safe_dump(configuration)
    await kubectl("apply", "--server-side", "-f", "-", stdin=documents)
    yield
    await kubectl("delete", "-f", "-", stdin=documents)
    await plane.programs.stop(program)
    await kubectl("delete", "--wait=true", "--timeout=60s", "namespace", "netaware-system", "gated", "plain")


async def dry_run_gates(
    admin: Client, namespace: str, labels: dict[str, str], annotations: dict[str, str] | None = None, **spec: Any
) -> list[dict[str, str]]:
    """The gates that a pod gets if it is created; a dry run."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "x-", "labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }
    refusal, response = await dry_run_pod(admin, namespace, pod)
    assert refusal == ""
    return list(msgspec.json.decode(response)["spec"].get("schedulingGates", []))


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


async def test_pods_are_gated_as_by_the_policies_and_created_if_the_webhook_is_down(
    webhook: None, admin: Client, plane: ControlPlane
) -> None:

    async def is_gated() -> bool:
        return await dry_run_gates(admin, "plain", GROUP, **OUR_SCHEDULER) == [GATE]

    await poll_until(is_gated)
    assert await dry_run_gates(admin, "plain", {**GROUP, **PLACED_BY_AFFINITY}) == [GATE]
    assert await dry_run_gates(admin, "gated", GROUP) == [GATE]
    assert await dry_run_gates(admin, "gated", GROUP, {"a": "x" * 200_000}) == [GATE]
    assert await dry_run_gates(admin, "plain", GROUP) == []
    assert await dry_run_gates(admin, "plain", {"app": "x"}, **OUR_SCHEDULER) == []
    assert await dry_run_gates(admin, "gated", {**GROUP, "netaware.io/placement": "extender"}) == []
    program = next(program for program in plane.programs if program.name == "webhook")
    await plane.programs.stop(program)
    assert await dry_run_gates(admin, "plain", GROUP, **OUR_SCHEDULER) == [], "failurePolicy Ignore"
