"""Which AppGroup a pod belongs to: its label names a group, but not the group's namespace.

A pod's own namespace comes first, then those that the configuration names. A group of any other namespace gets the pod only
with the consent of the pod's namespace; otherwise any writer of an AppGroup could capture other people's pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.graph import Graph, build_graph, namespaces_of
from controller.cluster.index import Index
from controller.cluster.resources import AppGroup
from kubekit.wire import Object

CONSENT_LABEL = "netaware.io/appgroups-from"
"""On a namespace: the namespaces whose AppGroups may have its pods, joined by dots."""


def admitted_namespaces(labels: Mapping[str, str] | None) -> frozenset[str]:
    """Namespaces whose AppGroups a namespace with these labels admits."""
    return frozenset(name for name in (labels or {}).get(CONSENT_LABEL, "").split(".") if name)


def has_same_spec(old: AppGroup | None, new: AppGroup | None) -> bool:
    """Whether a change of an AppGroup leaves its spec unchanged."""
    return old is not None and new is not None and old.spec == new.spec


def has_same_consent(old: Object | None, new: Object | None) -> bool:
    """Whether a change of a namespace leaves its consent unchanged."""
    before, after = (admitted_namespaces(one.metadata.labels if one is not None else None) for one in (old, new))
    return before == after


class Membership(Index):
    """Every AppGroup with its graph, and which of them a pod belongs to, kept up to date by watch events.

    An unreadable namespace consents to none.

    Args:
        rules: the scheduler's `namespaces` and `search_everywhere`.

    Attributes:
        groups: by key.
    """

    def __init__(self, rules: NetworkOverheadArgs) -> None:
        self._rules = rules
        self._admitted: dict[str, frozenset[str]] = {}
        self._groups: dict[str, AppGroup] = {}
        self._graphs: dict[str, Graph] = {}
        self._named: dict[str, dict[str, None]] = defaultdict(dict)

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

    @property
    def groups(self) -> Mapping[str, AppGroup]:
        """Every AppGroup by key."""
        return self._groups

    def on_change(self, key: str, old: AppGroup | None, new: AppGroup | None) -> bool:
        """Update an AppGroup; returns whether its spec or existence changed."""
        name = key.rpartition("/")[2]
        if new is not None:
            self._groups[key] = new
            self._named[name][key] = None
            if has_same_spec(old, new):
                return False
        else:
            self._groups.pop(key, None)
            self._named[name].pop(key, None)
        self._graphs.pop(key, None)
        if not self._named[name]:
            del self._named[name]
        return True

    def graph(self, key: str) -> Graph:
        """A group's dependencies, resolved."""
        if key not in self._graphs:
            self._graphs[key] = build_graph(self._groups[key].spec)
        return self._graphs[key]

    def keys_named(self, name: str) -> Iterable[str]:
        """Keys of the groups of one name."""
        return self._named.get(name, {})

    def on_namespace_change(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Update a namespace (None: deleted); returns whether its consent changed."""
        admitted = admitted_namespaces(labels)
        if self._admitted.get(name, frozenset()) == admitted:
            return False
        if admitted:
            self._admitted[name] = admitted
        else:
            self._admitted.pop(name, None)
        return True

    def group_of(self, namespace: str, name: str) -> str:
        """Key of the AppGroup that pods of a namespace with this label belong to; empty when there is none."""
        named = self._named.get(name, {})
        everywhere, searched = self._rules.search_everywhere, self._rules.namespaces
        first = (namespace, *searched) if everywhere else searched
        found = next((f"{n}/{name}" for n in first if f"{n}/{name}" in named), "")
        if found or not named or not everywhere:
            return found
        # Of the namespaces that the pod's admits, since hundreds of groups may share a name.
        admitted = sorted(f"{home}/{name}" for home in self._admitted.get(namespace, ()))
        return next((key for key in admitted if key in named and namespace in self._namespaces_of(key)), "")

    def pod_namespaces(self, key: str) -> Set[str] | None:
        """Namespaces whose pods can belong to the group; None for all."""
        home = self._groups[key].metadata.namespace
        if not self._rules.search_everywhere or home in self._rules.namespaces:
            return None
        return self._namespaces_of(key)

    def _namespaces_of(self, key: str) -> Set[str]:
        return namespaces_of(self._groups[key].metadata.namespace, self.graph(key).workloads)

    def refusing_namespaces(self, key: str) -> list[str]:
        """The namespaces that a group names and that do not consent, sorted."""
        home = self._groups[key].metadata.namespace
        if home in self._rules.namespaces:
            return []
        return sorted(n for n in self._namespaces_of(key) if n != home and home not in self._admitted.get(n, ()))
