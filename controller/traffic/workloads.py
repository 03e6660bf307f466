"""Workloads as the cluster has them: what stands behind the names that metrics use. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.services import Service
from controller.traffic.flows import Flow, WorkloadId
from kubekit.owners import owner_of
from kubekit.wire import FINISHED, Object, Wire

Place = tuple[str, str]
"""(region, zone)."""


class _PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""


class _PodStatus(Wire, frozen=True):
    phase: str = ""


class RunningPod(Object, frozen=True):
    """A pod as traffic reads it: whose it is and where it runs."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


def workload_of(pod: RunningPod) -> WorkloadId:
    """Deployment, StatefulSet, DaemonSet or Job behind a pod; the pod itself when nobody owns it."""
    kind, name = owner_of(pod.metadata) or ("Pod", pod.metadata.name)
    return WorkloadId(pod.metadata.namespace, name, kind)


def _workload_id(pod: PodInfo) -> WorkloadId:
    namespace, kind, name = pod.workload.split("/") if pod.workload else (pod.namespace, "Pod", pod.name)
    return WorkloadId(namespace, name, kind)


@dataclass
class Workloads:
    """Every workload with running pods.

    Attributes:
        replicas: workload -> pods that have not finished.
        places: workload -> place -> pods there.
        served: (namespace, name) of workloads that some Service selects.
        labels: workload -> labels of one of its pods, which its template gave it.
        services: (namespace, name) of a Service -> the workload that it selects most pods of.
        regions: zone -> its region.
        schedulers: workload -> scheduler of one of its pods; empty where only stores were read.
    """

    replicas: Counter[WorkloadId] = field(default_factory=Counter)
    places: dict[WorkloadId, Counter[Place]] = field(default_factory=lambda: defaultdict(Counter))
    served: frozenset[tuple[str, str]] = frozenset()
    labels: dict[WorkloadId, Mapping[str, str]] = field(default_factory=dict)
    services: dict[tuple[str, str], WorkloadId] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    schedulers: dict[WorkloadId, str] = field(default_factory=dict)

    @classmethod
    def among(
        cls, pods: Iterable[RunningPod], places: Mapping[str, Place], services: Iterable[Service] = ()
    ) -> Workloads:
        """From pods, node name -> place, and Services."""
        live = [pod for pod in pods if pod.status.phase not in FINISHED and not pod.metadata.deletion_timestamp]
        running = ((workload_of(pod), pod.metadata.labels or {}, pod.spec.node_name) for pod in live)
        found = cls._of(running, places, services)
        found.schedulers = {workload_of(pod): pod.spec.scheduler_name for pod in live}
        return found

    @classmethod
    def from_stores(
        cls, pods: Iterable[PodInfo], places: Mapping[str, Place], services: Iterable[Service] = ()
    ) -> Workloads:
        """The same from what the controller stores."""
        running = (
            (_workload_id(pod), pod.labels, pod.node) for pod in pods if pod.phase not in FINISHED and not pod.leaving
        )
        return cls._of(running, places, services)

    @classmethod
    def _of(
        cls,
        pods: Iterable[tuple[WorkloadId, Mapping[str, str], str]],
        places: Mapping[str, Place],
        services: Iterable[Service],
    ) -> Workloads:
        found = cls(regions={zone: region for region, zone in places.values()})
        selectors: dict[str, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
        for service in services:
            if service.spec.selector:
                selectors[service.metadata.namespace].append((service.metadata.name, service.spec.selector))
        behind: dict[tuple[str, str], Counter[WorkloadId]] = defaultdict(Counter)
        served: set[tuple[str, str]] = set()
        for workload, labels, node in pods:
            found.replicas[workload] += 1
            found.labels.setdefault(workload, labels)
            if node in places:
                found.places[workload][places[node]] += 1
            for name, selector in selectors.get(workload.namespace, ()):
                if selector.items() <= labels.items():
                    served.add((workload.namespace, workload.name))
                    behind[workload.namespace, name][workload] += 1
        found.served = frozenset(served)
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

        Sources name an owner at different heights: OBI may say ReplicaSet or Deployment, Istio says no kind, Caretta a Service.
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
