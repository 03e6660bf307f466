"""Builds bodies of AppGroups, NetworkTopologies and Deployments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES

REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"


def make_appgroup_spec(
    calls: Mapping[str, Mapping[str, Any]],
    *,
    members: int = 1,
    algorithm: str = "KahnSort",
    namespaces: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The spec of an AppGroup whose workloads are Deployments, named like their selectors in lower case.

    ``calls`` has maxNetworkCost, or all fields of the dependency, by caller and callee; ``namespaces`` those of references by selector.
    """

    def reference(selector: str) -> dict[str, str]:
        namespace = {"namespace": namespaces[selector]} if namespaces and selector in namespaces else {}
        return {"kind": "Deployment", "name": selector.lower(), "selector": selector, **namespace}

    def dependency(callee: str, limits: Any) -> dict[str, Any]:
        return {"workload": reference(callee), **(limits if isinstance(limits, dict) else {"maxNetworkCost": limits})}

    workloads = [
        {"workload": reference(caller), "dependencies": [dependency(*entry) for entry in callees.items()]}
        for caller, callees in calls.items()
    ]
    return {"numMembers": members, "topologySortingAlgorithm": algorithm, "workloads": workloads}


def make_appgroup_body(name: str, calls: Mapping[str, Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """An AppGroup; the other arguments are those of `make_appgroup_spec`."""
    return {**APPGROUPS.type_meta, "metadata": {"name": name}, "spec": make_appgroup_spec(calls, **options)}


def make_topology_body(name: str = "nt-default", **spec: Any) -> dict[str, Any]:
    """A NetworkTopology of the default results ConfigMap, with other fields of its ``spec``."""
    spec = {"configmapName": "netperf-metrics", **spec}
    return {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": name}, "spec": spec}


def make_weight_body(
    zones: Mapping[tuple[str, str], Any],
    regions: Mapping[tuple[str, str], Any] | None = None,
    name: str = "UserDefined",
) -> dict[str, Any]:
    """A weight of a NetworkTopology; costs are networkCost, or all fields of the entry, by origin and destination."""
    levels = []
    for key, costs in ((REGION, regions or {}), (ZONE, zones)):
        origins: dict[str, list[dict[str, Any]]] = {}
        for (origin, destination), cost in costs.items():
            fields = cost if isinstance(cost, dict) else {"networkCost": cost}
            origins.setdefault(origin, []).append({"destination": destination, **fields})
        lists = [{"origin": origin, "costList": entries} for origin, entries in sorted(origins.items())]
        levels.append({"topologyKey": key, "originList": lists})
    return {"name": name, "topologyList": levels}


def make_deployment(
    name: str, container: Mapping[str, Any], *, labels: Mapping[str, str] | None = None, replicas: int = 1, **spec: Any
) -> dict[str, Any]:
    """A Deployment of pods with a container and the label ``app``; other keywords are fields of the pods' spec."""
    template = {
        "metadata": {"labels": {"app": name, **(labels or {})}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def make_random_weight(zones: Sequence[str], regions: Sequence[str]) -> dict[str, Any]:
    """A weight with costs of 2 to 20 between all zones and between all regions, the same in every run."""
    rng = random.Random(1)

    def costs(names: Sequence[str]) -> dict[tuple[str, str], int]:
        return {(a, b): rng.randint(2, 20) for a in names for b in names if a != b}

    return make_weight_body(costs(zones), costs(regions))


def make_symmetric_costs(costs: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {**costs, **{(destination, origin): cost for (origin, destination), cost in costs.items()}}
