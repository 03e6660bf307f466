"""Which replica answers a call: Services and their routing, as in kube-proxy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import IntEnum
from typing import Generic, TypeVar

import msgspec

from controller.cluster.index import Index
from controller.cluster.pods import GroupPod
from kubekit.wire import Object, ObjectMeta, Wire

Node = TypeVar("Node", bound=Hashable)
Zone = TypeVar("Zone", bound=Hashable)
TOPOLOGY_MODE_ANNOTATIONS = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints")


class Routing(IntEnum):
    """Which replica answers a call, by a Service's ``trafficDistribution``, as kube-proxy decides it.

    ANY: each with equal chance. ZONE: those in the caller's zone, any where there is none, or where the caller's node or that of
    any replica has no zone label. NODE: those on the caller's node, else as ZONE.
    (pkg/proxy/topology.go, CategorizeEndpoints and topologyModeFromHints, Kubernetes 1.36.)
    """

    ANY = 0
    ZONE = 1
    NODE = 2


_ROUTINGS: Mapping[str, Routing] = {
    "PreferClose": Routing.ZONE,
    "PreferSameZone": Routing.ZONE,
    "PreferSameNode": Routing.NODE,
}


class Endpoints(Generic[Node, Zone]):
    """The replicas behind a Service. Planner, scores and status all decide here which of them answer a call.

    The compiled search counts by the same rule (`zone_term` in placement/native/state.c).

    Args:
        routing: of the Service.
        zones: node of a replica -> its zone.
        is_labelled: whether the nodes of a zone have a zone label.
    """

    def __init__(self, routing: Routing, zones: Mapping[Node, Zone], is_labelled: Callable[[Zone], object]) -> None:
        self._routing, self._nodes, self._zones = routing, zones.keys(), set(zones.values())
        self.has_zone_hints = routing is not Routing.ANY and all(map(is_labelled, self._zones))
        """Without a label on the node of every replica, kube-proxy ignores zones (pkg/proxy/topology.go, topologyModeFromHints)."""

    def routing_from(self, node: Node, zone: Zone) -> Routing:
        """Which replicas answer a caller: those on its node (NODE), those in its zone (ZONE), or all (ANY)."""
        if self._routing is Routing.NODE and node in self._nodes:
            return Routing.NODE
        return Routing.ZONE if self.has_zone_hints and zone in self._zones else Routing.ANY


class ServiceSpec(Wire, frozen=True):
    """A Service's selector and routing fields."""

    selector: dict[str, str] | None = None
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    traffic_distribution: str = ""
    internal_traffic_policy: str = "Cluster"


class Service(Object, frozen=True):
    """v1 Service."""

    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Whether callers resolve its pods themselves, and use any."""
        return self.spec.cluster_ip == "None"

    @property
    def has_auto_hints(self) -> bool:
        """Whether automatic topology hints are requested, which override the field (endpointslice/reconciler.go)."""
        return any(self.metadata.annotation(name).lower() == "auto" for name in TOPOLOGY_MODE_ANNOTATIONS)

    @property
    def routing(self) -> Routing:
        """The Service's routing. ``internalTrafficPolicy: Local`` and automatic hints are not modelled: any replica."""
        if self.is_headless or self.spec.internal_traffic_policy == "Local":
            return Routing.ANY
        if self.has_auto_hints:
            return Routing.ANY
        return _ROUTINGS.get(self.spec.traffic_distribution, Routing.ANY)

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether pods with these labels are behind it."""
        selector = self.spec.selector or {}
        return (
            bool(selector)
            and self.metadata.namespace == namespace
            and all(labels.get(key) == value for key, value in selector.items())
        )


def has_same_routing(old: Service | None, new: Service | None) -> bool:
    """Whether a change of a Service leaves routing unchanged."""
    return old is not None and new is not None and (old.spec, old.routing) == (new.spec, new.routing)


class ServiceIndex(Index):
    """Services by one of the labels that each asks for, kept up to date by watch events."""

    def __init__(self) -> None:
        self._known: dict[str, Service] = {}
        self._by_label: dict[tuple[str, str, str], dict[str, Service]] = defaultdict(dict)

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
        known = self._known.pop(key, None)
        if known is not None and known.spec.selector:
            where = namespace, *min(known.spec.selector.items())
            self._by_label[where].pop(key, None)
            if not self._by_label[where]:
                del self._by_label[where]
        if new is not None:
            self._known[key] = new
            if new.spec.selector:
                self._by_label[namespace, *min(new.spec.selector.items())][key] = new
        return not has_same_routing(old, new)

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> list[Service]:
        """The Services by which pods with these labels are called, by name: those with an address of their own where there are any."""
        # Only those that ask for one of the labels, since a namespace may have thousands.
        candidates: dict[str, Service] = {}
        for name, value in labels.items():
            candidates.update(self._by_label.get((namespace, name, value), {}))
        matching = [candidates[key] for key in sorted(candidates) if candidates[key].selects(namespace, labels)]
        return [service for service in matching if not service.is_headless] or matching

    def routing_to(self, pods: Iterable[ObjectMeta]) -> Routing:
        """Routing of calls to a workload, by one of its pods in each of its namespaces.

        Where Services differ, the least local routing counts, because the caller's Service is unknown.
        """
        found = (self.selecting(pod.namespace, pod.labels or {}) for pod in pods)
        return min((min((s.routing for s in each), default=Routing.ANY) for each in found), default=Routing.ANY)

    def routings_of(self, pods: Iterable[GroupPod]) -> dict[str, Routing]:
        """Workload selector -> routing of calls to it, for the workloads of these pods."""
        models: dict[str, dict[str, ObjectMeta]] = defaultdict(dict)
        for pod in pods:
            known, meta = models[pod.workload], pod.metadata
            if pod.is_active and (meta.namespace not in known or meta.name < known[meta.namespace].name):
                known[meta.namespace] = meta
        return {workload: self.routing_to(known.values()) for workload, known in models.items()}
