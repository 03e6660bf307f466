"""Names of the ConfigMaps that hold results, all shards.

Agents write in netaware's own namespace. A NetworkTopology elsewhere may name one ConfigMap beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.cluster.resources import NetworkTopology
from netperf.plans import ZonePlan
from netperf.shards import shard_names


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
