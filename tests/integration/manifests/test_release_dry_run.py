"""A release without signatures is built: wheels, plugin, bills of materials, and the chart in an OCI registry."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import venv
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from lab import debian
from lab.controlplane import find_free_ports
from lab.polling import poll_until
from lab.programs import Programs
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl

pytestmark = [pytest.mark.helm, pytest.mark.timeout(900)]
ROOT = MANIFESTS.parent
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
NAMESPACE = "released"
CLUSTER = """\
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: Node
    metadata: {name: n, labels: {topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r}}
    status: {allocatable: {cpu: "8", pods: "110"}}
  - apiVersion: appgroup.diktyo.x-k8s.io/v1alpha1
    kind: AppGroup
    metadata: {name: g, namespace: default}
    spec: {numMembers: 1, workloads: [{workload: {kind: Deployment, name: a, selector: a}}]}
  - apiVersion: v1
    kind: Pod
    metadata:
      name: p
      namespace: default
      labels: {appgroup.diktyo.x-k8s.io: g, appgroup.diktyo.x-k8s.io.workload: a}
    spec: {containers: [{name: c}]}
    status: {phase: Pending}
"""
"""An AppGroup with one pod, and a node for it."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels, the plugin's archive, and bills of materials."""
    folder = tmp_path_factory.mktemp("dist")
    compilers = " ".join(["cc", *([CROSS_COMPILER] if shutil.which(CROSS_COMPILER) else [])])
    run_in_repository(
        "make", "release-wheels", "release-krew", "sbom", f"DIST={folder}", "REPOSITORY=o/n", f"COMPILERS={compilers}"
    )
    return folder


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[str]:
    """HOST:PORT of a new OCI registry."""
    name = "docker-registry"
    program = shutil.which(name) or debian.find_or_unpack_packages("registry", [name]).find_program(name)
    (port,) = find_free_ports(1)
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "storage")}}
    config = tmp_path / "registry.yaml"
    config.write_text(yaml.safe_dump({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}))
    programs = Programs(tmp_path)
    programs.start("registry", [str(program), "serve", str(config)])
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await programs.stop_all()


def run_in_repository(
    *words: str | Path, environment: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program in the repository; fails if its exit code is not 0, unless ``check`` is False."""
    command = list(map(str, words))
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600
    )
    assert not check or result.returncode == 0, result.stderr[-4000:]
    return result


def install_wheel(wheel: Path, home: Path) -> Path:
    """Install a wheel into a new environment, without a compiler; returns the path of its command."""
    venv.create(home, with_pip=False)
    uv = run_in_repository("sh", ".ci/uv").stdout.strip()
    environment = {**os.environ, "PATH": "/nonexistent"}
    words = (uv, "pip", "install", "--quiet", "--python", home / "bin" / "python", f"{wheel}[cli]")
    if run_in_repository(*words, "--offline", environment=environment, check=False).returncode:
        run_in_repository(*words, environment=environment)
    return home / "bin" / "kubectl-netaware"


def run_installed(command: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command with an empty PATH."""
    environment = {"PATH": "/nonexistent", "HOME": str(command.parents[2])}
    return run_in_repository(command, *words, environment=environment, check=False)


async def test_wheels_install_and_work_without_a_compiler(dist: Path, tmp_path: Path, kubectl: Kubectl) -> None:
    wheel_by_platform = {path.stem.rpartition("-")[2]: path for path in (dist / "python").glob("*.whl")}
    compiled = [wheel for name, wheel in wheel_by_platform.items() if name.startswith("manylinux_2_")]
    assert len(compiled) == 1 + bool(shutil.which(CROSS_COMPILER))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    assert kubectl.kubeconfig
    status_words = ("status", "--kubeconfig", kubectl.kubeconfig)

    (native,) = [wheel for wheel in compiled if wheel.stem.endswith(os.uname().machine)]
    command = install_wheel(native, tmp_path / "native")
    for extra in ("rich", "numpy", "kubernetes"):
        assert run_installed(command.with_name("python"), "-c", f"import {extra}").returncode == 0
    simulation = run_installed(command, "simulate", "--offline", cluster)
    assert simulation.returncode == 0, simulation
    assert "default/p  n" in simulation.stdout
    status = run_installed(command, *status_words)
    assert "Traceback" not in status.stderr
    assert "netaware" in status.stdout + status.stderr

    # The wheel for any platform does all that needs no plan, and names what it lacks for one.
    command = install_wheel(wheel_by_platform["any"], tmp_path / "any")
    assert run_installed(command, *status_words).stdout == status.stdout
    refusal = run_installed(command, "simulate", "--offline", cluster)
    assert refusal.returncode == 1
    assert "install gcc" in refusal.stderr
    assert "Traceback" not in refusal.stderr


def test_the_plugins_archive_matches_its_manifest(dist: Path, tmp_path: Path) -> None:
    manifest = yaml.safe_load((dist / "netaware.yaml").read_text())
    archive = dist / "kubectl-netaware.tar.gz"
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert manifest["spec"]["version"] == f"v{run_in_repository('make', '-s', 'version').stdout.strip()}"
    with tarfile.open(archive) as tar:
        assert {entry["from"] for entry in platform["files"]} == set(tar.getnames())
        tar.extractall(tmp_path, filter="data")
    uvx = tmp_path / "uvx"
    uvx.write_text('#!/bin/sh\necho "$@"\n')
    uvx.chmod(0o755)
    echo = run_in_repository(tmp_path / platform["bin"], "status", environment={"PATH": str(tmp_path)})
    wheel = next((dist / "python").glob("*.whl"))
    requirement = f"netaware[cli]=={wheel.stem.split('-')[1]}"
    assert echo.stdout.split() == ["--quiet", "--from", requirement, "kubectl-netaware", "status"]


async def test_chart_is_pushed_to_a_registry_and_installed_from_there(
    tmp_path: Path, registry: str, helm_program: Path, kubectl: Kubectl
) -> None:
    digest = f"sha256:{'a' * 64}"
    folder = tmp_path / "dist"
    folder.mkdir()
    for program in ("agent", "controller"):
        (folder / f"{program}.json").write_text(json.dumps({"containerimage.digest": digest}))
    repository = f"{registry}/team"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECONFIG": str(kubectl.kubeconfig)}
    helm = partial(run_in_repository, helm_program, environment=environment)
    run_in_repository("make", "chart", f"DIST={folder}", f"REGISTRY={repository}")

    async def is_pushed() -> bool:
        words = ("release-chart", f"DIST={folder}", f"REGISTRY={repository}", "ARGS=--plain-http")
        return run_in_repository("make", *words, check=False).returncode == 0

    await poll_until(is_pushed)
    (archive,) = folder.glob("*.tgz")
    version = archive.stem.removeprefix("netaware-")
    source = (f"oci://{repository}/charts/netaware", "--version", version, "--plain-http", "-n", NAMESPACE)
    helm("install", "netaware", *source, "--create-namespace", "--set", "placement=affinity")
    try:
        images = await kubectl(
            "get", "deployments,daemonsets", "-n", NAMESPACE, "-o", "jsonpath={..containers[*].image}"
        )
        assert set(images.split()) == {f"{repository}/netaware-{name}@{digest}" for name in ("agent", "controller")}
    finally:
        helm("uninstall", "netaware", "-n", NAMESPACE, "--wait")
        await kubectl("delete", "--ignore-not-found", "crd", "-l", "app.kubernetes.io/part-of=netaware")
        await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=60s", "namespace", NAMESPACE)
