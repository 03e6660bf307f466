"""Nodes and the requests of their pods, updated by watch events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from controller.cluster.costs import Location, location_of
from controller.cluster.eligibility import Constraints, blocking_taints, is_being_removed
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import NodeSelector
from controller.cluster.resource_requests import Amounts, add_amounts, parse_amounts
from kubekit.stores import Store, subscribe_from_start
from kubekit.wire import Node, Taint


class Host(msgspec.Struct, frozen=True, gc=False):
    """A node, reduced to the fields that placement reads.

    Attributes:
        taints: NoSchedule and NoExecute taints, with one for a cordoned node.
        allocatable: by resource; cpu in millicores.
        is_schedulable: it is not cordoned.
        is_ready: its condition Ready is True, or it has no conditions, as in hand-written files.
        is_being_removed: an autoscaler is about to remove it.
    """

    name: str
    location: Location
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Amounts
    is_schedulable: bool = True
    is_ready: bool = True
    is_being_removed: bool = False
    prefer_no_schedule_taints: tuple[Taint, ...] = ()

    @property
    def unavailable_reason(self) -> str:
        """Why no new pod should start there, not even a pod that tolerates all taints; empty if pods may start."""
        if self.is_being_removed:
            return "about to be removed"
        return "" if self.is_ready else "not Ready"

    @property
    def accepts_pods(self) -> bool:
        """Whether new pods may start there: Ready, not cordoned, and not about to be removed."""
        return self.is_schedulable and not self.unavailable_reason

    def unschedulable_reason(self, constraints: Constraints, volume_selectors: Iterable[NodeSelector] = ()) -> str:
        """Why a plan may not place a pod there, regardless of other pods; empty if it may.

        kube-scheduler places a pod that tolerates all taints also on a node that is not Ready.
        """
        return (
            constraints.unmet_constraint(self.name, self.labels, self.taints, volume_selectors=volume_selectors)
            or self.unavailable_reason
        )


TemplateKey = tuple[str, int, int, bool]
"""Namespace, ``id()`` of the labels and of the constraints, and whether the pods are terminating."""


def template_key_of(pod: PodInfo) -> TemplateKey:
    """The key of a pod's `PodTemplate`."""
    return pod.namespace, id(pod.labels), id(pod.constraints), pod.is_terminating


class PodTemplate(msgspec.Struct):
    """Bound pods with the same labels and constraints, so that their rules about each other are computed once.

    Attributes:
        example_pod: one of the pods; it keeps alive the labels and constraints whose identities are in the key.
        pods_by_node: node -> number of these pods.
        terms: their rules about other pods (`pod_topology.Term`), cached by the planner; None before its first use.
    """

    example_pod: PodInfo
    pods_by_node: Counter[str]
    terms: tuple[Any, ...] | None = None


class NodeCache:
    """All nodes, with the requests of the pods on each.

    Attributes:
        hosts: node name -> host.
        avoided_nodes: names of nodes that the descheduler finds overutilized; plans avoid them.
        version: number of changes of ``hosts`` and ``avoided_nodes``.
        pods: pods whose requests count, by key.
        templates: templates of ``pods``, by key.
        requested: node name -> sum of its pods' requests, including "pods" and host ports; only nodes with pods.
        freed_count: how often a pod freed resources.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.avoided_nodes: frozenset[str] = frozenset()
        self.version = 0
        self.pods: dict[str, PodInfo] = {}
        self.templates: dict[TemplateKey, PodTemplate] = {}
        self.requested: dict[str, Amounts] = {}
        self.freed_count = 0

    def subscribe_to(self, nodes: Store[Node], pods: Store[PodInfo]) -> None:
        """Add all objects of these stores, and follow their changes."""
        subscribe_from_start(nodes, self.on_node_change)
        subscribe_from_start(pods, self.on_pod_change)

    def on_node_change(self, key: str, _: Node | None, new: Node | None) -> None:
        """Update a node."""
        if new is None:
            if self.hosts.pop(key, None) is not None:
                self.version += 1
            return
        host = host_of(new)
        if self.hosts.get(key) != host:
            self.hosts[key] = host
            self.version += 1

    def set_avoided_nodes(self, names: frozenset[str]) -> None:
        """Set the nodes that plans avoid; a change increments ``version``, which makes pending plans obsolete."""
        if names != self.avoided_nodes:
            self.avoided_nodes = names
            self.version += 1

    def on_pod_change(self, key: str, _: PodInfo | None, new: PodInfo | None) -> None:
        """Update a pod. Its requests count while it occupies a node and is not finished."""
        before = self.pods.pop(key, None)
        after = new if new is not None and new.occupied_node and not new.is_finished else None
        if after is not None:
            self.pods[key] = after
        if before is after:
            return
        for pod, change in ((before, -1), (after, 1)):
            if pod is not None:
                self._count_in_template(pod, change)
        before_use, after_use = (
            (pod.occupied_node, pod.requests_with_ports) if pod is not None else None for pod in (before, after)
        )
        if before_use == after_use:  # Most updates, such as those of conditions, free and use no resources.
            return
        if before is not None:
            self.freed_count += 1
            requested = self.requested[before.occupied_node]
            add_amounts(requested, before.requests_with_ports, -1)
            if not requested["pods"]:
                del self.requested[before.occupied_node]  # Else the names of all former nodes would accumulate.
        if after is not None:
            add_amounts(self.requested.setdefault(after.occupied_node, {}), after.requests_with_ports)

    def remove_pods(self, matches: Callable[[PodInfo], bool]) -> None:
        """Remove the pods for which ``matches`` is true, as if they were deleted."""
        for pod in [pod for pod in self.pods.values() if matches(pod)]:
            self.on_pod_change(pod.key, pod, None)

    def assigned_node(self, pod_key: str) -> str:
        """The node on which a pod's requests are counted; empty if they are not."""
        return self.pods[pod_key].occupied_node if pod_key in self.pods else ""

    def _count_in_template(self, pod: PodInfo, change: int) -> None:
        """Count a pod in its template, or with -1 no more; a template without pods is deleted."""
        key, node = template_key_of(pod), pod.occupied_node
        template = self.templates.setdefault(key, PodTemplate(pod, Counter()))
        template.pods_by_node[node] += change
        if not template.pods_by_node[node]:
            del template.pods_by_node[node]
        if not template.pods_by_node:
            del self.templates[key]


def host_of(node: Node) -> Host:
    """Convert a node to a host."""
    labels = node.metadata.labels or {}
    return Host(
        node.metadata.name,
        location_of(node),
        labels,
        blocking_taints(node),
        parse_amounts(node.status.allocatable),
        is_schedulable=not node.spec.unschedulable,
        is_ready=node.is_ready or not node.status.conditions,
        is_being_removed=is_being_removed(node),
        prefer_no_schedule_taints=tuple(t for t in node.spec.taints or () if t.effect == "PreferNoSchedule"),
    )
