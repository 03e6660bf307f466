"""Services and their routing as in kube-proxy: which replica answers a call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import IntEnum
from typing import Generic, TypeVar

import msgspec

from controller.cluster.index import Index
from controller.cluster.pods import Pod
from kubekit.wire import Object, ObjectMeta, Wire

NodeId = TypeVar("NodeId", bound=Hashable)
ZoneId = TypeVar("ZoneId", bound=Hashable)
"""Types of names or numbers of nodes and zones."""
TOPOLOGY_MODE_ANNOTATIONS = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints")


class Routing(IntEnum):
    """Which replica answers a call, by a Service's ``trafficDistribution``. Greater values are more local.

    As in kube-proxy (pkg/proxy/topology.go, CategorizeEndpoints and topologyModeFromHints, Kubernetes 1.36).

    Attributes:
        ANY: any replica, with equal probability.
        ZONE: those in the caller's zone; as ANY if there are none, or if the node of the caller or of a replica has no zone label.
        NODE: those on the caller's node; as ZONE if there are none.
    """

    ANY = 0
    ZONE = 1
    NODE = 2


_ROUTING_BY_DISTRIBUTION: Mapping[str, Routing] = {
    "PreferClose": Routing.ZONE,
    "PreferSameZone": Routing.ZONE,
    "PreferSameNode": Routing.NODE,
}


class Endpoints(Generic[NodeId, ZoneId]):
    """The replicas behind a Service, and which of them answer a caller.

    ``zone_by_node`` has the nodes of replicas; ``has_zone_label`` returns whether the nodes of a zone have a zone label. The compiled
    search implements the same rule (`cost_from_zone` in placement/native/calls.c).
    """

    def __init__(
        self, routing: Routing, zone_by_node: Mapping[NodeId, ZoneId], has_zone_label: Callable[[ZoneId], object]
    ) -> None:
        self._routing, self._nodes, self._zones = routing, zone_by_node.keys(), set(zone_by_node.values())
        self.has_zone_hints = routing is not Routing.ANY and all(map(has_zone_label, self._zones))
        """Whether kube-proxy prefers zones: the node of every replica must have a zone label."""

    def routing_from(self, node: NodeId, zone: ZoneId) -> Routing:
        """The routing of calls from a node: to replicas there (NODE), to those in its zone (ZONE), or to all (ANY)."""
        if self._routing is Routing.NODE and node in self._nodes:
            return Routing.NODE
        return Routing.ZONE if self.has_zone_hints and zone in self._zones else Routing.ANY


class ServiceSpec(Wire, frozen=True):
    """spec of a Service: its selector, and the fields that decide its routing."""

    selector: dict[str, str] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    traffic_distribution: str = ""
    internal_traffic_policy: str = "Cluster"


class Service(Object, frozen=True):
    """v1 Service."""

    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Whether it has no cluster IP, so that callers get all pods from DNS and choose one of them."""
        return self.spec.cluster_ip == "None"

    @property
    def has_auto_hints(self) -> bool:
        """Whether an annotation requests automatic hints, which override trafficDistribution (endpointslice/reconciler.go)."""
        return any(self.metadata.annotation(name).lower() == "auto" for name in TOPOLOGY_MODE_ANNOTATIONS)

    @property
    def routing(self) -> Routing:
        """Routing of calls to it; ANY for ``internalTrafficPolicy: Local`` and automatic hints, which are not modelled."""
        if self.is_headless or self.has_auto_hints or self.spec.internal_traffic_policy == "Local":
            return Routing.ANY
        return _ROUTING_BY_DISTRIBUTION.get(self.spec.traffic_distribution, Routing.ANY)

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it selects pods with these labels."""
        selector = self.spec.selector or {}
        return (
            bool(selector)
            and self.metadata.namespace == namespace
            and all(labels.get(key) == value for key, value in selector.items())
        )


def is_routing_unchanged(old: Service | None, new: Service | None) -> bool:
    """Whether two versions of a Service route calls alike."""
    return old is not None and new is not None and (old.spec, old.routing) == (new.spec, new.routing)


class ServiceIndex(Index):
    """Services, updated by watch events and indexed by one label of each selector, because a namespace may have thousands."""

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}
        self._services_by_label: dict[tuple[str, str, str], dict[str, Service]] = defaultdict(dict)

    @classmethod
    def from_objects(cls, services: Iterable[Service]) -> ServiceIndex:
        """Build from Services."""
        index = cls()
        for service in services:
            index.on_change(service.metadata.key, None, service)
        return index

    def on_change(self, key: str, old: Service | None, new: Service | None) -> bool:
        """Update a Service; returns whether routing may have changed."""
        namespace = key.rpartition("/")[0]
        stored_service = self._services.pop(key, None)
        if stored_service is not None and stored_service.spec.selector:
            index_key = namespace, *min(stored_service.spec.selector.items())
            self._services_by_label[index_key].pop(key, None)
            if not self._services_by_label[index_key]:
                del self._services_by_label[index_key]
        if new is not None:
            self._services[key] = new
            if new.spec.selector:
                self._services_by_label[namespace, *min(new.spec.selector.items())][key] = new
        return not is_routing_unchanged(old, new)

    def services_selecting(self, namespace: str, labels: Mapping[str, str]) -> list[Service]:
        """Services that select pods with these labels, sorted by name; headless ones only if there are no others."""
        candidates: dict[str, Service] = {}
        for name, value in labels.items():
            candidates.update(self._services_by_label.get((namespace, name, value), {}))
        services = [candidates[key] for key in sorted(candidates) if candidates[key].selects(namespace, labels)]
        return [service for service in services if not service.is_headless] or services

    def routing_to(self, pods: Iterable[ObjectMeta]) -> Routing:
        """Routing of calls to a workload, of which ``pods`` has one pod for each of its namespaces.

        If several Services select the pods, the least local routing counts, because it is unknown which Service callers use.
        """
        services_of_pods = (self.services_selecting(pod.namespace, pod.labels or {}) for pod in pods)
        return min(
            (min((s.routing for s in services), default=Routing.ANY) for services in services_of_pods),
            default=Routing.ANY,
        )

    def routings_of(self, group_pods: Iterable[Pod]) -> dict[str, Routing]:
        """Routing of calls to each workload of these pods, by workload selector. The first pod of each namespace represents all."""
        first_pods_by_workload: dict[str, dict[str, ObjectMeta]] = defaultdict(dict)
        for pod in group_pods:
            first_pods, meta = first_pods_by_workload[pod.workload], pod.metadata
            if pod.is_active and (meta.namespace not in first_pods or meta.name < first_pods[meta.namespace].name):
                first_pods[meta.namespace] = meta
        return {workload: self.routing_to(pods.values()) for workload, pods in first_pods_by_workload.items()}
