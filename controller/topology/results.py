"""The ConfigMaps that measurements arrive in, mirrored one by one: which they are follows the NetworkTopologies.

Each is watched by name, so that neither memory nor permissions cover the cluster's other ConfigMaps. Their sizes are watched
too: anyone may write there, and agents can write nothing more into a full one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from kubekit import logs
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.results import SIZE_WARNING_BYTES, size_bytes

log = logs.get("controller.topology.results")


class ObjectName(NamedTuple):
    """A namespaced name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ResultsMirror:
    """Reflectors for a set of ConfigMaps that changes while they run."""

    def __init__(
        self, client: Client, changed: Callable[[ObjectName], None], registry: CollectorRegistry | None = None
    ) -> None:
        self._client, self._changed = client, changed
        self._sizes: dict[ObjectName, int] = {}
        self._shown = Gauge(
            "netaware_results_size_bytes",
            "Keys and values of a results ConfigMap; the API server stores 1 MiB.",
            ["namespace", "name"],
            registry=registry,
        )
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

    def size_bytes(self, name: ObjectName) -> int:
        """What keys and values of a mirrored ConfigMap take; 0 when there is none."""
        return self._sizes.get(name, 0)

    async def run(self) -> None:
        """Mirror until cancelled."""
        self._mirrors.clear()
        self._sizes.clear()
        self._shown.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                self._rewanted.clear()
                for name in self._mirrors.keys() - self._wanted:
                    self._mirrors.pop(name)[1].cancel()
                    self._weigh(name, None)
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

        def take(_key: str, _old: ConfigMap | None, new: ConfigMap | None) -> None:
            self._weigh(name, new)
            self._changed(name)

        reflector.subscribe(take)
        return reflector

    def _weigh(self, name: ObjectName, found: ConfigMap | None) -> None:
        if found is None:
            if self._sizes.pop(name, None) is not None:
                self._shown.remove(*name)
            return
        size = self._sizes[name] = size_bytes(found.data or {})
        self._shown.labels(*name).set(size)
        large = size > SIZE_WARNING_BYTES
        log.change(
            f"size/{name}",
            "large" if large else "",
            "results are close to 1 MiB, remove keys that are not ours" if large else "results fit again",
            object=name,
            bytes=size,
        )

    async def _watch(self, name: ObjectName, reflector: Reflector[ConfigMap]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            await reflector.synced.wait()
            self._changed(name)
