"""Fixtures for tests that install manifests on a control plane without netaware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from kubekit.client import Client
from kubekit.config import ClusterConfig, load_cluster_config
from kubekit.wire import PODS, Object
from lab.build import find_or_build_binaries
from lab.controlplane import ControlPlane
from lab.credentials import credentials_dir
from tests.integration.conftest import remove_crds
from tests.integration.manifests.kubectl import NAMESPACE, Kubectl
from tests.integration.manifests.victims import connect_with_stolen_tokens, install_with_victims

TokenFor = Callable[[str, str], Awaitable[ClusterConfig]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plane(control_plane: ControlPlane) -> ControlPlane:
    """The session's control plane, without netaware's namespace and definitions."""
    async with Client(control_plane.client_config) as client:
        await remove_crds(client)
    kubectl = Kubectl(control_plane.kubectl, control_plane.kubeconfig)
    await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=50s", "namespace", NAMESPACE)
    return control_plane


@pytest.fixture
def kustomize() -> Kubectl:
    """kubectl without a cluster, for building kustomizations."""
    return Kubectl(find_or_build_binaries()["kubectl"], None)


@pytest.fixture
def kubectl(plane: ControlPlane) -> Kubectl:
    """kubectl with the administrator's rights."""
    return Kubectl(plane.kubectl, plane.kubeconfig)


@pytest_asyncio.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Client]:
    """A client with the administrator's rights."""
    async with Client(plane.client_config) as client:
        yield client


@pytest.fixture
def token_for(plane: ControlPlane, admin: Client) -> TokenFor:
    """``await token_for(account, node_name)``: connection with a token, bound to a pod on the node unless it is empty."""

    async def make(service_account: str, node_name: str) -> ClusterConfig:
        bound_pod = None
        if node_name:
            name = f"{service_account}-on-{node_name}"
            spec = {
                "serviceAccountName": service_account,
                "nodeName": node_name,
                # No kubelet confirms a termination, so the API server must delete the pod at once.
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "none"}],
            }
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            pod = await admin.apply(PODS, name, body, Object, field_manager="tests", namespace=NAMESPACE)
            bound_pod = (name, pod.metadata.uid)
        file_name = f"{service_account}-{node_name}"
        kubeconfig = await plane.write_token_kubeconfig(
            NAMESPACE, service_account, file_name=file_name, bound_pod=bound_pod
        )
        return load_cluster_config(credentials_dir(kubeconfig))

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def victims(plane: ControlPlane) -> AsyncIterator[None]:
    """The overlay with the most rights, and objects to attack."""
    async with install_with_victims(plane):
        yield


@pytest_asyncio.fixture
async def stolen(victims: None, token_for: TokenFor) -> AsyncIterator[dict[str, Client]]:
    """A client with the token of each program's pod on node-a."""
    async with connect_with_stolen_tokens(token_for) as clients:
        yield clients
