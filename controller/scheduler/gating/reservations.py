"""Resources of nodes that the plans of all groups have reserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.cluster.hosts import NodeCache
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import Amounts, add_amounts, first_insufficient, requests_with_ports_of
from controller.scheduler.gating.refused_nodes import RefusedNodes


class _Reservation(msgspec.Struct, frozen=True):
    """Resources of a node that are reserved for a pod of a group; a gated pod does not use them yet."""

    group: str
    node: str
    amounts: Amounts
    is_gated: bool


class ReservationCache:
    """Reservations of pods, by group and node.

    Attributes:
        node_cache: the nodes, and their usage by bound pods.
        refused_nodes: nodes that plans avoid for some pods.
        yielding_groups: groups that have not started and whose plan does not place all of their pods.
    """

    def __init__(self, node_cache: NodeCache) -> None:
        self.node_cache = node_cache
        self.refused_nodes = RefusedNodes(node_cache, self._usage_beside)
        self._reservations: dict[str, _Reservation] = {}
        """Pod key -> reservation."""
        self._keys_by_group: dict[str, dict[str, None]] = {}
        self._keys_by_node: dict[str, dict[str, None]] = {}
        self._outdated_by_group: dict[str, Mapping[str, Amounts]] = {}
        """Group -> node -> requests of pods that a rollout is about to replace there."""
        self._released_keys: set[str] = set()
        self._started_groups: set[str] = set()  # with a bound pod
        self.yielding_groups: set[str] = set()
        self._ended_count = 0
        self._requests_by_key: dict[str, tuple[str, Amounts]] = {}
        """Pod key -> resourceVersion, and its requests."""

    def requests_with_ports_of(self, pod: Pod) -> Amounts:
        """A pod's requests and host ports, computed once per version."""
        key, version = pod.metadata.key, pod.metadata.resource_version
        cached = self._requests_by_key.get(key)
        if cached is None or cached[0] != version or not version:
            cached = self._requests_by_key[key] = version, requests_with_ports_of(pod.spec, pod.status)
        return cached[1]

    def reserve(self, group: str, pods: Sequence[tuple[Pod, str]], outdated: Mapping[str, Amounts] = {}) -> None:
        """Replace a group's reservations by those of ``pods``, which the usage of their nodes does not include yet, each with its node.

        ``outdated`` is node -> requests of the group's pods that a rollout is about to replace there; reservations use these first.
        """
        for key in self._keys_by_group.get(group, {}).keys() - {pod.metadata.key for pod, _ in pods}:
            self._end_reservation(key)
        for pod, node in pods:
            key = pod.metadata.key
            before = self._reservations.get(key)
            if before is not None and before.group != group:
                self.forget_pod(key)
            elif before is not None and before.node != node:
                self._end_reservation(key)
            is_gated = pod.is_gated and key not in self._released_keys
            self._reservations[key] = _Reservation(group, node, self.requests_with_ports_of(pod), is_gated)
            self._keys_by_group.setdefault(group, {})[key] = None
            self._keys_by_node.setdefault(node, {})[key] = None
        if pods:
            self._outdated_by_group[group] = outdated
        else:
            self._outdated_by_group.pop(group, None)

    def _end_reservation(self, key: str) -> None:
        reservation = self._reservations.pop(key, None)
        if reservation is None:
            return
        self._ended_count += 1
        for keys, name in ((self._keys_by_group, reservation.group), (self._keys_by_node, reservation.node)):
            del keys[name][key]
            if not keys[name]:
                del keys[name]

    def mark_released(self, key: str, *, is_released: bool = True) -> None:
        """Count a pod's reservation as used while its gate is being opened; with False as unused again, because its gate stayed closed."""
        if is_released:
            self._released_keys.add(key)
        else:
            self._released_keys.discard(key)
        if (reservation := self._reservations.get(key)) is not None:
            self._reservations[key] = msgspec.structs.replace(reservation, is_gated=not is_released)

    def forget_pod(self, key: str) -> None:
        """Forget a pod that was deleted or belongs to another group now."""
        self._requests_by_key.pop(key, None)
        self._released_keys.discard(key)
        self._end_reservation(key)

    def record_progress(self, group: str, *, has_started: bool, is_complete: bool) -> None:
        """Record whether any pod of a group is bound, and whether its plan has a node for each of its pods.

        Started groups may use the reservations of gated pods of groups that have not started and have no complete plan.
        """
        self._started_groups.discard(group)
        self.yielding_groups.discard(group)
        if has_started:
            self._started_groups.add(group)
        elif not is_complete:
            self.yielding_groups.add(group)

    def groups(self) -> Iterable[str]:
        """Keys of the groups that have reservations."""
        return self._keys_by_group.keys()

    def record_ended(self, count: int) -> None:
        """Count reservations that have ended elsewhere: those of `ExpectedReplacements`."""
        self._ended_count += count

    @property
    def freed_count(self) -> int:
        """How often resources became free: a bound pod is gone, or a reservation has ended."""
        return self.node_cache.freed_count + self._ended_count

    def reserved_by_others(self, group: str) -> dict[str, Amounts]:
        """Node -> sum of the other groups' reservations that its usage does not include yet."""
        return {node: amounts for node in self._keys_by_node if (amounts := self.reserved_by_others_on(group, node))}

    def reserved_by_others_on(self, group: str, node: str, *, released_only: bool = False) -> Amounts:
        """Sum of the other groups' reservations on a node, without those that yield to this group.

        With ``released_only``, only pods with open gates count. Otherwise all pods count, less what a rollout of their group will free.
        """
        amounts_by_group: dict[str, Amounts] = {}
        yielding_groups = self.yielding_groups if group in self._started_groups else ()
        for key in self._keys_by_node.get(node, {}):
            reservation = self._reservations[key]
            does_yield = reservation.is_gated and reservation.group in yielding_groups
            if reservation.group == group or self.node_cache.assigned_node(key) or does_yield:
                continue
            if not (released_only and reservation.is_gated):
                add_amounts(amounts_by_group.setdefault(reservation.group, {}), reservation.amounts)
        total: Amounts = {}
        for other, amounts in amounts_by_group.items():
            outdated = {} if released_only else self._outdated_by_group.get(other, {}).get(node, {})
            add_amounts(total, {name: max(value - outdated.get(name, 0), 0) for name, value in amounts.items()})
        return total

    def fits(self, group: str, node: str, requests: Amounts, *, released_only: bool = False) -> bool:
        """Whether requests of the group fit on a node beside its pods and `reserved_by_others_on`; False for an unknown node."""
        host = self.node_cache.hosts.get(node)
        if host is None:
            return False
        reserved = self.reserved_by_others_on(group, node, released_only=released_only)
        return not first_insufficient(requests, host.allocatable, self.node_cache.requested.get(node, {}), reserved)

    def _usage_beside(self, key: str, node: str) -> Amounts:
        """Usage of a node by bound pods, and by reservations for other pods than this one."""
        usage = dict(self.node_cache.requested.get(node, {}))
        for other in self._keys_by_node.get(node, {}):
            if other != key and not self.node_cache.assigned_node(other):
                add_amounts(usage, self._reservations[other].amounts)
        return usage
