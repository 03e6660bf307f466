"""Finds the AppGroup of a pod, whose label names a group without its namespace.

The pod's own namespace comes first, then those of the configuration. A group of another namespace gets the pod only with the
consent of the pod's namespace; otherwise any user who writes an AppGroup could capture pods of other namespaces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import DependencyGraph, build_graph
from controller.cluster.index import Index
from kubekit.wire import Object

CONSENT_LABEL = "netaware.io/appgroups-from"
"""Label of a namespace: the namespaces whose AppGroups may have its pods, joined by dots."""


def admitted_namespaces(labels: Mapping[str, str] | None) -> frozenset[str]:
    """Namespaces whose AppGroups a namespace with these labels admits."""
    return frozenset(name for name in (labels or {}).get(CONSENT_LABEL, "").split(".") if name)


def is_spec_unchanged(old: AppGroup | None, new: AppGroup | None) -> bool:
    """Whether two versions of an AppGroup have the same spec."""
    return old is not None and new is not None and old.spec == new.spec


def is_consent_unchanged(old: Object | None, new: Object | None) -> bool:
    """Whether two versions of a namespace admit the same namespaces."""
    before, after = (admitted_namespaces(n.metadata.labels if n is not None else None) for n in (old, new))
    return before == after


class Membership(Index):
    """AppGroups with their graphs, and the group of each pod, updated by watch events.

    A namespace that is not in the store admits no other namespace.

    Args:
        rules: for `namespaces` and `search_everywhere`.

    Attributes:
        groups: all AppGroups by key.
    """

    def __init__(self, rules: NetworkOverheadArgs) -> None:
        self._rules = rules
        self._admitted: dict[str, frozenset[str]] = {}
        self.groups: dict[str, AppGroup] = {}
        self._graphs: dict[str, DependencyGraph] = {}
        self._keys_by_name: dict[str, dict[str, None]] = defaultdict(dict)  # A dict as a set in order of insertion.

    @classmethod
    def from_objects(
        cls, groups: Iterable[AppGroup], namespaces: Iterable[Object], rules: NetworkOverheadArgs
    ) -> Membership:
        """Build from groups and namespaces."""
        membership = cls(rules)
        for namespace in namespaces:
            membership.on_namespace_change(namespace.metadata.name, namespace.metadata.labels)
        for group in groups:
            membership.on_change(group.metadata.key, None, group)
        return membership

    def on_change(self, key: str, old: AppGroup | None, new: AppGroup | None) -> bool:
        """Update an AppGroup; returns whether its spec or existence changed."""
        name = key.rpartition("/")[2]
        if new is not None:
            self.groups[key] = new
            self._keys_by_name[name][key] = None
            if is_spec_unchanged(old, new):
                return False
        else:
            self.groups.pop(key, None)
            self._keys_by_name[name].pop(key, None)
        self._graphs.pop(key, None)
        if not self._keys_by_name[name]:
            del self._keys_by_name[name]
        return True

    def graph(self, key: str) -> DependencyGraph:
        """A group's dependency graph."""
        if key not in self._graphs:
            self._graphs[key] = build_graph(self.groups[key].spec)
        return self._graphs[key]

    def keys_named(self, name: str) -> Iterable[str]:
        """Keys of all groups of this name."""
        return self._keys_by_name.get(name, {})

    def on_namespace_change(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Update a namespace's labels (None: deleted); returns whether the namespaces that it admits changed."""
        admitted = admitted_namespaces(labels)
        if self._admitted.get(name, frozenset()) == admitted:
            return False
        if admitted:
            self._admitted[name] = admitted
        else:
            self._admitted.pop(name, None)
        return True

    def group_key_of(self, namespace: str, name: str) -> str:
        """Key of the AppGroup ``name`` of a namespace's pods; empty if there is none."""
        keys = self._keys_by_name.get(name, {})
        everywhere, configured = self._rules.search_everywhere, self._rules.namespaces
        searched = (namespace, *configured) if everywhere else configured
        key = next((f"{n}/{name}" for n in searched if f"{n}/{name}" in keys), "")
        if key or not keys or not everywhere:
            return key
        # Look up the namespaces that the pod's namespace admits, because hundreds of groups may share a name.
        admitted = sorted(f"{group_namespace}/{name}" for group_namespace in self._admitted.get(namespace, ()))
        return next((key for key in admitted if key in keys and namespace in self._namespaces_of(key)), "")

    def pod_namespaces(self, key: str) -> Set[str] | None:
        """Namespaces whose pods may belong to the group; None for all."""
        group_namespace = self.groups[key].metadata.namespace
        if not self._rules.search_everywhere or group_namespace in self._rules.namespaces:
            return None
        return self._namespaces_of(key)

    def _namespaces_of(self, key: str) -> Set[str]:
        """The namespaces of a group and of the workloads that it names."""
        return {self.groups[key].metadata.namespace, *(w.namespace for w in self.graph(key).workloads if w.namespace)}

    def refusing_namespaces(self, key: str) -> list[str]:
        """Namespaces that a group names and that do not admit its namespace, sorted."""
        group_namespace = self.groups[key].metadata.namespace
        if group_namespace in self._rules.namespaces:
            return []
        return sorted(n for n in self._namespaces_of(key) if group_namespace not in {n, *self._admitted.get(n, ())})
