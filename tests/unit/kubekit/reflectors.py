"""Runs reflectors of ConfigMaps in the simulated API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap
from lab.polling import poll_until
from tests.support.tasks import running_tasks
from tests.unit.kubekit.simulated_api import SimulatedApi


class RunningReflector:
    """A running reflector, and the changes that it reported.

    Attributes:
        changes: key of the object, whether there was an old one, and whether there is a new one.
    """

    def __init__(self, reflector: Reflector[ConfigMap]) -> None:
        self.reflector = reflector
        self.changes: list[tuple[str, bool, bool]] = []
        reflector.subscribe(lambda key, old, new: self.changes.append((key, old is not None, new is not None)))

    @property
    def values(self) -> dict[str, str]:
        """Name -> value under the key ``v`` of each stored object."""
        return {key: (item.data or {}).get("v", "") for key, item in self.reflector.items.items()}


@asynccontextmanager
async def run_reflector(api: SimulatedApi, **selectors: str) -> AsyncIterator[RunningReflector]:
    async with api.running() as config, Client(config) as client:
        reflector: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns", **selectors)
        running = RunningReflector(reflector)
        async with running_tasks(reflector.run()) as (task,):
            yield running
            assert not task.done(), "the reflector ended by itself"


@asynccontextmanager
async def run_watch(api: SimulatedApi) -> AsyncIterator[RunningReflector]:
    """A reflector with an open watch."""
    async with run_reflector(api) as running:
        await poll_until(lambda: api.watch_count == 1)
        yield running
