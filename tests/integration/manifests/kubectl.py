"""kubectl for tests, and what they look for in its output."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[3] / "manifests"
NAMESPACE = "netaware-system"
KUBECTL_TIMEOUT_S = 60.0

Documents = list[dict[str, Any]]
_BUILT: dict[Path, str] = {}


class KubectlError(Exception):
    """kubectl ended with an error; the text is what it printed."""


class Kubectl:
    """Runs the kubectl of the control plane's version.

    Args:
        binary: kubectl.
        kubeconfig: the credentials it uses; None for commands that need no cluster.
    """

    def __init__(self, binary: Path, kubeconfig: Path | None) -> None:
        self._binary, self._kubeconfig = binary, kubeconfig

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run one command and return its output.

        Raises:
            KubectlError: the exit code was not 0.
        """
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
        if self._kubeconfig is not None:
            environment["KUBECONFIG"] = str(self._kubeconfig)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            str(self._binary), *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(stdin.encode()), KUBECTL_TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {errors.decode()}{output.decode()}")
        return output.decode()

    async def build(self, folder: Path) -> Documents:
        """The objects of a kustomization, which is built once per session: it does not change under our feet."""
        if folder not in _BUILT:
            _BUILT[folder] = await self("kustomize", str(folder))
        return [document for document in yaml.load_all(_BUILT[folder], Loader=yaml.CSafeLoader) if document]


def pod_templates(documents: Documents) -> Mapping[str, dict[str, Any]]:
    """Pod templates by ``kind/name``."""
    return {
        f"{document['kind']}/{document['metadata']['name']}": document["spec"]["template"]
        for document in documents
        if document["kind"] in {"DaemonSet", "Deployment", "StatefulSet", "Job"}
    }


async def established(kubectl: Kubectl) -> None:
    """Wait until our definitions are served."""
    for plural in ("appgroups.appgroup", "networktopologies.networktopology"):
        name = f"customresourcedefinition/{plural}.diktyo.x-k8s.io"
        await kubectl("wait", "--for=condition=Established", "--timeout=20s", name)
