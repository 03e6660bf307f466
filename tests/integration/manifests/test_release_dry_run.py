"""A release is built on this machine without signatures: wheels, plugin, bills of materials, and the chart in an OCI registry."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import venv
from collections.abc import AsyncIterator
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
CROSS = "aarch64-linux-gnu-gcc"
NAMESPACE = "released"
# An AppGroup with one pod, and a node for it.
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


def make(*words: str) -> str:
    done = subprocess.run(["make", *words], check=False, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels, the plugin's archive, and bills of materials."""
    folder = tmp_path_factory.mktemp("dist")
    compilers = " ".join(["cc", *([CROSS] if shutil.which(CROSS) else [])])
    make("release-wheels", "release-krew", "sbom", f"DIST={folder}", "REPOSITORY=o/n", f"COMPILERS={compilers}")
    return folder


def installed_wheel(wheel: Path, home: Path) -> Path:
    """The command of a wheel, installed into a new environment without a compiler."""
    venv.create(home, with_pip=False)
    found = subprocess.run(["sh", str(ROOT / ".ci" / "uv")], check=True, capture_output=True, text=True, timeout=110)
    uv = found.stdout.strip()
    environment = {**os.environ, "PATH": "/nonexistent"}
    words = [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), f"{wheel}[cli]"]
    done = subprocess.run([*words, "--offline"], check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return home / "bin" / "kubectl-netaware"


def run(command: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command with an empty PATH."""
    environment = {"PATH": "/nonexistent", "HOME": str(command.parents[2])}
    return subprocess.run(
        [str(command), *map(str, words)], check=False, capture_output=True, text=True, env=environment, timeout=60
    )


async def test_wheels_install_and_work_without_a_compiler(dist: Path, tmp_path: Path, kubectl: Kubectl) -> None:
    wheels = {path.stem.rpartition("-")[2]: path for path in (dist / "python").glob("*.whl")}
    compiled = [path for platform, path in wheels.items() if platform.startswith("manylinux_2_")]
    assert len(compiled) == 1 + bool(shutil.which(CROSS))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    (native,) = [path for path in compiled if path.stem.endswith(os.uname().machine)]
    command = installed_wheel(native, tmp_path / "native")
    for extra in ("rich", "numpy", "kubernetes"):
        assert run(command.with_name("python"), "-c", f"import {extra}").returncode == 0
    planned = run(command, "simulate", "--offline", cluster)
    assert (planned.returncode, "default/p  n" in planned.stdout) == (0, True), planned
    assert kubectl.kubeconfig
    status = run(command, "status", "--kubeconfig", kubectl.kubeconfig)
    assert "Traceback" not in status.stderr
    assert "netaware" in status.stdout + status.stderr
    # The wheel for any platform does all that needs no plan, and says what it lacks for one.
    pure = installed_wheel(wheels["any"], tmp_path / "pure")
    assert run(pure, "status", "--kubeconfig", kubectl.kubeconfig).stdout == status.stdout
    refused = run(pure, "simulate", "--offline", cluster)
    assert (refused.returncode, "install gcc" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)


def test_the_plugins_archive_matches_its_manifest(dist: Path, tmp_path: Path) -> None:
    manifest = yaml.safe_load((dist / "netaware.yaml").read_text())
    archive = dist / "kubectl-netaware.tar.gz"
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert manifest["spec"]["version"] == f"v{make('-s', 'version').strip()}"
    with tarfile.open(archive) as opened:
        assert {entry["from"] for entry in platform["files"]} == set(opened.getnames())
        opened.extractall(tmp_path, filter="data")
    uvx = tmp_path / "uvx"
    uvx.write_text('#!/bin/sh\necho "$@"\n')
    uvx.chmod(0o755)
    words = [str(tmp_path / platform["bin"]), "status"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    wheel = next((dist / "python").glob("*.whl"))
    assert done.stdout.split() == [
        "--quiet",
        "--from",
        f"netaware[cli]=={wheel.stem.split('-')[1]}",
        "kubectl-netaware",
        "status",
    ]


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[str]:
    """HOST:PORT of a new OCI registry."""
    found = shutil.which("docker-registry") or debian.find_or_unpack_packages(
        "registry", ["docker-registry"]
    ).find_program("docker-registry")
    (port,) = find_free_ports(1)
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "storage")}}
    config = tmp_path / "registry.yaml"
    config.write_text(yaml.safe_dump({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}))
    programs = Programs(tmp_path)
    programs.start("registry", [str(found), "serve", str(config)])
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await programs.stop_all()


async def test_chart_is_pushed_to_a_registry_and_installed_from_there(
    tmp_path: Path, registry: str, helm_program: Path, kubectl: Kubectl
) -> None:
    digest = f"sha256:{'a' * 64}"
    folder = tmp_path / "dist"
    folder.mkdir()
    for program in ("agent", "controller"):
        (folder / f"{program}.json").write_text(json.dumps({"containerimage.digest": digest}))
    where = f"{registry}/team"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECONFIG": str(kubectl.kubeconfig)}

    def helm(*words: str) -> str:
        done = subprocess.run(
            [str(helm_program), *words], check=False, capture_output=True, text=True, env=environment, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    make("chart", f"DIST={folder}", f"REGISTRY={where}")

    async def pushed() -> bool:
        words = ["make", "release-chart", f"DIST={folder}", f"REGISTRY={where}", "ARGS=--plain-http"]
        done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
        return done.returncode == 0

    await poll_until(pushed)
    (packed,) = folder.glob("*.tgz")
    version = packed.stem.removeprefix("netaware-")
    at = (f"oci://{where}/charts/netaware", "--version", version, "--plain-http", "-n", NAMESPACE)
    helm("install", "netaware", *at, "--create-namespace", "--set", "placement=affinity")
    try:
        images = await kubectl(
            "get", "deployments,daemonsets", "-n", NAMESPACE, "-o", "jsonpath={..containers[*].image}"
        )
        assert set(images.split()) == {f"{where}/netaware-{name}@{digest}" for name in ("agent", "controller")}
    finally:
        helm("uninstall", "netaware", "-n", NAMESPACE, "--wait")
        await kubectl("delete", "--ignore-not-found", "crd", "-l", "app.kubernetes.io/part-of=netaware")
        await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=60s", "namespace", NAMESPACE)
