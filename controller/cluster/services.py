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

Node = TypeVar("Node", bound=Hashable)
"""Type of a node's name or number; likewise `Zone`."""
Zone = TypeVar("Zone", bound=Hashable)
TOPOLOGY_MODE_ANNOTATIONS = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints")


class Routing(IntEnum):
    """Which replica answers a call, by a Service's ``trafficDistribution``, as in kube-proxy.

    ANY: each with equal probability. ZONE: those in the caller's zone; any if there is none, or if the node of the caller or
    of a replica has no zone label. NODE: those on the caller's node, else as ZONE. Greater values are more local.
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
    """The replicas behind a Service, for planner, scores and status.

    The compiled search has its own implementation of the same rule (`cost_from_zone` in placement/native/calls.c).

    Args:
        routing: of the Service.
        zones: node of a replica -> its zone.
        is_labelled: whether the nodes of a zone have a zone label.
    """

    def __init__(self, routing: Routing, zones: Mapping[Node, Zone], is_labelled: Callable[[Zone], object]) -> None:
        self._routing, self._nodes, self._zones = routing, zones.keys(), set(zones.values())
        self.has_zone_hints = routing is not Routing.ANY and all(map(is_labelled, self._zones))
        """Whether kube-proxy uses zones: every replica's node must have a zone label (topologyModeFromHints)."""

    def routing_from(self, node: Node, zone: Zone) -> Routing:
        """Which replicas answer a caller: those on its node (NODE), those in its zone (ZONE), or all (ANY)."""
        if self._routing is Routing.NODE and node in self._nodes:
            return Routing.NODE
        return Routing.ZONE if self.has_zone_hints and zone in self._zones else Routing.ANY


class ServiceSpec(Wire, frozen=True):
    """A Service's selector and routing fields."""

    selector: dict[str, str] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    traffic_distribution: str = ""
    internal_traffic_policy: str = "Cluster"


class Service(Object, frozen=True):
    """v1 Service."""

    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Whether it has no cluster IP, so that callers resolve pods by DNS and choose any."""
        return self.spec.cluster_ip == "None"

    @property
    def has_auto_hints(self) -> bool:
        """Whether an annotation requests automatic hints, which override trafficDistribution (endpointslice/reconciler.go)."""
        return any(self.metadata.annotation(name).lower() == "auto" for name in TOPOLOGY_MODE_ANNOTATIONS)

    @property
    def routing(self) -> Routing:
        """The Service's routing; ANY for ``internalTrafficPolicy: Local`` and automatic hints, which are not modelled."""
        if self.is_headless or self.has_auto_hints or self.spec.internal_traffic_policy == "Local":
            return Routing.ANY
        return _ROUTINGS.get(self.spec.traffic_distribution, Routing.ANY)

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
    """Services, indexed by one label of each selector and updated by watch events."""

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}
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
        stored = self._services.pop(key, None)
        if stored is not None and stored.spec.selector:
            label = namespace, *min(stored.spec.selector.items())
            self._by_label[label].pop(key, None)
            if not self._by_label[label]:
                del self._by_label[label]
        if new is not None:
            self._services[key] = new
            if new.spec.selector:
                self._by_label[namespace, *min(new.spec.selector.items())][key] = new
        return not is_routing_unchanged(old, new)

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> list[Service]:
        """Services that select pods with these labels, sorted by name; headless ones only if there are no others."""
        # The index avoids a scan of all Services, of which a namespace may have thousands.
        candidates: dict[str, Service] = {}
        for name, value in labels.items():
            candidates.update(self._by_label.get((namespace, name, value), {}))
        matching = [candidates[key] for key in sorted(candidates) if candidates[key].selects(namespace, labels)]
        return [service for service in matching if not service.is_headless] or matching

    def routing_to(self, pods: Iterable[ObjectMeta]) -> Routing:
        """Routing of calls to a workload, of which ``pods`` has one pod in each namespace.

        If Services differ, the least local routing is used, because it is unknown which one callers use.
        """
        services = (self.selecting(pod.namespace, pod.labels or {}) for pod in pods)
        return min((min((s.routing for s in each), default=Routing.ANY) for each in services), default=Routing.ANY)

    def routings_of(self, pods: Iterable[Pod]) -> dict[str, Routing]:
        """Workload selector -> routing of calls to it, for the workloads of these pods."""
        by_namespace: dict[str, dict[str, ObjectMeta]] = defaultdict(dict)
        for pod in pods:
            samples, meta = by_namespace[pod.workload], pod.metadata
            if pod.is_active and (meta.namespace not in samples or meta.name < samples[meta.namespace].name):
                samples[meta.namespace] = meta
        return {workload: self.routing_to(samples.values()) for workload, samples in by_namespace.items()}
