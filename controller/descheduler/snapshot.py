"""What the rules look at: one moment of the cluster, with pods indexed as the rules ask for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.descheduler.objects import Budget, NodeInfo, PodInfo
from controller.descheduler.usage import UsageView
from controller.resources import APPGROUP_LABEL
from controller.scheduler.state import State as Network
from kubekit.errors import SelectorError
from kubekit.selectors import Selector, from_object

_EMPTY: Mapping[str, PodInfo] = {}


class PodIndex:
    """Pods by key, node, namespace, workload and AppGroup's name; kept up to date one pod at a time."""

    def __init__(self, pods: Iterable[PodInfo] = ()) -> None:
        self.by_key: dict[str, PodInfo] = {}
        self._by_node: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        self._by_workload: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        self._by_group: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        self._by_namespace: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        for pod in pods:
            self.put(pod)

    def put(self, pod: PodInfo) -> None:
        """Add or replace one pod."""
        self.drop(pod.key)
        self.by_key[pod.key] = pod
        for index, name in self._places_of(pod):
            if name:
                index[name][pod.key] = pod

    def drop(self, key: str) -> None:
        """Remove one pod, if it is there."""
        pod = self.by_key.pop(key, None)
        if pod is None:
            return
        for index, name in self._places_of(pod):
            if name:
                del index[name][key]
                if not index[name]:
                    del index[name]

    def _places_of(self, pod: PodInfo) -> Iterable[tuple[dict[str, dict[str, PodInfo]], str]]:
        return (
            (self._by_node, pod.node),
            (self._by_namespace, pod.namespace),
            (self._by_workload, pod.workload),
            (self._by_group, pod.labels.get(APPGROUP_LABEL, "")),
        )

    def on_node(self, node: str) -> Mapping[str, PodInfo]:
        """Pods bound to a node, by key; finished ones included."""
        return self._by_node.get(node, _EMPTY)

    def in_namespace(self, namespace: str) -> Mapping[str, PodInfo]:
        """All pods of a namespace."""
        return self._by_namespace.get(namespace, _EMPTY)

    def of_workload(self, workload: str) -> Mapping[str, PodInfo]:
        """Pods that one controller made."""
        return self._by_workload.get(workload, _EMPTY)

    @property
    def groups(self) -> Mapping[str, Mapping[str, PodInfo]]:
        """AppGroup name -> its pods."""
        return self._by_group


class Guard(NamedTuple):
    """A PodDisruptionBudget.

    Attributes:
        key: ``namespace/name``.
        allowed: evictions that it permits now.
    """

    key: str
    namespace: str
    selector: Selector
    allowed: int


def read_guard(budget: Budget) -> Guard | None:
    """Convert a budget; None for one without selector, which covers no pod.

    Its ``disruptedPods`` are already out of ``disruptionsAllowed``.
    """
    if budget.spec.selector is None:
        return None
    try:
        selector = from_object(budget.spec.selector)
    except SelectorError:  # newer than we are: then it covers its whole namespace, the safe reading
        selector = Selector()
    return Guard(budget.metadata.key, budget.metadata.namespace, selector, max(0, budget.status.disruptions_allowed))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment.

    Attributes:
        nodes: by name.
        guards: by namespace.
        usage: smoothed, nothing expired in it.
        network: the scheduler's view of AppGroups and costs; None where there are none.
    """

    nodes: Mapping[str, NodeInfo]
    pods: PodIndex
    usage: UsageView
    guards: Mapping[str, tuple[Guard, ...]] = field(default_factory=dict)
    network: Network | None = None


def by_namespace(guards: Iterable[Guard]) -> dict[str, tuple[Guard, ...]]:
    """Guards by namespace, in order of their keys."""
    found: dict[str, list[Guard]] = defaultdict(list)
    for guard in sorted(guards, key=lambda guard: guard.key):
        found[guard.namespace].append(guard)
    return {namespace: tuple(entries) for namespace, entries in found.items()}
