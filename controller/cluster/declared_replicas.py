"""Stores spec.replicas of all Deployments and StatefulSets, and limits the replicas for which a plan reserves resources.

Plans reserve resources for pods that are about to be created. Without the permission to read workloads, only existing pods count.
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
    """Declared replicas of all Deployments and StatefulSets, filled by watches."""

    def __init__(self, client: Client) -> None:
        self._by_kind: dict[str, Reflector[ScalableWorkload]] = {
            resource.kind: Reflector(client, resource, ScalableWorkload) for resource in (DEPLOYMENTS, STATEFUL_SETS)
        }

    def tasks(self) -> dict[str, Awaitable[None]]:
        """Coroutines that fill the stores, by name."""
        return {f"store {kind}": store.run() for kind, store in self._by_kind.items()}

    def subscribe(self, handler: Handler[ScalableWorkload]) -> None:
        """Call ``handler`` for every change of a Deployment or StatefulSet."""
        for store in self._by_kind.values():
            store.subscribe(handler)

    def replicas(self, namespace: str, workloads: Iterable[WorkloadRef]) -> dict[str, int]:
        """Workload selector -> replicas, of a group's workloads that exist; ``namespace`` is the group's."""
        replicas: dict[str, int] = {}
        for workload in workloads:
            store = self._by_kind.get(workload.kind)
            scalable = store.get(f"{workload.namespace or namespace}/{workload.name}") if store else None
            if scalable is not None:
                replicas[workload.selector] = scalable.spec.replicas
        return replicas


def limit_replicas(declared: Mapping[str, int], existing: Mapping[str, int], limit: int) -> tuple[dict[str, int], int]:
    """Replicas to plan, by workload, and how many declared replicas are left out.

    Users can declare any number of replicas, so those without a pod are limited to ``limit``.

    Args:
        declared: replicas by workload, in order of preference.
        existing: replicas that have not finished, by workload.
        limit: replicas to plan for beyond the existing ones.
    """
    limited: dict[str, int] = {}
    left_out = 0
    for workload, replicas in declared.items():
        present = existing.get(workload, 0)
        missing = max(replicas - present, 0)
        planned = min(missing, limit)
        limit, left_out = limit - planned, left_out + missing - planned
        limited[workload] = min(replicas, present + planned)
    return limited, left_out
