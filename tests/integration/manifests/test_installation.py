"""One command installs, repeating it changes nothing, and overlays and examples can be applied on top."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lab.controlplane import ControlPlane
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl, install_overlay

DEFAULT = MANIFESTS / "overlays" / "default"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir() if path.name != "prometheus-operator")

pytestmark = pytest.mark.usefixtures("default_overlay")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def default_overlay(plane: ControlPlane) -> AsyncIterator[None]:
    """The default overlay, installed for all tests of this file."""
    async with install_overlay(plane, "default"):
        yield


async def read_generations(kubectl: Kubectl) -> dict[str, str]:
    """Generations of our objects by kind and name."""
    path = 'jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.generation}{"\\n"}{end}'
    kinds = "daemonsets,deployments,services,clusterroles,roles,customresourcedefinitions,validatingadmissionpolicies"
    output = await kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", path)
    return dict(line.split("=") for line in output.split())


async def test_overlays_apply_on_top_and_applying_again_changes_nothing(kubectl: Kubectl) -> None:
    for overlay in OVERLAYS:
        output = await kubectl(
            "apply", "--server-side", "--dry-run=server", "-k", str(MANIFESTS / "overlays" / overlay)
        )
        assert "daemonset.apps/netaware-agent serverside-applied" in output, overlay
    generations = await read_generations(kubectl)
    await kubectl("apply", "--server-side", "-k", str(DEFAULT))
    assert await read_generations(kubectl) == generations
    assert await kubectl("diff", "--server-side", "-k", str(DEFAULT)) == ""


async def test_examples_apply_after_the_installation(kubectl: Kubectl) -> None:
    folder = MANIFESTS / "examples"
    applied: list[tuple[str, ...]] = [
        ("-n", "default", "-k", str(path.parent)) for path in folder.glob("*/kustomization.yaml")
    ]
    applied += [("-f", str(folder / name)) for name in ("networktopology.yaml", "bandwidth-pod.yaml")]
    assert len(applied) == 6
    for words in applied:
        output = await kubectl("apply", "--server-side", "--dry-run=server", *words)
        assert "serverside-applied (server dry run)" in output, words
