"""Resources that plans have reserved on nodes, and nodes that the scheduler refused, for all groups.

A refused node is not planned again until it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from controller.cluster.hosts import Host, NodeCache
from controller.cluster.pods import GroupPod
from controller.cluster.requests import Amounts, add_amounts, first_insufficient, host_requests_of
from controller.scheduler.gating.retries import owner_key

_MAX_OWNERS, _MAX_REFUSALS = 10_000, 1_000


class _Reservation(msgspec.Struct, frozen=True):
    """Resources of a node that are reserved for a pod; a gated pod does not use them yet."""

    group: str
    amounts: Amounts
    gated: bool


class _Refusal(msgspec.Struct, frozen=True):
    """A node at the time when the scheduler refused it for the pod ``key``; ``usage`` is by bound pods and other reservations."""

    key: str
    host: Host | None
    usage: Amounts


class ReservationCache:
    """Reservations by group and node, and refused nodes by owner of pods.

    Args:
        node_cache: the nodes, and what bound pods use of them.
    """

    def __init__(self, node_cache: NodeCache) -> None:
        self.node_cache = node_cache
        self._held: dict[str, dict[str, str]] = {}
        self._group_of: dict[str, str] = {}
        self._by_node: dict[str, dict[str, _Reservation]] = {}
        self._leaving: dict[str, Mapping[str, Amounts]] = {}
        self._released: set[str] = set()
        self._started: set[str] = set()
        self._idle: set[str] = set()
        self._refused: dict[str, dict[str, _Refusal]] = {}
        self.ended = 0
        self._asks: dict[str, tuple[str, Amounts]] = {}

    def host_requests_of(self, pod: GroupPod) -> Amounts:
        """A pod's requests, computed once per version."""
        key, version = pod.metadata.key, pod.metadata.resource_version
        known = self._asks.get(key)
        if known is None or known[0] != version or not version:
            known = (version, host_requests_of(pod.spec, pod.status))
            self._asks[key] = known
        return known[1]

    def precompute_requests(self, pods: Iterable[GroupPod]) -> None:
        """Compute requests in advance, in small steps."""
        for pod in pods:
            self.host_requests_of(pod)

    def reserve(self, group: str, pods: Iterable[tuple[GroupPod, str]], leaving: Mapping[str, Amounts] = {}) -> None:
        """Replace a group's reservations.

        Args:
            group: its key.
            pods: those that the usage of their nodes does not include yet, each with its node.
            leaving: node -> requests of the group's pods that a rollout is about to replace there; reservations use that room first.
        """
        self._leaving[group] = leaving
        before = self._held.pop(group, {})
        held: dict[str, str] = {}
        for pod, node in pods:
            key = pod.metadata.key
            held[key] = node
            if self._group_of.get(key, group) != group:
                self.forget(key)
            self._group_of[key] = group
            if before.get(key) == node:
                del before[key]
            self._by_node.setdefault(node, {})[key] = _Reservation(
                group, self.host_requests_of(pod), gated=pod.is_gated and key not in self._released
            )
        for key, node in before.items():
            self._remove(key, node)
            if key not in held:
                self._group_of.pop(key, None)
        if held:
            self._held[group] = held
        else:
            del self._leaving[group]

    def release(self, key: str) -> None:
        """Count a pod's reservation as used, because its gate is opened, before the watch shows it."""
        self._released.add(key)
        node = self._held.get(self._group_of.get(key, ""), {}).get(key)
        if node is not None:
            self._by_node[node][key] = msgspec.structs.replace(self._by_node[node][key], gated=False)

    def record_progress(self, group: str, *, has_started: bool, is_complete: bool) -> None:
        """Record a group's progress. Started groups may use the reservations of groups that have not started and have no complete plan.

        Args:
            group: its key.
            has_started: whether any of its pods is bound.
            is_complete: whether its plan has a node for each of them.
        """
        for groups, belongs in ((self._started, has_started), (self._idle, not has_started and not is_complete)):
            if belongs:
                groups.add(group)
            else:
                groups.discard(group)

    @property
    def idle(self) -> frozenset[str]:
        """Groups that have not started and whose plan does not place all of their pods."""
        return frozenset(self._idle)

    @property
    def freed(self) -> int:
        """Counts events that free resources: a bound pod is gone, or a reservation has ended."""
        return self.node_cache.freed + self.ended

    def _remove(self, key: str, node: str) -> None:
        self.ended += 1
        there = self._by_node.get(node, {})
        there.pop(key, None)
        if not there:
            self._by_node.pop(node, None)

    def reserved_by_others(self, group: str) -> dict[str, Amounts]:
        """Node -> reservations of all other groups, beyond its usage."""
        return {node: amounts for node in self._by_node if (amounts := self.others_on(group, node))}

    def others_on(self, group: str, node: str, *, released_only: bool = False) -> Amounts:
        """Reservations of other groups on a node, of all of their pods or only of those whose gate is open."""
        by_group: dict[str, Amounts] = {}
        for key, reservation in self._by_node.get(node, {}).items():
            if reservation.group == group or self.node_cache.assigned_node(key) or self._gives_way(reservation, group):
                continue
            if not (released_only and reservation.gated):
                add_amounts(by_group.setdefault(reservation.group, {}), reservation.amounts)
        total: Amounts = {}
        for other, amounts in by_group.items():
            freed = {} if released_only else self._leaving.get(other, {}).get(node, {})
            add_amounts(total, {name: max(value - freed.get(name, 0), 0) for name, value in amounts.items()})
        return total

    def has_room(self, group: str, node: str, wanted: Amounts, *, released_only: bool = False) -> bool:
        """Whether a node has room beside its pods and the reservations of `others_on` it."""
        host = self.node_cache.hosts.get(node)
        if host is None:
            return False
        return not first_insufficient(
            wanted,
            host.allocatable,
            self.node_cache.used.get(node, {}),
            self.others_on(group, node, released_only=released_only),
        )

    def _gives_way(self, reservation: _Reservation, group: str) -> bool:
        return reservation.gated and group in self._started and reservation.group in self._idle

    def refuse(self, pod: GroupPod, node: str) -> None:
        """Record that the scheduler refused a node; pods of the same owner are not planned there until it changes or room comes."""
        hosts = self._refused.setdefault(owner_key(pod), {})
        hosts.pop(node, None)
        key = pod.metadata.key
        hosts[node] = _Refusal(key, self.node_cache.hosts.get(node), self._usage_beside(key, node))
        if len(hosts) > _MAX_REFUSALS:
            hosts.pop(next(iter(hosts)))
        if len(self._refused) > _MAX_OWNERS:
            self._refused.pop(next(iter(self._refused)))

    def refused(self, pods: Iterable[GroupPod]) -> dict[str, frozenset[str]]:
        """Pod key -> nodes that were refused to a pod of its owner and have not changed since."""
        if not self._refused:
            return {}
        by_owner: dict[str, frozenset[str]] = {}
        refused: dict[str, frozenset[str]] = {}
        for pod in pods:
            owner = owner_key(pod)
            if owner not in by_owner:
                by_owner[owner] = self._still_refused(owner)
            if by_owner[owner]:
                refused[pod.metadata.key] = by_owner[owner]
        return refused

    def _usage_beside(self, key: str, node: str) -> Amounts:
        """Usage of a node by bound pods, and by reservations for other pods than this one."""
        usage = dict(self.node_cache.used.get(node, {}))
        for other, reservation in self._by_node.get(node, {}).items():
            if other != key and not self.node_cache.assigned_node(other):
                add_amounts(usage, reservation.amounts)
        return usage

    def _still_refused(self, owner: str) -> frozenset[str]:
        hosts = self._refused.get(owner)
        if hosts is None:
            return frozenset()
        for node in [node for node, refusal in hosts.items() if self._has_changed(node, refusal)]:
            del hosts[node]
        if not hosts:
            del self._refused[owner]
        return frozenset(hosts)

    def _has_changed(self, node: str, refusal: _Refusal) -> bool:
        usage = self._usage_beside(refusal.key, node)
        return self.node_cache.hosts.get(node) != refusal.host or any(
            usage.get(name, 0) < value for name, value in refusal.usage.items()
        )

    def groups(self) -> Iterable[str]:
        """Keys of the groups that have reservations."""
        return self._held.keys()

    def forget(self, key: str) -> None:
        """A pod is gone, or belongs to another group now."""
        self._asks.pop(key, None)
        self._released.discard(key)
        group = self._group_of.pop(key, "")
        held = self._held.get(group, {})
        node = held.pop(key, None)
        if node is not None:
            self._remove(key, node)
            if not held:
                del self._held[group]
                self._leaving.pop(group, None)
