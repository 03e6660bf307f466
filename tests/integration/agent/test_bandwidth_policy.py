"""The admission policy derives annotations from bandwidth limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
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


async def create_pod(
    client: Client, namespace: str, *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, str]:
    """Create a pod; returns its bandwidth annotations after admission."""
    metadata = {"generateName": "p-", "annotations": annotations or {}}
    body = {"metadata": metadata, "spec": {"containers": list(containers), "schedulerName": "nobody", **spec}}
    pod = await client.create(PODS, body, Pod, namespace=namespace)
    return {k: v for k, v in (pod.metadata.annotations or {}).items() if k in {INGRESS, EGRESS}}


@pytest_asyncio.fixture
async def policy(control_plane: ControlPlane) -> AsyncIterator[None]:
    await control_plane.run_kubectl("apply", "--server-side", "-f", FILE)
    yield
    await control_plane.run_kubectl("delete", "-f", FILE)


@pytest.mark.usefixtures("policy")
async def test_annotations_follow_from_limits(client: Client, namespace: str) -> None:
    annotations_of = partial(create_pod, client, namespace)
    await poll_until(lambda: annotations_of(make_container("c", "1M")), "the policy")
    sidecar = make_container("s", "1M", restartPolicy="Always")
    init = make_container("i", "50M")  # Left out of the sum, because it ends before the others start.
    containers = make_container("a", "10M"), make_container("b", "1500k"), make_container("c")
    sum_of_limits = await annotations_of(*containers, initContainers=[sidecar, init])
    assert sum_of_limits == {INGRESS: "12500000", EGRESS: "12500000"}
    container = make_container("a", "10M")
    with_own = await annotations_of(container, annotations={EGRESS: "3M"})
    assert with_own == {INGRESS: "10000000", EGRESS: "3M"}, "a user's annotation stays"
    assert await annotations_of(make_container("a")) == {}
    assert await annotations_of(container, hostNetwork=True) == {}
    assert await annotations_of(make_container("a", "999")) == {}, "below 1k, the smallest limit"
