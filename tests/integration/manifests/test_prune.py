"""An overlay that was left is rights that are left: what docs/install.md says to apply with removes what is not asked for any more."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest_asyncio

from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, ConfigMap, Object
from tests.integration.conftest import eventually
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Kubectl

RIGHTS = "clusterroles,clusterrolebindings,roles,rolebindings"
CONTROLLER = f"--as=system:serviceaccount:{NAMESPACE}:netaware-controller"


def documented() -> list[str]:
    """The flags of the command in docs/install.md that applies an overlay and removes what another one left."""
    text = (MANIFESTS.parent / "docs" / "install.md").read_text()
    found = re.search(r"^KUBECTL_APPLYSET=true kubectl (apply .*) -k manifests/overlays/default$", text, re.MULTILINE)
    assert found is not None
    return found[1].split()


@pytest_asyncio.fixture
async def pruning(kubectl: Kubectl) -> AsyncIterator[Kubectl]:
    yield Kubectl(kubectl.binary, kubectl.kubeconfig, {"KUBECTL_APPLYSET": "true"})
    await kubectl("delete", "--ignore-not-found", "--timeout=60s", "-k", str(MANIFESTS / "overlays" / "descheduler"))


async def test_rights_and_bindings_do_not_outlive_their_overlay(
    pruning: Kubectl, kubectl: Kubectl, admin: Client
) -> None:
    async def rights() -> str:
        return await kubectl("get", RIGHTS, "-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", "name")

    async def may_patch_nodes() -> bool:
        return "yes" in await kubectl(
            "auth", "can-i", "patch", "nodes", "--subresource=status", CONTROLLER, ok_codes=(0, 1)
        )

    await kubectl("apply", "--server-side", "-f", str(MANIFESTS / "base" / "common" / "namespace.yaml"))
    await pruning(*documented(), "-k", str(MANIFESTS / "overlays" / "descheduler"))
    assert "netaware-descheduler" in await rights()
    await eventually(may_patch_nodes)
    # What the programs made is no part of the overlay.
    metadata = {"name": "netperf-metrics", "labels": {"app.kubernetes.io/part-of": "netaware"}}
    results = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await admin.create(CONFIGMAPS, results, Object, namespace=NAMESPACE)
    before = await rights()
    said = await pruning(*documented(), "-k", str(MANIFESTS / "overlays" / "default"))
    assert "clusterrole.rbac.authorization.k8s.io/netaware-descheduler pruned" in said
    left = set(before.split()) - set((await rights()).split())
    assert left
    assert all(name.endswith("/netaware-descheduler") for name in left)

    async def may_not() -> bool:
        return not await may_patch_nodes()

    await eventually(may_not)
    await admin.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=NAMESPACE)
    again = await pruning(*documented(), "-k", str(MANIFESTS / "overlays" / "default"))
    assert "pruned" not in again
