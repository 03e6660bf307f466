"""Objects as the API server would send them: AppGroups, their pods, and weights of a NetworkTopology.

Tests import the product's names from here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from controller.cluster.crds import (
    WORKLOAD_LABEL,
    AppGroup,
    AppGroupStatus,
    NetworkTopology,
    WeightInfo,
)
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from tests.support.bodies import REGION, ZONE, appgroup_spec
from tests.unit.controller import scheduling


def appgroup(
    calls: Mapping[str, Mapping[str, Any]],
    *,
    name: str = "g",
    algorithm: str = "KahnSort",
    members: int = 1,
    generation: int = 1,
    status: AppGroupStatus | None = None,
) -> AppGroup:
    """An AppGroup of namespace shop, with calls as in `appgroup_spec`."""
    spec = appgroup_spec(calls, members=members, algorithm=algorithm)
    body = {"metadata": {"name": name, "namespace": "shop", "generation": generation}, "spec": spec}
    made = msgspec.convert(body, AppGroup)
    return made if status is None else msgspec.structs.replace(made, status=status)


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
) -> Pod:
    """A pod of an AppGroup's workload on a node."""
    times = {"creationTimestamp": created} | ({"deletionTimestamp": "2026-01-02T00:00:00Z"} if leaving else {})
    metadata = {"namespace": namespace, **times}
    return scheduling.pod(workload, on, name=name, group=of, metadata=metadata, status={"phase": phase})


def service(
    name: str, selector: Mapping[str, str], distribution: str = "", *, namespace: str = "shop", version: str = "1"
) -> Service:
    """A Service with an address, and with a trafficDistribution where one is given."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    spec = {"selector": selector, "trafficDistribution": distribution, "clusterIP": "10.0.0.1"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Service)
