"""Upgrade in place and uninstall, on the real API server: no object is lost by the one, none is left by the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import NAMESPACES, NODES, Node, Object
from tests.integration.conftest import eventually
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Kubectl, established

DEFAULT = MANIFESTS / "overlays" / "default"


@pytest_asyncio.fixture
async def clean(kubectl: Kubectl, admin: Client) -> AsyncIterator[None]:
    """Nothing of ours before, and nothing after."""
    yield
    await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=40s", "-k", str(DEFAULT))


async def names(kubectl: Kubectl) -> set[str]:
    """Every object of the cluster that is labelled as ours or lives in our namespace, but for what expires by itself."""
    found: set[str] = set()
    for scope in ("true", "false"):
        kinds = (await kubectl("api-resources", "--verbs=list", f"--namespaced={scope}", "-o", "name")).split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith(("events", "leases")))
        found |= set(
            (await kubectl("get", wanted, "-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", "name")).split()
        )
        if scope == "true":
            found |= set((await kubectl("get", wanted, "-n", NAMESPACE, "-o", "name")).split())
    return found


async def test_definitions_upgrade_in_place_and_keep_their_objects(
    kubectl: Kubectl, admin: Client, clean: None
) -> None:
    """From definitions without a status subresource, as upstream's are, to ours."""
    for path in sorted((MANIFESTS / "crds").glob("[!k]*.yaml")):
        await kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(_as_upstream(path)))
    await established(kubectl)
    example = (MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text()
    await kubectl("apply", "-n", "default", "-f", "-", stdin=example)
    topology = (MANIFESTS / "examples" / "networktopology.yaml").read_text().replace(NAMESPACE, "default")
    await kubectl("apply", "-n", "default", "-f", "-", stdin=topology)
    before = [await _spec(admin, "online-boutique"), await _topology(admin, "nt-example")]
    await kubectl("apply", "--server-side", "--force-conflicts", "-k", str(DEFAULT))
    await established(kubectl)
    assert [await _spec(admin, "online-boutique"), await _topology(admin, "nt-example")] == before

    async def has_status() -> bool:
        return "appgroups/status" in await kubectl("get", "--raw", f"/apis/{APPGROUPS.api_version}")

    await eventually(has_status)
    await admin.delete(APPGROUPS, "online-boutique", namespace="default")
    await admin.delete(NETWORK_TOPOLOGIES, "nt-example", namespace="default")


def _as_upstream(path: Path) -> dict[str, Any]:
    definition: dict[str, Any] = yaml.safe_load(path.read_text())
    for version in definition["spec"]["versions"]:
        version.pop("subresources", None)
        version.pop("additionalPrinterColumns", None)
    return definition


async def _spec(admin: Client, name: str) -> Any:
    found: dict[str, Any] = await admin.get(APPGROUPS, name, dict, namespace="default")
    return found["spec"], found["metadata"]["uid"]


async def _topology(admin: Client, name: str) -> Any:
    found: dict[str, Any] = await admin.get(NETWORK_TOPOLOGIES, name, dict, namespace="default")
    return found["spec"], found["metadata"]["uid"]


async def test_delete_leaves_only_what_the_documentation_names(kubectl: Kubectl, admin: Client) -> None:
    """What agents wrote on nodes stays (docs/install.md says how to take it back first); all objects go."""
    assert await names(kubectl) == set()
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "left"}}
    await admin.create(NODES, body, Node)
    try:
        await kubectl("apply", "--server-side", "-k", str(DEFAULT))
        assert "daemonset.apps/netaware-agent" in await names(kubectl)
        note = {"metadata": {"annotations": {"netaware.io/agent": "{}"}}}
        await admin.patch(NODES, "left", note, Node)
        await kubectl("delete", "--wait=true", "--timeout=60s", "-k", str(DEFAULT))
        assert await names(kubectl) == set()
        with pytest.raises(ApiError, match="not found"):
            await admin.get(NAMESPACES, NAMESPACE, Object)
        node = await admin.get(NODES, "left", Node)
        assert node.metadata.annotation("netaware.io/agent") == "{}"
    finally:
        await admin.delete(NODES, "left")
