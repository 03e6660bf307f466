"""One command installs, on the real API server, and a second changes nothing; overlays and examples apply on top."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import yaml

from controller.cluster.graph import build_graph
from controller.cluster.resources import AppGroup
from lab.controlplane import ControlPlane
from tests.integration.conftest import eventually
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl, KubectlError, established
from tests.support.documents import blocks, keep_files

DEFAULT = MANIFESTS / "overlays" / "default"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir() if path.name != "prometheus-operator")


pytestmark = pytest.mark.usefixtures("installed")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(plane: ControlPlane) -> AsyncIterator[None]:
    """The default overlay, applied with one command, for all tests of this file."""
    kubectl = Kubectl(plane.kubectl, plane.kubeconfig)
    await kubectl("apply", "--server-side", "-k", str(DEFAULT))
    await established(kubectl)
    yield
    await kubectl("delete", "--wait=true", "--timeout=60s", "-k", str(DEFAULT))


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_overlay_applies_with_a_server_side_dry_run(kubectl: Kubectl, overlay: str) -> None:
    said = await kubectl("apply", "--server-side", "--dry-run=server", "-k", str(MANIFESTS / "overlays" / overlay))
    assert "daemonset.apps/netaware-agent serverside-applied" in said
    assert "deployment.apps/netaware-controller serverside-applied" in said


async def test_applying_again_changes_nothing(kubectl: Kubectl) -> None:
    before = await _versions(kubectl)
    await kubectl("apply", "--server-side", "-k", str(DEFAULT))
    assert await _versions(kubectl) == before
    assert await kubectl("diff", "--server-side", "-k", str(DEFAULT)) == ""


async def _versions(kubectl: Kubectl) -> dict[str, str]:
    path = 'jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.generation}{"\\n"}{end}'
    kinds = "daemonsets,deployments,services,clusterroles,roles,customresourcedefinitions,validatingadmissionpolicies"
    text = await kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", path)
    return dict(line.split("=") for line in text.split())


@pytest.mark.parametrize("example", ["online-boutique", "redis-cluster", "cloud2edge", "networktopology.yaml"])
async def test_example_applies_after_the_installation(kubectl: Kubectl, example: str) -> None:
    path = MANIFESTS / "examples" / example
    flag = "-k" if path.is_dir() else "-f"
    namespace = [] if example == "networktopology.yaml" else ["-n", "default"]
    said = await kubectl("apply", "--server-side", "--dry-run=server", *namespace, flag, str(path))
    assert "serverside-applied (server dry run)" in said


async def test_the_first_appgroup_applies_as_its_page_says(kubectl: Kubectl, tmp_path: Path) -> None:
    """The page's own files, by its own names, and the commands between them."""
    keep_files("first-appgroup", tmp_path)
    (block,) = blocks("first-appgroup", "3. Apply, the group first")
    lines = re.findall(r"^kubectl ((?:create|apply) .*)$", block, re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) == 3
    try:
        for words in commands:
            said = await kubectl(*[str(tmp_path / w) if w.endswith(".yaml") else w for w in words])
            assert "created" in said
        group = msgspec.json.decode(await kubectl("-n", "shop", "get", "appgroup", "shop", "-o", "json"), type=AppGroup)
        assert build_graph(group.spec).faults == ()
    finally:
        await kubectl("delete", "namespace", "shop", "--ignore-not-found", "--wait=false")


async def test_bandwidth_example_asks_for_the_same_rate_twice(kubectl: Kubectl) -> None:
    path = MANIFESTS / "examples" / "bandwidth-pod.yaml"
    pod = yaml.safe_load(path.read_text())
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert set(pod["metadata"]["annotations"].values()) == {limits["network.aware.com/bandwidth"]}

    async def applies() -> bool:
        try:
            await kubectl("apply", "--server-side", "--dry-run=server", "-n", "default", "-f", str(path))
        except KubectlError as error:
            if "serviceaccount" in str(error):
                return False
            raise
        return True

    await eventually(applies)
