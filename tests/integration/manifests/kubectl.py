"""Runs kubectl, and installs overlays with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from kubekit.client import Client
from lab.controlplane import ControlPlane
from tests.integration.conftest import remove_crds, wait_until_crds_are_served

MANIFESTS = Path(__file__).parents[3] / "manifests"
NAMESPACE = "netaware-system"
# `kubectl delete` waits for namespaces, which the shared control plane deletes one after the other.
KUBECTL_TIMEOUT_S = 180.0

Documents = list[dict[str, Any]]
_MANIFEST_BY_FOLDER: dict[Path, str] = {}


class KubectlError(Exception):
    """kubectl ended with an error; the text is what it printed."""


class Kubectl:
    """Runs kubectl with environment variables; the kubeconfig is None for commands without a cluster."""

    def __init__(self, binary: Path, kubeconfig: Path | None, variables: Mapping[str, str] | None = None) -> None:
        self.binary, self.kubeconfig, self._variables = binary, kubeconfig, dict(variables or {})

    async def __call__(self, *arguments: str, stdin: str = "", ok_codes: Collection[int] = (0,)) -> str:
        """Run a command and return its output; raises KubectlError if the exit code is not in ``ok_codes``."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **self._variables}
        if self.kubeconfig is not None:
            environment["KUBECONFIG"] = str(self.kubeconfig)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            str(self.binary), *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(stdin.encode()), KUBECTL_TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode not in ok_codes:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {errors.decode()}{output.decode()}")
        return output.decode()

    async def build_kustomization(self, folder: Path) -> Documents:
        """Objects of a kustomization, which is built once per session."""
        if folder not in _MANIFEST_BY_FOLDER:
            _MANIFEST_BY_FOLDER[folder] = await self("kustomize", str(folder))
        return [
            document for document in yaml.load_all(_MANIFEST_BY_FOLDER[folder], Loader=yaml.CSafeLoader) if document
        ]


def write_kustomization(overlay: str, *components: str, folder: Path, **more: Any) -> Path:
    """Write a kustomization of a shipped overlay, components and other fields into a folder; returns its path."""
    kustomization = folder / "-".join((overlay, *components, *more))
    kustomization.mkdir()
    # kustomize refuses absolute paths.
    relative_manifests = Path(*[".."] * len(kustomization.resolve().parts[1:])) / MANIFESTS.relative_to("/")
    body = {
        "kind": "Kustomization",
        "resources": [str(relative_manifests / "overlays" / overlay)],
        "components": [str(relative_manifests / "components" / name) for name in components],
        **more,
    }
    (kustomization / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return kustomization


def find_pod_templates(documents: Documents) -> Mapping[str, dict[str, Any]]:
    """Pod templates by ``kind/name``."""
    return {
        f"{document['kind']}/{document['metadata']['name']}": document["spec"]["template"]
        for document in documents
        if document["kind"] in {"DaemonSet", "Deployment", "StatefulSet", "Job"}
    }


@asynccontextmanager
async def install_overlay(plane: ControlPlane, overlay: str) -> AsyncIterator[tuple[Kubectl, Client]]:
    """Install a shipped overlay during the block; yields kubectl and a client with the administrator's rights."""
    kubectl = Kubectl(plane.kubectl, plane.kubeconfig)
    await kubectl("apply", "--server-side", "-k", str(MANIFESTS / "overlays" / overlay))
    async with Client(plane.client_config) as admin:
        await wait_until_crds_are_served(admin)
        try:
            yield kubectl, admin
        finally:
            await uninstall(kubectl, admin, overlay)


async def uninstall(kubectl: Kubectl, admin: Client, overlay: str) -> None:
    """Delete a shipped overlay without waiting for its namespace."""
    folder = str(MANIFESTS / "overlays" / overlay)
    await kubectl("delete", "--ignore-not-found", "--wait=false", "-k", folder)
    await delete_pods(kubectl, NAMESPACE)
    await remove_crds(admin)


async def delete_pods(kubectl: Kubectl, namespace: str) -> None:
    """Delete pods of a namespace without waiting for kubelets."""
    await kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", "--wait=false")
