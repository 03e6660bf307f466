"""Deploys and deletes applications with dependencies, as load."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable

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
        namespaces: list[str] = []
        for number in itertools.count(1):
            if await self._try(self._deploy(f"{PREFIX}{number}")):
                namespaces.append(f"{PREFIX}{number}")
            if len(namespaces) > _MAX_APPLICATIONS and await self._try(self._client.delete(NAMESPACES, namespaces[0])):
                namespaces.pop(0)
            await asyncio.sleep(_DEPLOY_INTERVAL_S)

    async def list_unbound_pods(self) -> list[Pod]:
        """Pods of the applications that have no node."""
        unbound_pods = [pod for pod in await self._client.list(PODS, Pod) if not pod.spec.node_name]
        return [
            pod
            for pod in unbound_pods
            if pod.metadata.namespace.startswith(PREFIX) and not pod.metadata.deletion_timestamp
        ]

    async def _deploy(self, namespace: str) -> None:
        await self._client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
        await self._client.create(APPGROUPS, self._application.group, Object, namespace=namespace)
        for deployment in self._application.deployments.values():
            await self._client.create(DEPLOYMENTS, deployment, Object, namespace=namespace)

    async def _try(self, request: Awaitable[object]) -> bool:
        try:
            await request
        except KubekitError:
            return False  # Part of an application is load too.
        return True
