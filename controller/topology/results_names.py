"""Names of the ConfigMaps with probe results.

Agents write in netaware's own namespace, into one ConfigMap per shard. A NetworkTopology may name another ConfigMap in its own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.cluster.crds import NetworkTopology
from netperf.contract import RESULTS_NAME
from netperf.plans import ZonePlan
from netperf.shards import shard_names


class ObjectName(NamedTuple):
    """A namespaced name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def list_results_names(
    topologies: Iterable[NetworkTopology], plans: Iterable[ZonePlan], netaware_namespace: str, zone_count: int
) -> list[ObjectName]:
    """Names of the ConfigMaps with results: first those that agents write, then those that the NetworkTopologies name.

    Agents write into the shards of `RESULTS_NAME` and into the ConfigMaps that the current plans name.
    """
    written_by_agents = sorted({*shard_names(RESULTS_NAME, zone_count), *(plan.results_name for plan in plans)})
    names = [ObjectName(netaware_namespace, name) for name in written_by_agents]
    for topology in topologies:
        configmap_name, namespace = topology.spec.configmap_name, topology.metadata.namespace
        shards = shard_names(configmap_name, zone_count) if namespace == netaware_namespace else [configmap_name]
        names += [ObjectName(namespace, name) for name in shards if configmap_name]
    return list(dict.fromkeys(names))
