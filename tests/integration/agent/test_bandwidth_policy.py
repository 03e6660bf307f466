"""The admission policy derives annotations from bandwidth limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kubekit.client import Client
from kubekit.wire import PODS, Pod
from lab.controlplane import ControlPlane
from lab.polling import poll_until

FILE = Path(__file__).parents[3] / "manifests" / "policies" / "bandwidth-annotations.yaml"
BANDWIDTH = "network.aware.com/bandwidth"
INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"


def make_container(name: str, amount: str | None = None, **fields: Any) -> dict[str, Any]:
    amounts = {BANDWIDTH: amount} if amount else {}
    return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}, **fields}


@pytest_asyncio.fixture
async def policy(control_plane: ControlPlane, client: Client, namespace: str) -> AsyncIterator[None]:
    """The policy is in force."""
    await control_plane.run_kubectl("apply", "--server-side", "-f", FILE)
    await poll_until(lambda: create_annotations(client, namespace, make_container("c", "1M")), "the policy")
    yield
    await control_plane.run_kubectl("delete", "-f", FILE)


async def create_annotations(
    client: Client, namespace: str, *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, str]:
    """Create a pod; returns its bandwidth annotations after admission."""
    metadata = {"generateName": "p-", "annotations": annotations or {}}
    body = {"metadata": metadata, "spec": {"containers": list(containers), "schedulerName": "nobody", **spec}}
    pod = await client.create(PODS, body, Pod, namespace=namespace)
    return {name: rate for name, rate in (pod.metadata.annotations or {}).items() if name in {INGRESS, EGRESS}}


@pytest.mark.usefixtures("policy")
async def test_annotations_are_the_sum_of_the_limits_of_containers_that_run_together(
    client: Client, namespace: str
) -> None:
    containers = make_container("a", "10M"), make_container("b", "1500k"), make_container("c")
    sidecar = make_container("s", "1M", restartPolicy="Always")
    init_container = make_container("i", "50M")  # ends before the others start
    annotations = await create_annotations(client, namespace, *containers, initContainers=[sidecar, init_container])
    assert annotations == {INGRESS: "12500000", EGRESS: "12500000"}


@pytest.mark.usefixtures("policy")
async def test_a_users_annotation_and_pods_that_cannot_be_limited_stay_unchanged(
    client: Client, namespace: str
) -> None:
    container = make_container("a", "10M")
    annotations = await create_annotations(client, namespace, container, annotations={EGRESS: "3M"})
    assert annotations == {INGRESS: "10000000", EGRESS: "3M"}
    assert await create_annotations(client, namespace, make_container("a")) == {}
    assert await create_annotations(client, namespace, container, hostNetwork=True) == {}
    assert await create_annotations(client, namespace, make_container("a", "999")) == {}, "below 1k, the smallest limit"
