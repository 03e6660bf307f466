"""The admission policy derives annotations from bandwidth limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
import yaml

from kubekit.client import Client
from kubekit.wire import PODS, Object, Pod, Resource
from lab.polling import poll_until

FILE = Path(__file__).parents[3] / "manifests" / "policies" / "bandwidth-annotations.yaml"
GROUP = "admissionregistration.k8s.io"
KINDS = {
    "MutatingAdmissionPolicy": Resource(
        GROUP, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", is_namespaced=False
    ),
    "MutatingAdmissionPolicyBinding": Resource(
        GROUP, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", is_namespaced=False
    ),
}
BANDWIDTH = "network.aware.com/bandwidth"
INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"


def container(name: str, amount: str | None = None, **fields: Any) -> dict[str, Any]:
    amounts = {BANDWIDTH: amount} if amount else {}
    return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}, **fields}


class PodCreator:
    """Creates pods, and returns their annotations after admission."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace, self.count = client, namespace, 0

    async def annotations(
        self, *containers: dict[str, Any], given: dict[str, str] | None = None, **spec: Any
    ) -> dict[str, str]:
        self.count += 1
        body = {
            "metadata": {"name": f"p{self.count}", "annotations": given or {}},
            "spec": {"containers": list(containers), "schedulerName": "nobody", **spec},
        }
        pod = await self.client.create(PODS, body, Pod, namespace=self.namespace)
        return {k: v for k, v in (pod.metadata.annotations or {}).items() if k in {INGRESS, EGRESS}}


@pytest_asyncio.fixture
async def pods(client: Client, namespace: str) -> AsyncIterator[PodCreator]:
    documents = list(yaml.safe_load_all(FILE.read_text()))
    for document in documents:
        await client.apply(
            KINDS[document["kind"]], document["metadata"]["name"], document, Object, field_manager="tests"
        )
    made = PodCreator(client, namespace)

    async def is_active() -> bool:
        return bool(await made.annotations(container("c", "1M")))

    try:
        await poll_until(is_active)
        yield made
    finally:
        for document in reversed(documents):
            await client.delete(KINDS[document["kind"]], document["metadata"]["name"])


async def test_annotations_follow_from_limits(pods: PodCreator) -> None:
    sidecar = container("s", "1M", restartPolicy="Always")
    init = container("i", "50M")  # Left out of the sum, because it ends before the others start.
    found = await pods.annotations(
        container("a", "10M"), container("b", "1500k"), container("c"), initContainers=[sidecar, init]
    )
    assert found == {INGRESS: "12500000", EGRESS: "12500000"}
    found = await pods.annotations(container("a", "10M"), given={EGRESS: "3M"})
    assert found == {INGRESS: "10000000", EGRESS: "3M"}, "a user's annotation stays"
    assert await pods.annotations(container("a")) == {}
    assert await pods.annotations(container("a", "10M"), hostNetwork=True) == {}
    assert await pods.annotations(container("a", "999")) == {}, "below 1k, the smallest limit"
