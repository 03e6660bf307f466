"""Whether the scheduler would let a pod onto a node: its constraints, requests, and other pods.

Planned moves reserve requests on their targets.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import GroupPod
from controller.cluster.requests import add, first_insufficient
from controller.descheduler.snapshot import LoadSnapshot
from controller.scheduler.affinity import NARROWED_ANNOTATION, without_added_requirement
from controller.scheduler.placement.pod_topology import REFUSALS, refusals
from controller.scheduler.placement.problem import RuleKind
from controller.scheduler.placement.unplaced import describe_lack

OTHER_PODS = frozenset(REFUSALS.values())
"""Refusals that depend on other pods."""


def describe_misfits(reasons: Mapping[str, int]) -> str:
    """Refusals counted, in the manner of kube-scheduler: ``0/3 nodes are available: 2 taint x, 1 insufficient cpu``."""
    if not reasons:
        return "there is no other node"
    parts = ", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
    return f"0/{sum(reasons.values())} nodes are available: {parts}"


def asked_of(pod: PodInfo) -> GroupPod:
    """The pod's request without constraints that our gates added, which would keep it in place."""
    return pod.asked if pod.wire is None else without_added_requirement(pod.wire)


class FitChecker:
    """Whether pods fit nodes, with the planned moves of the round counted.

    Args:
        snapshot: the cluster.
    """

    def __init__(self, snapshot: LoadSnapshot) -> None:
        self._snapshot = snapshot
        self._hosts = [snapshot.nodes[name] for name in sorted(snapshot.nodes)]
        self._number_of = {host.name: number for number, host in enumerate(self._hosts)}
        self._constraints: dict[str, Constraints] = {}
        self._static: dict[tuple[Constraints, str], str] = {}
        self._requested: dict[str, dict[str, int]] = {}
        self._planned: dict[str, tuple[PodInfo, str]] = {}
        self._by_other_pods: dict[str, Mapping[int, str]] = {}
        bound = (pod for pod in snapshot.pods.by_key.values() if pod.constraints.repels and pod.node)
        self._repelling = [pod for pod in bound if not pod.is_finished]

    def _constraints_of(self, pod: PodInfo) -> Constraints:
        """The pod's constraints without those that our gates added."""
        if pod.wire is None or not pod.wire.metadata.annotation(NARROWED_ANNOTATION):
            return pod.constraints
        if pod.key not in self._constraints:
            self._constraints[pod.key] = Constraints(without_added_requirement(pod.wire).spec)
        return self._constraints[pod.key]

    def static_refusal(self, node: Host, pod: PodInfo) -> str:
        """Why the pod may not run on the node, regardless of other pods; empty if it may."""
        constraints = self._constraints_of(pod)
        key = constraints, node.name
        if key not in self._static:
            self._static[key] = constraints.refusal(node.name, node.labels, node.taints, closing=node.closing)
        if self._static[key] or not pod.claims:
            return self._static[key]
        volumes = self._snapshot.volumes.demands(pod.namespace, pod.claims)
        return constraints.refusal(node.name, node.labels, node.taints, volumes=volumes)

    def dynamic_refusal(self, node: Host, pod: PodInfo) -> str:
        """The resource, port or other pods that prevent it, with planned moves counted; empty if nothing does."""
        lacks = first_insufficient(pod.asks, node.allocatable, self._requested_on(node.name))
        if lacks:
            return describe_lack(lacks)
        if self._repelling or pod.constraints.depends_on_other_pods:
            return self._refusal_by_other_pods(pod).get(self._number_of[node.name], "")
        return ""

    def _requested_on(self, node: str) -> dict[str, int]:
        """Requests of the node's unfinished pods, with their number as ``pods``.

        A pod that is being deleted holds its room until it is gone, as kube-scheduler counts it.
        """
        if node not in self._requested:
            total: dict[str, int] = {}
            for pod in self._snapshot.pods.where("node", node).values():
                if not pod.is_finished:
                    add(total, pod.asks)
            self._requested[node] = total
        return self._requested[node]

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Record a planned move, to a node or (empty) an unknown one."""
        self._planned[pod.key] = pod, node
        if node:
            add(self._requested_on(node), pod.asks)
        self._by_other_pods.clear()

    def withdraw(self, pod: PodInfo) -> None:
        """Undo `reserve`."""
        _, node = self._planned.pop(pod.key, (pod, ""))
        if node:
            add(self._requested[node], pod.asks, -1)
        self._by_other_pods.clear()

    def _refusal_by_other_pods(self, pod: PodInfo) -> Mapping[int, str]:
        """See `refusals`. Spread does not count pods on their way out, anti-affinity keeps away from them as well."""
        if pod.key not in self._by_other_pods:
            around, found = self._relevant_pods(pod), dict[int, str]()
            for leaving, kinds in ((False, {RuleKind.SPREAD, RuleKind.AFFINITY}), (True, {RuleKind.ANTI_AFFINITY})):
                bound = [(self._number_of[n], asked_of(p)) for p, n in around if leaving or not p.leaving]
                found = refusals(asked_of(pod), self._hosts, bound, kinds) | found
            self._by_other_pods[pod.key] = found
        return self._by_other_pods[pod.key]

    def _relevant_pods(self, pod: PodInfo) -> list[tuple[PodInfo, str]]:
        """Pods that count, with their nodes: those of its namespace, or all where it asks about others, and all that repel."""
        pods, found = self._snapshot.pods, {p.key: p for p in self._repelling}
        if pod.constraints.depends_on_other_pods:
            asks = msgspec.json.encode(pod.constraints.spec.affinity)
            found |= pods.by_key if b"namespace" in asks else pods.where("namespace", pod.namespace)
        found |= {key: p for key, (p, node) in self._planned.items() if node}
        found.pop(pod.key, None)
        placed = ((p, self._planned[key][1] if key in self._planned else p.node) for key, p in found.items())
        return [(p, node) for p, node in placed if node in self._number_of and not p.is_finished]
