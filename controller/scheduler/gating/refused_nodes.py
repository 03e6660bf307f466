"""Nodes that the scheduler refused, or that stayed full.

Plans do not use such a node again for pods of the same owner until the node has changed or its usage has fallen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from controller.cluster.hosts import Host, NodeCache
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import Amounts
from controller.scheduler.gating.retries import owner_key

_MAX_OWNERS, _MAX_REFUSALS = 10_000, 1_000
"""Owners with refusals, and refusals of each owner, that are remembered."""


class _Refusal(msgspec.Struct, frozen=True):
    """A refusal of a node.

    Attributes:
        key: key of the refused pod.
        host: the node at that time; None if it was unknown.
        usage: its usage at that time, by bound pods and other pods' reservations.
    """

    key: str
    host: Host | None
    usage: Amounts


class RefusedNodes:
    """Refused nodes by owner of pods.

    Args:
        node_cache: the nodes.
        usage_beside: returns the usage of a node without a pod, by the pod's key and the node.
    """

    def __init__(self, node_cache: NodeCache, usage_beside: Callable[[str, str], Amounts]) -> None:
        self._node_cache, self._usage_beside = node_cache, usage_beside
        self._refusals_by_owner: dict[str, dict[str, _Refusal]] = {}
        """Owner -> node -> refusal."""

    def add(self, pod: Pod, node: str) -> None:
        """Record that plans avoid a node for pods of this pod's owner, until the node changes or its usage falls."""
        key = pod.metadata.key
        refusals = self._refusals_by_owner.setdefault(owner_key(pod), {})
        refusals.pop(node, None)
        refusals[node] = _Refusal(key, self._node_cache.hosts.get(node), self._usage_beside(key, node))
        if len(refusals) > _MAX_REFUSALS:
            refusals.pop(next(iter(refusals)))
        if len(self._refusals_by_owner) > _MAX_OWNERS:
            self._refusals_by_owner.pop(next(iter(self._refusals_by_owner)))

    def nodes_by_pod(self, pods: Iterable[Pod]) -> dict[str, frozenset[str]]:
        """Pod key -> nodes that were refused for a pod of its owner, and have neither changed nor freed resources since."""
        if not self._refusals_by_owner:
            return {}
        owner_by_pod = {pod.metadata.key: owner_key(pod) for pod in pods}
        nodes_by_owner = {owner: self._drop_outdated_refusals(owner) for owner in set(owner_by_pod.values())}
        return {key: nodes for key, owner in owner_by_pod.items() if (nodes := nodes_by_owner[owner])}

    def _drop_outdated_refusals(self, owner: str) -> frozenset[str]:
        """Drop an owner's refusals on nodes that have changed or freed resources since; returns the other refused nodes."""
        refusals = self._refusals_by_owner.pop(owner, {})
        current = {node: refusal for node, refusal in refusals.items() if not self._has_changed(node, refusal)}
        if current:
            self._refusals_by_owner[owner] = current
        return frozenset(current)

    def _has_changed(self, node: str, refusal: _Refusal) -> bool:
        usage = self._usage_beside(refusal.key, node)
        has_less_usage = any(usage.get(name, 0) < value for name, value in refusal.usage.items())
        return has_less_usage or self._node_cache.hosts.get(node) != refusal.host
