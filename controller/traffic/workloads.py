"""Resolves workload names of traffic metrics to workloads of the cluster. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from controller.cluster.costs import Location
from controller.cluster.pod_info import PodInfo
from controller.traffic.graph import Flow, WorkloadId


@dataclass
class Workloads:
    """Workloads (Deployments, StatefulSets, ..., and pods without an owner) with active pods.

    Attributes:
        replicas: workload -> number of active pods.
        locations: workload -> location -> number of active pods there.
        labels: workload -> labels of one of its pods.
        regions: zone -> its region.
    """

    replicas: Counter[WorkloadId] = field(default_factory=Counter)
    locations: dict[WorkloadId, Counter[Location]] = field(default_factory=lambda: defaultdict(Counter))
    labels: dict[WorkloadId, Mapping[str, str]] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_objects(cls, pods: Iterable[PodInfo], locations: Mapping[str, Location]) -> Workloads:
        """Build from pods, and node name -> location."""
        workloads = cls(regions={zone: region for region, zone in locations.values()})
        for pod in pods:
            if not pod.is_active:
                continue
            namespace, kind, name = pod.workload.split("/") if pod.workload else (pod.namespace, "Pod", pod.name)
            workload = WorkloadId(namespace, name, kind)
            workloads.replicas[workload] += 1
            workloads.labels.setdefault(workload, pod.labels)
            if pod.node in locations:
                workloads.locations[workload][locations[pod.node]] += 1
        return workloads

    def location_of(self, zone: str) -> Location:
        """A zone with the region of its nodes; the zone may be without pods."""
        return Location(self.regions.get(zone, ""), zone)

    def resolve(self, flows: Iterable[Flow]) -> tuple[list[Flow], dict[str, float]]:
        """Flows between existing workloads, with the kinds that meshes lack; and missing ends -> bytes per second of their flows."""
        by_name: dict[str, WorkloadId] = {}
        for workload in sorted(self.replicas):
            by_name.setdefault(workload.key, workload)
        resolved: list[Flow] = []
        unknown: dict[str, float] = defaultdict(float)
        for flow in flows:
            ends = [
                end if not end.is_known or end in self.replicas else by_name.get(end.key)
                for end in (flow.client, flow.server)
            ]
            missing = [end.key for end, found in zip((flow.client, flow.server), ends, strict=True) if found is None]
            if missing:
                unknown[missing[0]] += flow.bytes_per_s
            else:
                resolved.append(msgspec.structs.replace(flow, client=ends[0], server=ends[1]))
        return resolved, dict(unknown)
