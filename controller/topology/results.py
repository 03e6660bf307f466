"""The ConfigMaps that measurements arrive in, mirrored one by one: which they are follows the NetworkTopologies.

Each is watched by name, so that neither memory nor permissions cover the cluster's other ConfigMaps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap


class ObjectName(NamedTuple):
    """A namespaced name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ResultsMirror:
    """Reflectors for a set of ConfigMaps that changes while they run."""

    def __init__(self, client: Client, changed: Callable[[ObjectName], None]) -> None:
        self._client, self._changed = client, changed
        self._mirrors: dict[ObjectName, tuple[Reflector[ConfigMap], asyncio.Task[None]]] = {}
        self._wanted: frozenset[ObjectName] = frozenset()
        self._rewanted = asyncio.Event()

    def want(self, names: Iterable[ObjectName]) -> None:
        """Mirror exactly these from now on."""
        wanted = frozenset(names)
        if wanted != self._wanted:
            self._wanted = wanted
            self._rewanted.set()

    def is_known(self, name: ObjectName) -> bool:
        """Whether it is known if that ConfigMap exists, or that we may not know."""
        mirror = self._mirrors.get(name)
        return mirror is not None and (mirror[0].synced.is_set() or mirror[0].failure == "403")

    def data(self, name: ObjectName) -> Mapping[str, str] | None:
        """The data of a mirrored ConfigMap; None when there is no such object, or it is not known yet."""
        mirror = self._mirrors.get(name)
        found = mirror[0].get(str(name)) if mirror is not None else None
        return None if found is None else found.data or {}

    async def run(self) -> None:
        """Mirror until cancelled."""
        self._mirrors.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                self._rewanted.clear()
                for name in self._mirrors.keys() - self._wanted:
                    self._mirrors.pop(name)[1].cancel()
                for name in sorted(self._wanted - self._mirrors.keys()):
                    reflector = self._reflector(name)
                    self._mirrors[name] = (reflector, group.create_task(self._watch(name, reflector)))
                await self._rewanted.wait()

    def _reflector(self, name: ObjectName) -> Reflector[ConfigMap]:
        reflector = Reflector(
            self._client,
            CONFIGMAPS,
            ConfigMap,
            namespace=name.namespace,
            field_selector=f"metadata.name={name.name}",
        )
        reflector.subscribe(lambda _key, _old, _new: self._changed(name))
        return reflector

    async def _watch(self, name: ObjectName, reflector: Reflector[ConfigMap]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            await reflector.synced.wait()
            self._changed(name)
