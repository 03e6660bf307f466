"""PodDisruptionBudgets, and the evictions that they still allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from controller.cluster.pod_info import PodInfo
from kubekit.errors import SelectorError
from kubekit.selectors import LabelSelector, Selector, compile_selector
from kubekit.wire import Object, Resource, Wire

DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


class PodDisruptionBudgetSpec(Wire, frozen=True):
    """The spec of a PodDisruptionBudget; an absent selector matches no pod, an empty selector all pods of the namespace."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Wire, frozen=True):
    """The status of a PodDisruptionBudget."""

    disruptions_allowed: int = 0


class PodDisruptionBudget(Object, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class AllowedDisruptions:
    """Predicts from PodDisruptionBudgets whether the API server will evict a pod, counting the planned evictions."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets_by_namespace: dict[str, list[tuple[Selector, PodDisruptionBudget]]] = defaultdict(list)
        self._unreadable_by_namespace: dict[str, str] = {}
        for budget in sorted(budgets, key=lambda budget: budget.metadata.key):
            meta, selector = budget.metadata, budget.spec.selector
            try:
                if selector is not None:
                    self._budgets_by_namespace[meta.namespace].append((compile_selector(selector), budget))
            except SelectorError as error:
                # A selector with an unknown operator may match any pod of the namespace.
                self._unreadable_by_namespace[meta.namespace] = f"PodDisruptionBudget {meta.key} may cover it: {error}"
        self._reserved_by_budget: Counter[str] = Counter()

    def unevictable_reason(self, pod: PodInfo) -> str:
        """Why budgets forbid the pod's eviction now; empty if they allow it."""
        if failure := self._unreadable_by_namespace.get(pod.namespace):
            return failure
        budgets = self._budgets_of(pod)
        keys = [budget.metadata.key for budget in budgets]
        if len(budgets) > 1:
            # The API server rejects such an eviction with status 500.
            return f"several PodDisruptionBudgets cover it: {', '.join(keys)}"
        if budgets and budgets[0].status.disruptions_allowed <= self._reserved_by_budget[keys[0]]:
            return f"PodDisruptionBudget {keys[0]} allows no disruption now"
        return ""

    def reserve(self, pod: PodInfo) -> None:
        """Count the pod's eviction against its budget."""
        self._reserved_by_budget.update(budget.metadata.key for budget in self._budgets_of(pod))

    def _budgets_of(self, pod: PodInfo) -> list[PodDisruptionBudget]:
        budgets = self._budgets_by_namespace.get(pod.namespace, ())
        return [budget for selector, budget in budgets if selector.matches(pod.labels)]
