"""How much room the nodes have: allocatable less what the pods on them asked for, kept up to date by watch events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

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


class Room:
    """What is free, as one table: plans look at thousands of hosts, which one by one would take most of their time.

    Attributes:
        names: of all hosts, sorted; a host's number is its place among them.
        number_of: name -> number.
        locations: every location that has hosts, sorted.
        location_of: [host] index in ``locations``.
        tainted: numbers of the hosts with taints that keep pods away.
    """

    def __init__(self, hosts: Mapping[str, Host], used: Mapping[str, Amounts]) -> None:
        self.names = sorted(hosts)
        self.number_of = {name: number for number, name in enumerate(self.names)}
        known = [hosts[name] for name in self.names]
        self.locations = sorted({host.location for host in known})
        index = {location: i for i, location in enumerate(self.locations)}
        self.location_of = np.array([index[host.location] for host in known], np.int64)
        self.tainted = [number for number, host in enumerate(known) if host.taints]
        resources = sorted({resource for host in known for resource in host.allocatable})
        self._column_of = {resource: column for column, resource in enumerate(resources)}
        table = [[host.allocatable.get(resource, 0) for resource in resources] for host in known]
        self._free = np.array(table, np.int64).reshape(len(known), len(resources))
        for name, amounts_used in used.items():
            self.take(name, amounts_used)

    def take(self, host: str, wanted: Mapping[str, int], sign: int = 1) -> None:
        """Requests came to a host (1) or left it (-1). What no host has is not counted: nothing that asks for it fits."""
        number = self.number_of.get(host)
        if number is None:
            return
        for resource, value in wanted.items():
            column = self._column_of.get(resource)
            if column is not None:
                self._free[number, column] -= sign * value

    def free(self, resources: Sequence[str]) -> NDArray[np.int64]:
        """[host, resource] a copy of what is free; 0 of a resource that no host has."""
        found = np.zeros((len(self.names), len(resources)), np.int64)
        for i, resource in enumerate(resources):
            column = self._column_of.get(resource)
            if column is not None:
                found[:, i] = self._free[:, column]
        return found


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
        self._room: Room | None = None

    @property
    def room(self) -> Room:
        """What is free; made when first asked for after hosts changed, and kept up to date from then on."""
        if self._room is None:
            self._room = Room(self.hosts, self.used)
        return self._room

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
            if self.hosts.pop(key, None) is not None:
                self._change_hosts()
            return
        host = host_of(new)
        if self.hosts.get(key) != host:
            self.hosts[key] = host
            self._change_hosts()

    def _change_hosts(self) -> None:
        self.version += 1
        self._room = None

    def take_pod(self, key: str, _: BoundPod | None, new: BoundPod | None) -> None:
        """A bound pod came, changed or went."""
        if key in self._held:
            node, wanted = self._held.pop(key)
            taken = self.used[node]
            for name, value in wanted.items():
                taken[name] -= value
            if self._room is not None:
                self._room.take(node, wanted, -1)
        if new is not None and new.spec.node_name:
            wanted = requests_of(new.spec.containers, new.spec.init_containers, new.spec.overhead)
            self._held[key] = (new.spec.node_name, wanted)
            taken = self.used.setdefault(new.spec.node_name, {})
            for name, value in wanted.items():
                taken[name] = taken.get(name, 0) + value
            if self._room is not None:
                self._room.take(new.spec.node_name, wanted)

    def seat_of(self, pod_key: str) -> str:
        """The node on which a pod's requests are counted; empty when they are not."""
        return self._held[pod_key][0] if pod_key in self._held else ""


def host_of(node: Node) -> Host:
    """Read a node."""
    labels = node.metadata.labels or {}
    location = Location(labels.get(REGION_LABEL, ""), labels.get(ZONE_LABEL, ""))
    return Host(node.metadata.name, location, labels, blocking_taints(node), amounts(node.status.allocatable))
