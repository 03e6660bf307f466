"""Which replica answers a call: Services and their routing, as in kube-proxy.

The planner, the scheduler's rules and the groups' status all ask here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from controller.cluster.index import Index
from kubekit.wire import Object, Wire

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


def has_zone_hints(routing: Routing, zones: Iterable[object]) -> bool:
    """Whether callers are answered in their own zone where it has a replica.

    One replica on a node without a zone label turns that off for all of them (pkg/proxy/topology.go, topologyModeFromHints).

    Args:
        routing: of the Service.
        zones: of the nodes of its replicas, or whether they have one; empty, or false, for a node without the label.
    """
    return routing is not Routing.ANY and all(zones)


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
    def headless(self) -> bool:
        """Whether callers resolve its pods themselves, and use any."""
        return self.spec.cluster_ip == "None"

    @property
    def has_auto_hints(self) -> bool:
        """Whether automatic topology hints are requested, which override the field (endpointslice/reconciler.go)."""
        return any(self.metadata.annotation(name).lower() == "auto" for name in TOPOLOGY_MODE_ANNOTATIONS)

    @property
    def routing(self) -> Routing:
        """The Service's routing. ``internalTrafficPolicy: Local`` and automatic hints are not modelled: any replica."""
        if self.headless or self.spec.internal_traffic_policy == "Local":
            return Routing.ANY
        if self.has_auto_hints:
            return Routing.ANY
        return _ROUTINGS.get(self.spec.traffic_distribution, Routing.ANY)

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether pods with these labels are behind it."""
        asked = self.spec.selector
        return (
            bool(asked)
            and self.metadata.namespace == namespace
            and all(labels.get(key) == value for key, value in (asked or {}).items())
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
        return [service for service in matching if not service.headless] or matching

    def routing_to(self, namespace: str, labels: Mapping[str, str]) -> Routing:
        """Routing of calls to pods with these labels.

        If several Services differ, the least local routing counts, because the caller's Service is unknown.
        """
        return min((service.routing for service in self.selecting(namespace, labels)), default=Routing.ANY)
