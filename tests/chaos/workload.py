"""Deploys and deletes applications with dependencies, as load."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from controller.cluster.crds import APPGROUPS
from controller.cluster.pods import OUR_SCHEDULER
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.wire import DEPLOYMENTS, NAMESPACES, PODS, Object, Pod
from lab import boutique

PREFIX = "chaos-app-"
_DEPLOY_INTERVAL_S, _MAX_APPLICATIONS = 20.0, 2
_CPU = "100m"


class Workload:
    """Deploys the Online Boutique into one namespace after the other, and deletes the oldest."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._application = boutique.load_application(scheduler=OUR_SCHEDULER, cpu=_CPU)

    async def run(self) -> None:
        """Deploy and delete until cancelled."""
        deployed: list[str] = []
        for number in itertools.count(1):
            if await self._try(self._deploy(f"{PREFIX}{number}")):
                deployed.append(f"{PREFIX}{number}")
            if len(deployed) > _MAX_APPLICATIONS and await self._try(self._client.delete(NAMESPACES, deployed[0])):
                deployed.pop(0)
            await asyncio.sleep(_DEPLOY_INTERVAL_S)

    async def list_unbound_pods(self) -> list[Pod]:
        """Pods of the applications that have no node."""
        pods = await self._client.list(PODS, Pod)
        ours = [p for p in pods if p.metadata.namespace.startswith(PREFIX) and not p.metadata.deletion_timestamp]
        return [p for p in ours if not p.spec.node_name]

    async def _deploy(self, namespace: str) -> None:
        await self._client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
        await self._client.create(APPGROUPS, self._application.group, Object, namespace=namespace)
        for deployment in self._application.deployments.values():
            await self._client.create(DEPLOYMENTS, deployment, Object, namespace=namespace)

    async def _try(self, work: Any) -> bool:
        try:
            await work
        except KubekitError:
            return False  # Part of an application is load too.
        return True
