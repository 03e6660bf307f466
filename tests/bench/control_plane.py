"""The control plane that benches run the real kube-scheduler on: our definitions, namespaces that pods may be made in, costs."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from controller.cluster.resources import NETWORK_TOPOLOGIES
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SERVICE_ACCOUNTS, Object
from lab.controlplane import ControlPlane

CRDS = Path(__file__).parents[2] / "manifests" / "crds"


@asynccontextmanager
async def started(name: str, namespaces: Sequence[str], *, kwok: bool) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """A control plane while the block runs, and its administrator.

    Args:
        name: of the control plane, and of who applied what is there.
        namespaces: to make; pods can be made in the first at once.
        kwok: nodes get kubelets, played by kwok, and pods a controller manager; otherwise both are objects that stay as they are.
    """
    async with AsyncExitStack() as stack:
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "state"
        components = ("controller-manager",) if kwok else ()
        plane = await stack.enter_async_context(ControlPlane.start(name, state_dir=state_dir, components=components))
        if kwok:
            await plane.start_kwok()
        client = await stack.enter_async_context(Client(plane.client_config))
        for file in ("appgroups.yaml", "networktopologies.yaml"):
            for document in yaml.safe_load_all((CRDS / file).read_text()):
                crd = document["metadata"]["name"]
                await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, document, Object, field_manager=name)
        for namespace in namespaces:
            await client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
        # Applied, since a controller manager makes it as well, some time later.
        account = {**SERVICE_ACCOUNTS.type_meta, "metadata": {"name": "default"}}
        await client.apply(SERVICE_ACCOUNTS, "default", account, Object, field_manager=name, namespace=namespaces[0])
        yield plane, client


async def make_topology(client: Client, namespace: str, levels: list[dict[str, Any]]) -> bool:
    """A NetworkTopology with these costs; tells whether its definition was there already."""
    spec = {"configmapName": "netperf-metrics", "weights": [{"name": "UserDefined", "topologyList": levels}]}
    body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "nt-default"}, "spec": spec}
    try:
        await client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace)
    except ApiError as error:
        if not error.not_found:
            raise
        return False
    return True
