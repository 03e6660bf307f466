"""Finds the AppGroup of a pod, whose label names the group without its namespace.

The pod's own namespace is searched first, then those of the configuration. A group of another namespace gets the pod only with the
consent of the pod's namespace; otherwise any user who writes an AppGroup could capture pods of other namespaces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import DependencyGraph, build_graph
from controller.cluster.index import Index
from controller.cluster.pods import Pod
from kubekit.wire import Object

CONSENT_LABEL = "netaware.io/appgroups-from"
"""Label of a namespace: the other namespaces whose AppGroups may get its pods, joined by dots."""


def parse_consent(labels: Mapping[str, str] | None) -> frozenset[str]:
    """Namespaces to whose AppGroups a namespace with these labels consents."""
    return frozenset(name for name in (labels or {}).get(CONSENT_LABEL, "").split(".") if name)


def is_spec_unchanged(old: AppGroup | None, new: AppGroup | None) -> bool:
    """Whether two versions of an AppGroup have the same spec."""
    return old is not None and new is not None and old.spec == new.spec


def is_consent_unchanged(old: Object | None, new: Object | None) -> bool:
    """Whether two versions of a namespace consent to AppGroups of the same namespaces."""
    before, after = (parse_consent(n.metadata.labels if n is not None else None) for n in (old, new))
    return before == after


class Membership(Index):
    """AppGroups with their graphs, and the group of each pod, updated by watch events; ``groups`` has all AppGroups by key.

    `namespaces` and `search_everywhere` of ``args`` decide where groups are searched.
    """

    def __init__(self, args: NetworkOverheadArgs) -> None:
        self._args = args
        self._consents_by_namespace: dict[str, frozenset[str]] = {}
        self.groups: dict[str, AppGroup] = {}
        self._graphs: dict[str, DependencyGraph] = {}
        self._keys_by_name: dict[str, dict[str, None]] = defaultdict(dict)  # The inner dicts are ordered sets.

    @classmethod
    def from_objects(
        cls, groups: Iterable[AppGroup], namespaces: Iterable[Object], args: NetworkOverheadArgs
    ) -> Membership:
        """Build from AppGroups and namespaces."""
        membership = cls(args)
        for namespace in namespaces:
            membership.on_namespace_change(namespace.metadata.name, namespace.metadata.labels)
        for group in groups:
            membership.on_group_change(group.metadata.key, None, group)
        return membership

    def on_group_change(self, key: str, old: AppGroup | None, new: AppGroup | None) -> bool:
        """Update an AppGroup; returns whether it is new or deleted, or its spec has changed."""
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

    def group_keys_named(self, name: str) -> Mapping[str, None]:
        """Keys of all groups of this name, in order of insertion."""
        return self._keys_by_name.get(name, {})

    def on_namespace_change(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Update a namespace's labels, None if it is deleted; returns whether its consent has changed."""
        consent = parse_consent(labels)
        if self._consents_by_namespace.get(name, frozenset()) == consent:
            return False
        if consent:
            self._consents_by_namespace[name] = consent
        else:
            self._consents_by_namespace.pop(name, None)
        return True

    def group_key_of(self, namespace: str, name: str) -> str:
        """Key of the AppGroup to which pods of a namespace with the label ``name`` belong; empty if there is none."""
        keys, namespaces = self.group_keys_named(name), self._args.namespaces
        if self._args.search_everywhere:
            namespaces = (namespace, *namespaces)
        key = next((f"{n}/{name}" for n in namespaces if f"{n}/{name}" in keys), "")
        if key or not keys or not self._args.search_everywhere:
            return key
        # Visits the namespaces with consent instead of the groups, because hundreds of groups may have this name.
        keys_with_consent = (f"{n}/{name}" for n in sorted(self._consents_by_namespace.get(namespace, ())))
        return next((key for key in keys_with_consent if key in keys and namespace in self._namespaces_of(key)), "")

    def pods_by_group(self, pods: Iterable[Pod]) -> dict[str, list[Pod]]:
        """Key of an AppGroup -> its pods, in the order of ``pods``; pods without a group are left out."""
        pods_by_group: dict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            if key := self.group_key_of(pod.metadata.namespace, pod.group):
                pods_by_group[key].append(pod)
        return pods_by_group

    def pod_namespaces(self, key: str) -> Set[str] | None:
        """Namespaces whose pods may belong to a group; None if pods of any namespace may."""
        group_namespace = self.groups[key].metadata.namespace
        if not self._args.search_everywhere or group_namespace in self._args.namespaces:
            return None
        return self._namespaces_of(key)

    def _namespaces_of(self, key: str) -> Set[str]:
        """The namespaces of a group and of its workloads."""
        return {self.groups[key].metadata.namespace, *(w.namespace for w in self.graph(key).workloads if w.namespace)}

    def list_namespaces_without_consent(self, key: str) -> list[str]:
        """Namespaces of a group's workloads that do not consent to it, sorted; none for a group in a configured namespace."""
        group_namespace = self.groups[key].metadata.namespace
        if group_namespace in self._args.namespaces:
            return []
        consents = self._consents_by_namespace
        return sorted(n for n in self._namespaces_of(key) if group_namespace not in {n, *consents.get(n, ())})
