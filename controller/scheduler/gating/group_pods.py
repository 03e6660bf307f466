"""Index of pods by group, updated by watch events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controller.cluster.caches import OwnWrites
from controller.cluster.membership import NamedPods
from controller.cluster.pods import GroupPod
from controller.scheduler.state import State
from kubekit.stores import Store


class GroupPods:
    """The pods of AppGroups by group, with our own writes that the watch has not shown yet.

    Attributes:
        seen_at: pod key -> when it was first seen, on the clock given.
        others_opened_at: pod key -> when the last gate of others opened, for pods that had one; their waits count from then.
        waiting: keys of the pods that are neither bound nor over.
    """

    def __init__(self, store: Store[GroupPod], state: State, clock: Callable[[], float]) -> None:
        self._store, self._state, self._clock = store, state, clock
        self._written: OwnWrites[GroupPod] = OwnWrites(store)
        self._named = NamedPods()
        self.seen_at: dict[str, float] = {}
        self.others_opened_at: dict[str, float] = {}
        self.waiting: set[str] = set()

    def on_change(self, key: str, old: GroupPod | None, new: GroupPod | None) -> str:
        """Updates the index; returns the key of the pod's group, empty for none."""
        pod = new or old
        if pod is None:
            return ""
        self._written.newest(key)
        self._named.on_change(key, old, new)
        if new is None:
            self.waiting.discard(key)
            self.seen_at.pop(key, None)
            self.others_opened_at.pop(key, None)
        else:
            self.seen_at.setdefault(key, self._clock())
            if new.waiting:
                self.waiting.add(key)
            else:
                self.waiting.discard(key)
            if old is not None and old.other_gates and not new.other_gates:
                self.others_opened_at[key] = self._clock()
        return self._state.key_of(pod.metadata.namespace, pod.group)

    def of(self, group: str) -> list[GroupPod]:
        """A group's pods."""
        newest = (self._written.newest(key) for key, _ in self._named.of(group, self._state.key_of))
        return [pod for pod in newest if pod is not None]

    def waiting_groups(self) -> Iterator[str]:
        """The groups that have waiting pods."""
        labels = {(p.metadata.namespace, p.group) for p in map(self._store.get, self.waiting) if p is not None}
        return (self._state.key_of(namespace, label) for namespace, label in labels)

    def gated_count(self) -> int:
        """Number of pods that our gate holds."""
        return sum(pod.gated and pod.is_active for pod in map(self._store.get, tuple(self.waiting)) if pod is not None)

    def wrote(self, key: str, before: GroupPod, after: GroupPod) -> None:
        """A pod was patched, which its store may not know for a moment."""
        self._written.note(key, before, after)

    def forget_writes(self) -> None:
        """Forgets our writes when a leadership begins."""
        self._written.forget()
