"""The control plane without anything of ours, on which manifests are installed, upgraded and deleted whole."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from kubekit.client import Client
from kubekit.config import ClusterConfig, load_cluster
from kubekit.wire import PODS, SERVICE_ACCOUNTS, Object
from lab.build import find_or_build
from lab.controlplane import ControlPlane, credentials_of
from tests.integration.conftest import remove_definitions
from tests.integration.manifests.kubectl import NAMESPACE, Kubectl


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plane(control_plane: ControlPlane) -> ControlPlane:
    """The session's control plane; whatever other files left of ours is gone."""
    async with Client(control_plane.client_config) as client:
        await remove_definitions(client)
    kubectl = Kubectl(control_plane.kubectl, control_plane.kubeconfig)
    await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=50s", "namespace", NAMESPACE)
    return control_plane


@pytest.fixture
def kustomize() -> Kubectl:
    """kubectl without a cluster, for building."""
    return Kubectl(find_or_build()["kubectl"], None)


@pytest.fixture
def kubectl(plane: ControlPlane) -> Kubectl:
    """kubectl with the administrator's rights."""
    return Kubectl(plane.kubectl, plane.kubeconfig)


@pytest_asyncio.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Client]:
    """A client with the administrator's rights."""
    async with Client(plane.client_config) as client:
        yield client


TokenFor = Callable[[str, str], Awaitable[ClusterConfig]]


@pytest.fixture
def token_for(plane: ControlPlane, admin: Client) -> TokenFor:
    """``await token_for(service_account, node)``: the connection of that service account in a pod on that node.

    The token is bound to a real pod, as the kubelet's are; with node "" it is bound to none.
    """

    async def make(service_account: str, node: str) -> ClusterConfig:
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if node:
            name = f"{service_account}-on-{node}"
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "serviceAccountName": service_account,
                    "nodeName": node,
                    # No kubelet will confirm that it ended.
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "agent", "image": "netaware-agent"}],
                },
            }
            pod = await admin.apply(PODS, name, body, Object, field_manager="tests", namespace=NAMESPACE)
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod.metadata.uid}
        path = SERVICE_ACCOUNTS.path(NAMESPACE, service_account, "token")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer: dict[str, Any] = msgspec.json.decode(await admin.request("POST", path, body=request))
        token = str(answer["status"]["token"])
        # Without the administrator's client certificate, which would win over the token.
        return dataclasses.replace(
            load_cluster(credentials_of(plane.kubeconfig)), token=lambda: token, tls=_ca_only(plane)
        )

    return make


KubeconfigFor = Callable[[str, str, Path], Awaitable[Path]]


@pytest.fixture
def kubeconfig_for(plane: ControlPlane) -> KubeconfigFor:
    """``await kubeconfig_for(namespace, service_account, folder)``: a kubeconfig with a token of that account."""

    async def make(namespace: str, account: str, folder: Path) -> Path:
        kubectl = Kubectl(plane.kubectl, plane.kubeconfig)
        token = await kubectl("-n", namespace, "create", "token", account)
        config = yaml.safe_load(plane.kubeconfig.read_text())
        config["users"] = [{**user, "user": {"token": token}} for user in config["users"]]
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        return folder / "kubeconfig"

    return make


def _ca_only(plane: ControlPlane) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(plane.ca_file))
