"""Checks whether kube-scheduler would place a pod on a node, by constraints, requests and other pods."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import add_amounts, first_insufficient
from controller.descheduler.snapshot import DeschedulerSnapshot
from controller.scheduler.affinity import NARROWED_ANNOTATION, without_added_requirement
from controller.scheduler.placement.pod_topology import UNSCHEDULABLE_REASONS, unschedulable_reasons
from controller.scheduler.placement.problem import RuleKind
from controller.scheduler.placement.unplaced import insufficient_reason

OTHER_POD_REASONS = frozenset(UNSCHEDULABLE_REASONS.values())
"""Refusals that depend on other pods."""


def describe_misfits(reasons: Mapping[str, int]) -> str:
    """Why no node fits, in kube-scheduler's wording: ``0/3 nodes are available: 2 taint x, 1 insufficient cpu``."""
    if not reasons:
        return "there is no other node"
    parts = ", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
    return f"0/{sum(reasons.values())} nodes are available: {parts}"


def without_plan_affinity(pod: PodInfo) -> Pod:
    """The pod without the node affinity that netaware added, which its replacement will not have."""
    return pod.pod_without_requests if pod.group_pod is None else without_added_requirement(pod.group_pod)


class FitChecker:
    """Checks whether pods fit nodes, counting the planned moves of the round."""

    def __init__(self, snapshot: DeschedulerSnapshot) -> None:
        self._snapshot = snapshot
        self._hosts = [snapshot.nodes[name] for name in sorted(snapshot.nodes)]
        self._host_index = {host.name: index for index, host in enumerate(self._hosts)}
        self._constraints: dict[str, Constraints] = {}
        self._static: dict[tuple[Constraints, str], str] = {}
        self._requested: dict[str, dict[str, int]] = {}
        self._planned: dict[str, tuple[PodInfo, str]] = {}
        self._by_other_pods: dict[str, Mapping[int, str]] = {}
        bound = (
            pod for pod in snapshot.pods.by_key.values() if pod.constraints.has_required_anti_affinity and pod.node
        )
        self._pods_with_anti_affinity = [pod for pod in bound if not pod.is_finished]

    def _constraints_of(self, pod: PodInfo) -> Constraints:
        """The pod's constraints without the node affinity that netaware added."""
        if pod.group_pod is None or not pod.group_pod.metadata.annotation(NARROWED_ANNOTATION):
            return pod.constraints
        if pod.key not in self._constraints:
            self._constraints[pod.key] = Constraints(without_added_requirement(pod.group_pod).spec)
        return self._constraints[pod.key]

    def static_unschedulable_reason(self, node: Host, pod: PodInfo) -> str:
        """Why the pod may not run on the node, by its own constraints and volumes; empty if it may."""
        constraints = self._constraints_of(pod)
        key = constraints, node.name
        if key not in self._static:
            self._static[key] = node.unschedulable_reason(constraints)
        if self._static[key] or not pod.claim_names:
            return self._static[key]
        volumes = self._snapshot.volumes.node_selectors_of_claims(pod.namespace, pod.claim_names)
        return node.unschedulable_reason(constraints, volumes)

    def dynamic_unschedulable_reason(self, node: Host, pod: PodInfo) -> str:
        """Why the pod does not fit on the node now, by resources, ports and other pods; empty if it fits."""
        insufficient = first_insufficient(pod.requests_with_ports, node.allocatable, self._requested_on(node.name))
        if insufficient:
            return insufficient_reason(insufficient)
        if self._pods_with_anti_affinity or pod.constraints.depends_on_other_pods:
            return self._unschedulable_reasons_by_other_pods(pod).get(self._host_index[node.name], "")
        return ""

    def _requested_on(self, node: str) -> dict[str, int]:
        """Requests of the node's unfinished pods, with their number as ``pods``; terminating pods count, as in kube-scheduler."""
        if node not in self._requested:
            total: dict[str, int] = {}
            for pod in self._snapshot.pods.where("node", node).values():
                if not pod.is_finished:
                    add_amounts(total, pod.requests_with_ports)
            self._requested[node] = total
        return self._requested[node]

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Count a planned move of the pod to a node; the name is empty for an unknown node."""
        self._planned[pod.key] = pod, node
        if node:
            add_amounts(self._requested_on(node), pod.requests_with_ports)
        self._by_other_pods.clear()

    def release(self, pod: PodInfo) -> None:
        """Undo `reserve`."""
        _, node = self._planned.pop(pod.key, (pod, ""))
        if node:
            add_amounts(self._requested[node], pod.requests_with_ports, -1)
        self._by_other_pods.clear()

    def _unschedulable_reasons_by_other_pods(self, pod: PodInfo) -> Mapping[int, str]:
        """Why other pods exclude nodes, by index of the node. Terminating pods count only for anti-affinity."""
        if pod.key not in self._by_other_pods:
            relevant, by_host = self._relevant_pods(pod), dict[int, str]()
            for counts_terminating, kinds in (
                (False, {RuleKind.SPREAD, RuleKind.AFFINITY}),
                (True, {RuleKind.ANTI_AFFINITY}),
            ):
                bound = [
                    (self._host_index[node], without_plan_affinity(other))
                    for other, node in relevant
                    if counts_terminating or not other.is_terminating
                ]
                by_host = unschedulable_reasons(without_plan_affinity(pod), self._hosts, bound, kinds) | by_host
            self._by_other_pods[pod.key] = by_host
        return self._by_other_pods[pod.key]

    def _relevant_pods(self, pod: PodInfo) -> list[tuple[PodInfo, str]]:
        """Pods that may matter to the pod's rules or whose own rules may exclude it, with their nodes after planned moves."""
        pods, relevant = self._snapshot.pods, {p.key: p for p in self._pods_with_anti_affinity}
        if pod.constraints.depends_on_other_pods:
            affinity = msgspec.json.encode(pod.constraints.spec.affinity)
            relevant |= pods.by_key if b"namespace" in affinity else pods.where("namespace", pod.namespace)
        relevant |= {key: p for key, (p, node) in self._planned.items() if node}
        relevant.pop(pod.key, None)
        placed = ((p, self._planned[key][1] if key in self._planned else p.node) for key, p in relevant.items())
        return [(p, node) for p, node in placed if node in self._host_index and not p.is_finished]
