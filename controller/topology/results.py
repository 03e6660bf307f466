"""Stores the results ConfigMaps, all shards, from one watch.

Agents write in netaware's own namespace, whose ConfigMaps (but for plans, which have a store of their own) are watched
together. A NetworkTopology elsewhere may name one ConfigMap beside it, which is watched by name, so that neither memory nor
permissions cover what else that namespace holds; of these a few, since anyone may make NetworkTopologies. Sizes are watched
too: anyone may write there, and agents can write nothing more into a full one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from controller.cluster.resources import NetworkTopology
from kubekit import logs
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.contract import PLAN_LABEL
from netperf.errors import size_bytes
from netperf.plans import ZonePlan
from netperf.results import SIZE_WARNING_BYTES
from netperf.shards import shard_names

log = logs.get("controller.topology.results")

MOST_ELSEWHERE = 16
"""ConfigMaps of other namespaces that are watched at a time; each takes a connection."""


class ObjectName(NamedTuple):
    """A namespaced name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def results_of_agents(home: str, base: str, zone_count: int, plans: Iterable[ZonePlan]) -> list[ObjectName]:
    """The ConfigMaps that our agents write to: the shards of ``base``, and those that current plans name."""
    return [ObjectName(home, name) for name in sorted({*shard_names(base, zone_count), *(p.results for p in plans)})]


def results_named_by(topology: NetworkTopology, home: str, zone_count: int) -> list[ObjectName]:
    """The ConfigMap that the object names; only agents spread results over shards, in netaware's namespace."""
    base, namespace = topology.spec.configmap_name, topology.metadata.namespace
    names = shard_names(base, zone_count) if namespace == home else [base]
    return [ObjectName(namespace, name) for name in names] if base else []


class ResultsStore:
    """The store of results ConfigMaps, on every replica.

    Args:
        client: for the watches.
        home: netaware's own namespace.
    """

    def __init__(self, client: Client, home: str, registry: CollectorRegistry | None = None) -> None:
        self._client, self._home_namespace = client, home
        self._home = Reflector(client, CONFIGMAPS, ConfigMap, namespace=home, label_selector=f"{PLAN_LABEL}!=true")
        self._home.subscribe(self._take)
        self._elsewhere: dict[ObjectName, tuple[Reflector[ConfigMap], asyncio.Task[None]]] = {}
        self._wanted_by: dict[str, frozenset[ObjectName]] = {}
        self._wanted: frozenset[ObjectName] = frozenset()
        self._rewanted = asyncio.Event()
        self._changed: list[Callable[[ObjectName], None]] = []
        self._sizes: dict[ObjectName, int] = {}
        self._shown = Gauge(
            "netaware_results_size_bytes",
            "Keys and values of a results ConfigMap; the API server stores 1 MiB.",
            ["namespace", "name"],
            registry=registry,
        )

    def subscribe(self, changed: Callable[[ObjectName], None]) -> None:
        """Call ``changed`` with the name after each change of a wanted ConfigMap, and when it is first known."""
        self._changed.append(changed)

    @property
    def home(self) -> Reflector[ConfigMap]:
        """The store of netaware's own namespace."""
        return self._home

    def set_wanted(self, who: str, names: Iterable[ObjectName]) -> None:
        """Set the ConfigMaps that ``who`` reads."""
        self._wanted_by[who] = frozenset(names)
        wanted = frozenset().union(*self._wanted_by.values())
        if wanted == self._wanted:
            return
        fresh, gone, self._wanted = wanted - self._wanted, self._wanted - wanted, wanted
        for name in gone:
            self._record_size(name, None)
        for name in fresh:
            self._record_size(name, self._found(name))
        self._rewanted.set()

    def is_known(self, name: ObjectName) -> bool:
        """Whether that ConfigMap was read, is known not to exist, or may not be read."""
        if name.namespace == self._home_namespace:
            return _is_known(self._home)
        store = self._elsewhere.get(name)
        return _is_known(store[0]) if store is not None else name not in self._watchable

    def data(self, name: ObjectName) -> Mapping[str, str] | None:
        """The data of a ConfigMap; None when there is no such object, or it is not known yet."""
        config_map = self._found(name)
        return None if config_map is None else config_map.data or {}

    def size_bytes(self, name: ObjectName) -> int:
        """Size of a wanted ConfigMap's keys and values; 0 if it does not exist."""
        return self._sizes.get(name, 0)

    async def run(self) -> None:
        """Keep the store current until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._home.run())
            group.create_task(self._notify_when_listed(self._home, lambda: self._wanted))
            while True:
                self._rewanted.clear()
                wanted = self._watchable
                for name in self._elsewhere.keys() - wanted:
                    self._elsewhere.pop(name)[1].cancel()
                for name in sorted(wanted - self._elsewhere.keys()):
                    reflector = Reflector(
                        self._client,
                        CONFIGMAPS,
                        ConfigMap,
                        namespace=name.namespace,
                        field_selector=f"metadata.name={name.name}",
                    )
                    reflector.subscribe(self._take)
                    self._elsewhere[name] = (reflector, group.create_task(self._watch(name, reflector)))
                await self._rewanted.wait()

    @property
    def _watchable(self) -> frozenset[ObjectName]:
        """The first few that are wanted of other namespaces, in the order of their names."""
        elsewhere = sorted(name for name in self._wanted if name.namespace != self._home_namespace)
        left_out = len(elsewhere[MOST_ELSEWHERE:])
        message = (
            "too many results in other namespaces, some are not read" if left_out else "all results are read again"
        )
        log.change("elsewhere", str(left_out or ""), message, left_out=left_out)
        return frozenset(elsewhere[:MOST_ELSEWHERE])

    def _found(self, name: ObjectName) -> ConfigMap | None:
        if name.namespace == self._home_namespace:
            return self._home.get(str(name))
        store = self._elsewhere.get(name)
        return store[0].get(str(name)) if store is not None else None

    def _take(self, key: str, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        name = ObjectName(*key.split("/", 1))
        if name in self._wanted:
            self._record_size(name, new)
            self._notify(name)

    def _notify(self, name: ObjectName) -> None:
        for changed in self._changed:
            changed(name)

    async def _watch(self, name: ObjectName, reflector: Reflector[ConfigMap]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            await self._notify_when_listed(reflector, lambda: {name})

    async def _notify_when_listed(
        self, reflector: Reflector[ConfigMap], names: Callable[[], Iterable[ObjectName]]
    ) -> None:
        """Notify also about objects that do not exist."""
        await reflector.synced.wait()
        for name in names():
            self._notify(name)

    def _record_size(self, name: ObjectName, config_map: ConfigMap | None) -> None:
        if config_map is None:
            if self._sizes.pop(name, None) is not None:
                self._shown.remove(*name)
            return
        size = self._sizes[name] = size_bytes(config_map.data or {})
        self._shown.labels(*name).set(size)
        large = size > SIZE_WARNING_BYTES
        log.change(
            f"size/{name}",
            "large" if large else "",
            "results are close to 1 MiB, remove keys that are not ours" if large else "results fit again",
            object=name,
            bytes=size,
        )


def _is_known(store: Reflector[ConfigMap]) -> bool:
    return store.synced.is_set() or store.failure == "403"
