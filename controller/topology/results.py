"""Names of the ConfigMaps that hold results, all shards.

Agents write in netaware's own namespace. A NetworkTopology elsewhere may name one ConfigMap beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.cluster.resources import NetworkTopology
from netperf.contract import RESULTS_NAME
from netperf.plans import ZonePlan
from netperf.shards import shard_names


class ObjectName(NamedTuple):
    """A namespaced name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def results_of(
    topologies: Iterable[NetworkTopology], plans: Iterable[ZonePlan], home: str, zone_count: int
) -> list[ObjectName]:
    """The ConfigMaps whose results price these topologies: those of our agents, then those that the topologies name.

    Agents write to the shards of `RESULTS_NAME`, and to what current plans name.
    """
    ours = sorted({*shard_names(RESULTS_NAME, zone_count), *(plan.results for plan in plans)})
    names = [ObjectName(home, name) for name in ours]
    for topology in topologies:
        base, namespace = topology.spec.configmap_name, topology.metadata.namespace
        shards = shard_names(base, zone_count) if namespace == home else [base]
        names += [ObjectName(namespace, name) for name in shards if base]
    return list(dict.fromkeys(names))
