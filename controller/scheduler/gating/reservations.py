"""Resources that plans have reserved on nodes, for all groups.

What the scheduler refused is not asked for again until something about that host has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from controller.cluster.hosts import Host, NodeCache
from controller.cluster.pods import GroupPod
from controller.cluster.requests import Amounts, add, first_insufficient, host_requests_of
from controller.scheduler.gating.retries import class_of

_REMEMBERED_CLASSES, _REFUSALS_PER_CLASS = 10_000, 1_000


class _Reservation(msgspec.Struct, frozen=True):
    """Reserved resources of a host for a pod; of a gated one not in use yet."""

    group: str
    amounts: Amounts
    gated: bool


class _Refusal(msgspec.Struct, frozen=True):
    """A host when the scheduler refused it for a pod: usage of bound pods, and reservations of others."""

    key: str
    host: Host | None
    taken: Amounts


class ReservationCache:
    """Reservations by group and host, and refused hosts by class of pods.

    Args:
        node_cache: the hosts, and what bound pods use of them.
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
        """Replace a group's reservations: hosts of its pods that are not counted there yet.

        Args:
            group: its key.
            pods: each with its host.
            leaving: node -> requests of the group's pods that a rollout is about to replace there: room that its own pods take first.
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
                group, self.host_requests_of(pod), gated=pod.gated and key not in self._released
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
        """Count a released pod on its host from now on, before the watch shows it."""
        self._released.add(key)
        node = self._held.get(self._group_of.get(key, ""), {}).get(key)
        if node is not None:
            self._by_node[node][key] = msgspec.structs.replace(self._by_node[node][key], gated=False)

    def record_progress(self, group: str, *, begun: bool, whole: bool) -> None:
        """Record a group's progress. Groups that have not started and cannot start whole give up their reservations to groups that have.

        Args:
            group: its key.
            begun: whether any of its pods is bound.
            whole: whether its plan has a place for each of them.
        """
        for groups, belongs in ((self._started, begun), (self._idle, not begun and not whole)):
            if belongs:
                groups.add(group)
            else:
                groups.discard(group)

    @property
    def idle(self) -> frozenset[str]:
        """Groups that have no pod running and cannot start whole."""
        return frozenset(self._idle)

    @property
    def freed(self) -> int:
        """Counts how often room came back: a bound pod went, or a reservation ended."""
        return self.node_cache.freed + self.ended

    def _remove(self, key: str, node: str) -> None:
        self.ended += 1
        there = self._by_node.get(node, {})
        there.pop(key, None)
        if not there:
            self._by_node.pop(node, None)

    def reserved_by_others(self, group: str) -> dict[str, Amounts]:
        """Host -> reservations of all other groups, beyond what the hosts count already."""
        return {node: taken for node in self._by_node if (taken := self.others_on(group, node))}

    def others_on(self, group: str, node: str, *, now: bool = False) -> Amounts:
        """Reservations of others on a host; with ``now`` only of released pods."""
        by_group: dict[str, Amounts] = {}
        for key, reservation in self._by_node.get(node, {}).items():
            if reservation.group == group or self.node_cache.assigned_node(key) or self._gives_way(reservation, group):
                continue
            if not (now and reservation.gated):
                add(by_group.setdefault(reservation.group, {}), reservation.amounts)
        found: Amounts = {}
        for other, amounts in by_group.items():
            freed = {} if now else self._leaving.get(other, {}).get(node, {})
            add(found, {name: max(value - freed.get(name, 0), 0) for name, value in amounts.items()})
        return found

    def has_room(self, group: str, node: str, wanted: Amounts, *, now: bool = False) -> bool:
        """Whether a host has room beside its pods and `others_on` it."""
        host = self.node_cache.hosts.get(node)
        if host is None:
            return False
        return not first_insufficient(
            wanted, host.allocatable, self.node_cache.used.get(node, {}), self.others_on(group, node, now=now)
        )

    def _gives_way(self, reservation: _Reservation, group: str) -> bool:
        return reservation.gated and group in self._started and reservation.group in self._idle

    def refuse(self, pod: GroupPod, node: str) -> None:
        """Record that the scheduler refused a host; pods of its class are not sent there until the host changes or a reservation
        ends.
        """
        hosts = self._refused.setdefault(class_of(pod), {})
        hosts.pop(node, None)
        key = pod.metadata.key
        hosts[node] = _Refusal(key, self.node_cache.hosts.get(node), self._taken_on(node, key))
        if len(hosts) > _REFUSALS_PER_CLASS:
            hosts.pop(next(iter(hosts)))
        if len(self._refused) > _REMEMBERED_CLASSES:
            self._refused.pop(next(iter(self._refused)))

    def refused(self, pods: Iterable[GroupPod]) -> dict[str, frozenset[str]]:
        """Pod key -> hosts that were refused to its like and have not changed since."""
        if not self._refused:
            return {}
        known: dict[str, frozenset[str]] = {}
        found: dict[str, frozenset[str]] = {}
        for pod in pods:
            its_class = class_of(pod)
            if its_class not in known:
                known[its_class] = self._still_refused(its_class)
            if known[its_class]:
                found[pod.metadata.key] = known[its_class]
        return found

    def _taken_on(self, node: str, key: str) -> Amounts:
        """Usage of a host's pods, and reservations of others there."""
        found = dict(self.node_cache.used.get(node, {}))
        for other, reservation in self._by_node.get(node, {}).items():
            if other != key and not self.node_cache.assigned_node(other):
                add(found, reservation.amounts)
        return found

    def _still_refused(self, its_class: str) -> frozenset[str]:
        hosts = self._refused.get(its_class)
        if hosts is None:
            return frozenset()
        for node in [node for node, then in hosts.items() if self._changed(node, then)]:
            del hosts[node]
        if not hosts:
            del self._refused[its_class]
        return frozenset(hosts)

    def _changed(self, node: str, then: _Refusal) -> bool:
        taken = self._taken_on(node, then.key)
        return self.node_cache.hosts.get(node) != then.host or any(
            taken.get(n, 0) < value for n, value in then.taken.items()
        )

    def holders(self) -> Iterable[str]:
        """Groups that have reservations."""
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
