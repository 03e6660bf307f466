"""Objects as the API server would send them: AppGroups, their pods, and weights of a NetworkTopology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from controller.cluster.pods import GroupPod
from controller.cluster.resources import (
    APPGROUP_LABEL,
    WORKLOAD_LABEL,
    AppGroup,
    AppGroupStatus,
    NetworkTopology,
    WeightInfo,
)
from controller.cluster.services import Service

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"

__all__ = [
    "REGION",
    "WORKLOAD_LABEL",
    "ZONE",
    "AppGroup",
    "AppGroupStatus",
    "GroupPod",
    "NetworkTopology",
    "WeightInfo",
    "appgroup",
    "group_pod",
    "service",
    "weight_info",
]


def appgroup(
    needs: Mapping[str, Mapping[str, Mapping[str, Any]]],
    *,
    name: str = "g",
    algorithm: str = "KahnSort",
    members: int = 1,
    generation: int = 1,
    status: AppGroupStatus | None = None,
) -> AppGroup:
    """An AppGroup of namespace shop.

    Args:
        needs: selector of a workload -> selector of a dependency -> what is demanded of it. Who is needed and not named
            as a workload is none.
    """

    def reference(selector: str) -> dict[str, str]:
        return {"kind": "Deployment", "name": f"{selector}-deployment", "selector": selector}

    workloads = [
        {"workload": reference(one), "dependencies": [{"workload": reference(d), **more} for d, more in below.items()]}
        for one, below in needs.items()
    ]
    spec = {"numMembers": members, "topologySortingAlgorithm": algorithm, "workloads": workloads}
    body = {"metadata": {"name": name, "namespace": "shop", "generation": generation}, "spec": spec}
    found = msgspec.convert(body, AppGroup)
    return found if status is None else msgspec.structs.replace(found, status=status)


def group_pod(
    workload: str,
    on: str,
    *,
    of: str = "g",
    name: str = "p",
    namespace: str = "shop",
    phase: str = "Running",
    created: str = "2026-01-01T00:00:00Z",
    leaving: bool = False,
) -> GroupPod:
    """A pod of an AppGroup's workload on a node."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {APPGROUP_LABEL: of, WORKLOAD_LABEL: workload},
        "creationTimestamp": created,
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": on}, "status": {"phase": phase}}, GroupPod)


def weight_info(name: str, levels: Mapping[str, Iterable[tuple[str, str, Mapping[str, Any]]]]) -> WeightInfo:
    """A weight: topology key -> origin, destination and what is said of their way."""
    topologies = []
    for key, ways in levels.items():
        lists: dict[str, list[dict[str, Any]]] = {}
        for origin, destination, said in ways:
            lists.setdefault(origin, []).append({"destination": destination, **said})
        origins = [{"origin": origin, "costList": entries} for origin, entries in lists.items()]
        topologies.append({"topologyKey": key, "originList": origins})
    return msgspec.convert({"name": name, "topologyList": topologies}, WeightInfo)


def service(
    name: str, selector: Mapping[str, str], distribution: str = "", *, namespace: str = "shop", version: str = "1"
) -> Service:
    """A Service with an address, and with a trafficDistribution where one is given."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    spec = {"selector": selector, "trafficDistribution": distribution, "clusterIP": "10.0.0.1"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Service)
