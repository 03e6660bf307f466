"""Declared replicas of Deployments and StatefulSets that AppGroups name, and how many the quota allows.

A plan for existing pods alone would give away resources that pods about to be created need. Without the right to read workloads or
quotas, only existing pods are known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from controller.cluster.resources import WorkloadRef
from kubekit import quantity
from kubekit.client import Client
from kubekit.errors import QuantityError
from kubekit.reflector import Reflector
from kubekit.stores import Handler
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, Resource, Wire

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


class ScaledSpec(Wire, frozen=True):
    """spec of anything with replicas; absent means 1."""

    replicas: int = 1


class Scaled(Object, frozen=True):
    """A Deployment or StatefulSet, of which only the number of pods matters."""

    spec: ScaledSpec = ScaledSpec()


class QuotaSpec(Wire, frozen=True):
    """The spec of a ResourceQuota."""

    scopes: list[str] | None = None
    scope_selector: dict[str, object] | None = None


class QuotaStatus(Wire, frozen=True):
    """status of a ResourceQuota: quantities by name."""

    hard: dict[str, str] | None = None
    used: dict[str, str] | None = None


class Quota(Object, frozen=True):
    """A ResourceQuota, of which only the number of pods matters."""

    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()

    @property
    def pods_left(self) -> int | None:
        """Pods that the quota still allows; None if it does not limit all pods."""
        if self.spec.scopes or self.spec.scope_selector:
            return None
        hard, used = self.status.hard or {}, self.status.used or {}
        left = [_count(hard[n]) - _count(used.get(n, "0")) for n in ("pods", "count/pods") if n in hard]
        return min(left, default=None)


def _count(text: str) -> int:
    try:
        return quantity.parse_int(text)
    except QuantityError:
        return 0


class Declared:
    """Stores of what declares replicas, and of quotas."""

    def __init__(self, client: Client) -> None:
        self._by_kind: dict[str, Reflector[Scaled]] = {
            resource.kind: Reflector(client, resource, Scaled) for resource in (DEPLOYMENTS, STATEFUL_SETS)
        }
        self._quotas: Reflector[Quota] = Reflector(client, QUOTAS, Quota)

    def tasks(self) -> dict[str, Awaitable[None]]:
        """Tasks that fill the stores."""
        stores = {f"store {kind}": store.run() for kind, store in self._by_kind.items()}
        return {**stores, "store quotas": self._quotas.run()}

    def subscribe(self, handler: Handler[Scaled]) -> None:
        """Call ``handler`` for every change."""
        for store in self._by_kind.values():
            store.subscribe(handler)

    def replicas(self, namespace: str, workloads: Iterable[WorkloadRef]) -> dict[str, int]:
        """Workload selector -> replicas, for those of a group in this namespace that are known."""
        replicas: dict[str, int] = {}
        for workload in workloads:
            store = self._by_kind.get(workload.kind)
            known = store.get(f"{workload.namespace or namespace}/{workload.name}") if store else None
            if known is not None:
                replicas[workload.selector] = known.spec.replicas
        return replicas

    def pods_left(self, namespace: str) -> int | None:
        """Pods that a namespace's quotas still allow; None without a limit."""
        left = (quota.pods_left for quota in self._quotas if quota.metadata.namespace == namespace)
        return min((count for count in left if count is not None), default=None)


def to_plan_for(declared: Mapping[str, int], live: Mapping[str, int], allowed: int) -> tuple[dict[str, int], int]:
    """Replicas to plan for by workload, and how many declared ones are left out.

    Declaring replicas costs nothing, so missing ones count only as far as they are allowed.

    Args:
        declared: by workload, in order of preference.
        live: existing replicas that are not over.
        allowed: how many may be created.
    """
    found: dict[str, int] = {}
    left_out = 0
    for workload, wanted in declared.items():
        there = live.get(workload, 0)
        missing = max(wanted - there, 0)
        planned = min(missing, allowed)
        allowed, left_out = allowed - planned, left_out + missing - planned
        found[workload] = min(wanted, there + planned)
    return found, left_out
