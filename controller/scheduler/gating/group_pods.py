"""Indexes the pods of AppGroups by group, from watch events and our own writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from controller.cluster.pods import Pod
from controller.scheduler.state import State
from kubekit.stores import Store

MAX_LAG_S = 10.0
"""Our writes replace the store's pods for this time at most: a store that is further behind has lost its watch, and will list again."""


class _Write(NamedTuple):
    """The time of a write, the resourceVersions that it replaces, and the written pod."""

    written_at: float
    replaced_versions: frozenset[str]
    pod: Pod

    def replaces(self, stored: Pod | None) -> bool:
        """Whether the write is newer than the store's pod."""
        return stored is not None and stored.metadata.resource_version in self.replaced_versions


class GroupPods:
    """The pods of AppGroups by group, including our own writes that the watch has not shown yet.

    Without these writes, a decision on the store's older version would be repeated.

    Attributes:
        first_seen_at: pod key -> time at which the pod was first seen, in seconds of ``clock``.
        other_gates_opened_at: pod key -> time at which its last foreign gate opened; the pod's wait counts from then.
        waiting_keys: keys of active pods without a node.
    """

    def __init__(self, store: Store[Pod], state: State, clock: Callable[[], float]) -> None:
        self._store, self._state, self._clock = store, state, clock
        self._writes: dict[str, _Write] = {}
        self._pod_keys: defaultdict[str, defaultdict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
        """AppGroup label -> namespace -> pod keys."""
        self.first_seen_at: dict[str, float] = {}
        self.other_gates_opened_at: dict[str, float] = {}
        self.waiting_keys: set[str] = set()

    def on_change(self, key: str, old: Pod | None, new: Pod | None) -> str:
        """Update the index; returns the key of the pod's group, whether or not that AppGroup exists."""
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            self.on_change(key, old, None)  # A list may show another pod of this name without the deletion in between.
            old = None
        if (pod := new or old) is None:
            return ""
        if key in self._writes and not self._writes[key].replaces(new):
            del self._writes[key]
        if old is not None and (new is None or old.group != new.group):
            self._remove(key, old)
        self.waiting_keys.discard(key)
        if new is None:
            self.first_seen_at.pop(key, None)
            self.other_gates_opened_at.pop(key, None)
        else:
            self._pod_keys[new.group][new.metadata.namespace][key] = None
            self.first_seen_at.setdefault(key, self._clock())
            if new.is_waiting:
                self.waiting_keys.add(key)
            if old is not None and old.other_gates and not new.other_gates:
                self.other_gates_opened_at[key] = self._clock()
        return self._state.expected_group_key(pod.metadata.namespace, pod.group)

    def _remove(self, key: str, pod: Pod) -> None:
        by_namespace = self._pod_keys[pod.group]
        by_namespace[pod.metadata.namespace].pop(key, None)
        if not by_namespace[pod.metadata.namespace]:
            del by_namespace[pod.metadata.namespace]
        if not by_namespace:
            del self._pod_keys[pod.group]

    def pods_of(self, group: str) -> list[Pod]:
        """The pods of a group, with our own writes."""
        name = group.partition("/")[2]
        newest = (
            self.newest(key)
            for namespace, keys in self._pod_keys.get(name, {}).items()
            if self._state.expected_group_key(namespace, name) == group
            for key in keys
        )
        return [pod for pod in newest if pod is not None]

    def waiting_groups(self) -> Iterator[str]:
        """Keys of the groups that have waiting pods; a key may be repeated."""
        labels = {(p.metadata.namespace, p.group) for p in map(self._store.get, self.waiting_keys) if p is not None}
        return (self._state.expected_group_key(namespace, label) for namespace, label in labels)

    def gated_count(self) -> int:
        """Number of active pods with our gate."""
        pods = map(self._store.get, tuple(self.waiting_keys))  # A copy, because metrics are collected in a thread.
        return sum(pod.is_gated and pod.is_active for pod in pods if pod is not None)

    def record_write(self, key: str, before: Pod, after: Pod) -> None:
        """Record a patch of a pod, unless the store has it already."""
        earlier = self._writes.pop(key, None)
        replaced = {before.metadata.resource_version, *(earlier.replaced_versions if earlier is not None else ())}
        stored = self._store.get(key)
        if stored is not None and stored.metadata.resource_version in replaced:
            self._writes[key] = _Write(self._clock(), frozenset(replaced), after)

    def newest(self, key: str) -> Pod | None:
        """The pod that we wrote, while the store still has an older version; else the store's pod."""
        stored, write = self._store.get(key), self._writes.get(key)
        if write is not None and write.replaces(stored) and self._clock() - write.written_at < MAX_LAG_S:
            return write.pod
        return stored

    def forget_writes(self) -> None:
        """Forget our writes when a leadership begins, because others may have written meanwhile."""
        self._writes.clear()
