"""Declared replicas of workloads, for which plans reserve resources before the pods exist.

Without the permission to read Deployments and StatefulSets the stores stay empty, so only existing pods count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from controller.cluster.crds import WorkloadRef
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.stores import Handler
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, Wire


class ScalableSpec(Wire, frozen=True):
    """spec of a Deployment or StatefulSet; replicas default to 1."""

    replicas: int = 1


class ScalableWorkload(Object, frozen=True):
    """A Deployment or StatefulSet, reduced to its replicas."""

    spec: ScalableSpec = ScalableSpec()


class DeclaredReplicas:
    """Stores of all Deployments and StatefulSets, filled by watches."""

    def __init__(self, client: Client) -> None:
        self._store_by_kind: dict[str, Reflector[ScalableWorkload]] = {
            resource.kind: Reflector(client, resource, ScalableWorkload) for resource in (DEPLOYMENTS, STATEFUL_SETS)
        }

    def tasks(self) -> dict[str, Awaitable[None]]:
        """Coroutines that fill the stores, by name."""
        return {f"store {kind}": store.run() for kind, store in self._store_by_kind.items()}

    def subscribe(self, handler: Handler[ScalableWorkload]) -> None:
        """Call ``handler`` for every change of a Deployment or StatefulSet."""
        for store in self._store_by_kind.values():
            store.subscribe(handler)

    def replicas_by_selector(self, namespace: str, workloads: Iterable[WorkloadRef]) -> dict[str, int]:
        """Declared replicas by workload selector, of a group's workloads that exist as objects; ``namespace`` is the group's."""
        declared_replicas: dict[str, int] = {}
        for workload in workloads:
            store = self._store_by_kind.get(workload.kind)
            scalable = store.get(f"{workload.namespace or namespace}/{workload.name}") if store else None
            if scalable is not None:
                declared_replicas[workload.selector] = scalable.spec.replicas
        return declared_replicas


def limit_replicas(
    declared: Mapping[str, int], existing: Mapping[str, int], max_missing: int
) -> tuple[dict[str, int], int]:
    """Replicas to plan by workload, and the number of declared replicas that are left out. Users can declare any number.

    Args:
        declared: replicas by workload, in order of preference.
        existing: replicas that have not finished, by workload.
        max_missing: how many replicas to plan that do not exist yet, of all workloads together.
    """
    limited_replicas: dict[str, int] = {}
    remaining, total_excess = max_missing, 0
    for workload, replicas in declared.items():
        missing = max(replicas - existing.get(workload, 0), 0)
        excess = max(missing - remaining, 0)
        remaining -= missing - excess
        total_excess += excess
        limited_replicas[workload] = replicas - excess
    return limited_replicas, total_excess
