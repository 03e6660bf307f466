"""Resolves names in traffic metrics to workloads of the cluster. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.services import Service
from controller.traffic.flows import Flow, WorkloadId

Place = tuple[str, str]
"""(region, zone)."""


def _workload_id(pod: PodInfo) -> WorkloadId:
    """Deployment, StatefulSet, DaemonSet or Job behind a pod; the pod itself if it has no owner."""
    namespace, kind, name = pod.workload.split("/") if pod.workload else (pod.namespace, "Pod", pod.name)
    return WorkloadId(namespace, name, kind)


@dataclass
class Workloads:
    """Every workload with running pods.

    Attributes:
        replicas: workload -> pods that have not finished.
        places: workload -> place -> pods there.
        labels: workload -> labels of one of its pods, which its template gave it.
        services: (namespace, name) of a Service -> the workload that it selects most pods of.
        regions: zone -> its region.
        schedulers: workload -> scheduler of one of its pods.
    """

    replicas: Counter[WorkloadId] = field(default_factory=Counter)
    places: dict[WorkloadId, Counter[Place]] = field(default_factory=lambda: defaultdict(Counter))
    labels: dict[WorkloadId, Mapping[str, str]] = field(default_factory=dict)
    services: dict[tuple[str, str], WorkloadId] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    schedulers: dict[WorkloadId, str] = field(default_factory=dict)

    @classmethod
    def from_objects(
        cls, pods: Iterable[PodInfo], places: Mapping[str, Place], services: Iterable[Service] = ()
    ) -> Workloads:
        """Build from pods, node name -> place, and Services."""
        found = cls(regions={zone: region for region, zone in places.values()})
        selectors: dict[str, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
        for service in services:
            if service.spec.selector:
                selectors[service.metadata.namespace].append((service.metadata.name, service.spec.selector))
        behind: dict[tuple[str, str], Counter[WorkloadId]] = defaultdict(Counter)
        for pod in pods:
            if not pod.is_active:
                continue
            workload = _workload_id(pod)
            found.replicas[workload] += 1
            found.labels.setdefault(workload, pod.labels)
            found.schedulers.setdefault(workload, pod.scheduler)
            if pod.node in places:
                found.places[workload][places[pod.node]] += 1
            for name, selector in selectors.get(workload.namespace, ()):
                if selector.items() <= pod.labels.items():
                    behind[workload.namespace, name][workload] += 1
        found.services = {name: max(sorted(ends), key=ends.__getitem__) for name, ends in behind.items()}
        return found

    def place_of(self, zone: str) -> Place:
        """A zone with its region, as the nodes have it; also of a zone that no workload has a pod in any more."""
        return self.regions.get(zone, ""), zone

    def _find(self, end: WorkloadId, by_name: Mapping[tuple[str, str], WorkloadId]) -> WorkloadId | None:
        if end in self.replicas:
            return end
        name = (end.namespace, end.name)
        found, behind = by_name.get(name), self.services.get(name)
        return (behind or found) if end.kind == "Service" else (found or behind if not end.kind else found)

    def resolve(self, flows: Iterable[Flow]) -> tuple[list[Flow], dict[str, float]]:
        """Flows with the kinds of their ends; and ends that do not exist (any more) -> their bytes per second.

        Sources name an owner at different heights: OBI may say ReplicaSet or Deployment, Istio says no kind.
        """
        by_name: dict[tuple[str, str], WorkloadId] = {}
        for workload in sorted(self.replicas):
            by_name.setdefault((workload.namespace, workload.name), workload)
        kept: list[Flow] = []
        unknown: dict[str, float] = defaultdict(float)
        for flow in flows:
            ends = []
            for end in (flow.client, flow.server):
                real = self._find(end, by_name) if end.known else end
                if real is None:
                    unknown[end.key] += flow.bytes_per_s
                    break
                ends.append(real)
            if len(ends) == 2:
                kept.append(msgspec.structs.replace(flow, client=ends[0], server=ends[1]))
        return kept, dict(unknown)
