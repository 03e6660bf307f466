"""Resolves names in traffic metrics to workloads of the cluster. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from controller.cluster.costs import Location
from controller.cluster.pod_info import PodInfo
from controller.traffic.graph import Flow, WorkloadId


def _workload_id(pod: PodInfo) -> WorkloadId:
    """Deployment, StatefulSet, DaemonSet or Job behind a pod; the pod itself if it has no owner."""
    namespace, kind, name = pod.workload.split("/") if pod.workload else (pod.namespace, "Pod", pod.name)
    return WorkloadId(namespace, name, kind)


@dataclass
class Workloads:
    """Every workload with running pods.

    Attributes:
        replicas: workload -> pods that have not finished.
        locations: workload -> location -> pods there.
        labels: workload -> labels of one of its pods, which its template gave it.
        regions: zone -> its region.
    """

    replicas: Counter[WorkloadId] = field(default_factory=Counter)
    locations: dict[WorkloadId, Counter[Location]] = field(default_factory=lambda: defaultdict(Counter))
    labels: dict[WorkloadId, Mapping[str, str]] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_objects(cls, pods: Iterable[PodInfo], locations: Mapping[str, Location]) -> Workloads:
        """Build from pods, and node name -> location."""
        found = cls(regions={zone: region for region, zone in locations.values()})
        for pod in pods:
            if not pod.is_active:
                continue
            workload = _workload_id(pod)
            found.replicas[workload] += 1
            found.labels.setdefault(workload, pod.labels)
            if pod.node in locations:
                found.locations[workload][locations[pod.node]] += 1
        return found

    def location_of(self, zone: str) -> Location:
        """A zone with its region, as the nodes have it; also of a zone that no workload has a pod in any more."""
        return Location(self.regions.get(zone, ""), zone)

    def resolve(self, flows: Iterable[Flow]) -> tuple[list[Flow], dict[str, float]]:
        """Flows with the kinds of their ends, which meshes lack; and ends that do not exist (any more) -> their bytes per second."""
        by_name: dict[str, WorkloadId] = {}
        for workload in sorted(self.replicas):
            by_name.setdefault(workload.key, workload)
        kept: list[Flow] = []
        unknown: dict[str, float] = defaultdict(float)
        for flow in flows:
            ends = [
                end if not end.is_known or end in self.replicas else by_name.get(end.key)
                for end in (flow.client, flow.server)
            ]
            missing = [end.key for end, real in zip((flow.client, flow.server), ends, strict=True) if real is None]
            if missing:
                unknown[missing[0]] += flow.bytes_per_s
            else:
                kept.append(msgspec.structs.replace(flow, client=ends[0], server=ends[1]))
        return kept, dict(unknown)
