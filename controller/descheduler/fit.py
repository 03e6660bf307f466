"""Would the scheduler let a pod onto a node? Its requests and required anti-affinity; `shapes` has the rest.

Other pods' anti-affinity against this one, volumes and topology spread are not looked at: where they decide, the replacement
goes elsewhere or waits, and the follow-up sees it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from controller.descheduler.objects import NodeInfo, PodInfo
from controller.descheduler.shapes import AntiTerm
from controller.descheduler.snapshot import Snapshot

PODS = "pods"


def describe_misfits(whys: Mapping[str, int]) -> str:
    """Refusals counted as kube-scheduler does: ``0/3 nodes fit: 2 taint x, 1 cpu request``."""
    if not whys:
        return "there is no other node"
    parts = ", ".join(f"{count} {why}" for why, count in sorted(whys.items(), key=lambda item: (-item[1], item[0])))
    return f"0/{sum(whys.values())} nodes fit: {parts}"


def requested_on(node: str, snapshot: Snapshot) -> dict[str, float]:
    """Sum of requests of pods bound to a node and not finished, with their number as ``pods``."""
    total: dict[str, float] = {PODS: 0}
    for pod in snapshot.pods.on_node(node).values():
        if not pod.going:
            add_requests(total, pod)
    return total


def add_requests(total: dict[str, float], pod: PodInfo) -> None:
    """Count one more pod."""
    total[PODS] = total.get(PODS, 0) + 1
    for resource, amount in pod.requests.items():
        total[resource] = total.get(resource, 0) + amount


def shortage(node: NodeInfo, requested: Mapping[str, float], pod: PodInfo) -> str:
    """Which request of the pod the node cannot grant; empty when it can grant all."""
    if PODS in node.allocatable and requested.get(PODS, 0) + 1 > node.allocatable[PODS]:
        return "too many pods"
    for resource, amount in pod.requests.items():
        if amount > 0 and requested.get(resource, 0) + amount > node.allocatable.get(resource, 0):
            return f"{resource} request"
    return ""


class Separation:
    """Required anti-affinity of pods, by domains that hold pods they must not meet; one per round."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._domains: dict[tuple[str, int], Counter[str]] = {}

    def refusal(self, node: NodeInfo, pod: PodInfo, booked: Iterable[PodInfo] = ()) -> str:
        """Why the pod must not go to the node; empty when it may.

        Args:
            node: the candidate.
            pod: who wants to go there; it does not keep itself away.
            booked: pods planned onto the node in this round.
        """
        for term in pod.shape.anti:
            domain = node.labels.get(term.topology_key)
            if domain is None:
                continue
            count = self._count(pod.namespace, term)[domain]
            if term.selector.matches(pod.labels) and self._domain_of(pod, term) == domain:
                count -= 1
            met = any(p.namespace == pod.namespace and term.selector.matches(p.labels) for p in booked)
            if count > 0 or met:
                return "pod anti-affinity"
        return ""

    def _count(self, namespace: str, term: AntiTerm) -> Counter[str]:
        # Shapes outlive the round, so the term's identity is a safe key within it.
        key = namespace, id(term)
        if key not in self._domains:
            found: Counter[str] = Counter()
            for pod in self._snapshot.pods.in_namespace(namespace).values():
                if not pod.going and term.selector.matches(pod.labels):
                    domain = self._domain_of(pod, term)
                    if domain is not None:
                        found[domain] += 1
            self._domains[key] = found
        return self._domains[key]

    def _domain_of(self, pod: PodInfo, term: AntiTerm) -> str | None:
        node = self._snapshot.nodes.get(pod.node)
        return None if node is None else node.labels.get(term.topology_key)
