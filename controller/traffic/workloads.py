"""The cluster's workloads, and the resolution of names in traffic metrics to them. No I/O."""

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
    """Workloads with active pods: neither finished nor being deleted. A pod without an owner is a workload of its own.

    Attributes:
        replica_counts: workload -> number of active pods.
        location_counts: workload -> location -> number of active pods there.
        labels_by_workload: workload -> labels of one of its pods.
        region_by_zone: region of each zone that has nodes.
    """

    replica_counts: Counter[WorkloadId] = field(default_factory=Counter)
    location_counts: dict[WorkloadId, Counter[Location]] = field(default_factory=lambda: defaultdict(Counter))
    labels_by_workload: dict[WorkloadId, Mapping[str, str]] = field(default_factory=dict)
    region_by_zone: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_objects(cls, pods: Iterable[PodInfo], locations: Mapping[str, Location]) -> Workloads:
        """The workloads of active pods; ``locations`` is node name -> location."""
        workloads = cls(region_by_zone={zone: region for region, zone in locations.values()})
        for pod in pods:
            if not pod.is_active:
                continue
            namespace, kind, name = pod.workload.split("/") if pod.workload else (pod.namespace, "Pod", pod.name)
            workload = WorkloadId(namespace, name, kind)
            workloads.replica_counts[workload] += 1
            workloads.labels_by_workload.setdefault(workload, pod.labels)
            if pod.node in locations:
                workloads.location_counts[workload][locations[pod.node]] += 1
        return workloads

    def location_of(self, zone: str) -> Location:
        """The location of a zone, which may be without pods; without a region if the zone has no nodes."""
        return Location(self.region_by_zone.get(zone, ""), zone)

    def resolve(self, flows: Iterable[Flow]) -> tuple[list[Flow], dict[str, float]]:
        """The flows whose ends exist or are external, with their workloads' kinds; and the bytes per second of the others.

        The others are summed by key of the workload that does not exist; if both ends are missing, by that of the client.
        """
        by_key: dict[str, WorkloadId] = {}
        for workload in sorted(self.replica_counts):
            by_key.setdefault(workload.key, workload)

        def find(end: WorkloadId) -> WorkloadId | None:
            # Meshes do not report kinds, so an end without its kind is found by namespace and name. External ends stay.
            return end if not end.is_known or end in self.replica_counts else by_key.get(end.key)

        resolved: list[Flow] = []
        missing: dict[str, float] = defaultdict(float)
        for flow in flows:
            client, server = find(flow.client), find(flow.server)
            if client is not None and server is not None:
                resolved.append(msgspec.structs.replace(flow, client=client, server=server))
            else:
                missing[(flow.client if client is None else flow.server).key] += flow.bytes_per_s
        return resolved, dict(missing)
