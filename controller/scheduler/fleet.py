"""How much room the nodes have: allocatable less what the pods on them asked for, kept up to date by watch events."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.resources import REGION_LABEL, ZONE_LABEL
from controller.scheduler.eligibility import blocking_taints
from controller.scheduler.pods import Container
from controller.scheduler.requests import Amounts, amounts, requests_of
from controller.scheduler.rules import Location
from kubekit.reflector import Reflector
from kubekit.wire import Node, Object, ObjectMeta, OwnerReference, Taint, Wire

BOUND_PODS = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that hold room."""


class BareMeta(ObjectMeta, frozen=True):
    """Metadata without its maps: those of a hundred thousand pods would fill the memory, and nobody reads them here.

    The fields are there for whoever takes this for an `ObjectMeta`; under these names the API server has none.
    """

    labels: dict[str, str] | None = msgspec.field(default=None, name="netaware.io/unread-labels")
    annotations: dict[str, str] | None = msgspec.field(default=None, name="netaware.io/unread-annotations")
    owner_references: list[OwnerReference] | None = msgspec.field(default=None, name="netaware.io/unread-owners")


class BoundPodSpec(Wire, frozen=True):
    """What a bound pod holds, and where."""

    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None


class BoundPod(Object, frozen=True):
    """A pod on a node; nothing else of it is read, since there may be a hundred thousand."""

    metadata: BareMeta = BareMeta()
    spec: BoundPodSpec = BoundPodSpec()


class Host(msgspec.Struct, frozen=True):
    """A node as plans see it."""

    name: str
    location: Location
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Amounts


class Fleet:
    """All hosts, and what is taken on each.

    Attributes:
        hosts: node name -> host.
        used: node name -> sum of requests of the pods on it, "pods" among them.
        version: counts changes of hosts; room taken does not count.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.used: dict[str, Amounts] = {}
        self.version = 0
        self._held: dict[str, tuple[str, Amounts]] = {}

    def follow(self, nodes: Reflector[Node], pods: Reflector[BoundPod]) -> None:
        """Take everything that these mirrors hold, and every change to come."""
        nodes.subscribe(self.take_node)
        pods.subscribe(self.take_pod)
        for key, node in nodes.items.items():
            self.take_node(key, None, node)
        for key, pod in pods.items.items():
            self.take_pod(key, None, pod)

    def take_node(self, key: str, _: Node | None, new: Node | None) -> None:
        """A node changed."""
        if new is None:
            self.version += self.hosts.pop(key, None) is not None
            return
        host = host_of(new)
        if self.hosts.get(key) != host:
            self.hosts[key] = host
            self.version += 1

    def take_pod(self, key: str, _: BoundPod | None, new: BoundPod | None) -> None:
        """A bound pod came, changed or went."""
        if key in self._held:
            node, wanted = self._held.pop(key)
            taken = self.used[node]
            for name, value in wanted.items():
                taken[name] -= value
        if new is not None and new.spec.node_name:
            wanted = requests_of(new.spec.containers, new.spec.init_containers, new.spec.overhead)
            self._held[key] = (new.spec.node_name, wanted)
            taken = self.used.setdefault(new.spec.node_name, {})
            for name, value in wanted.items():
                taken[name] = taken.get(name, 0) + value

    def seat_of(self, pod_key: str) -> str:
        """The node on which a pod's requests are counted; empty when they are not."""
        return self._held[pod_key][0] if pod_key in self._held else ""


def host_of(node: Node) -> Host:
    """Read a node."""
    labels = node.metadata.labels or {}
    location = Location(labels.get(REGION_LABEL, ""), labels.get(ZONE_LABEL, ""))
    return Host(node.metadata.name, location, labels, blocking_taints(node), amounts(node.status.allocatable))
