"""How many pods workloads declare, from the Deployments and StatefulSets that AppGroups name.

A plan made for the pods that happen to exist would give away the room of those about to be created. Without the right to
read workloads nothing breaks: the pods that exist are then all that is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from controller.resources import WorkloadRef
from kubekit.client import Client
from kubekit.reflector import Handler, Reflector
from kubekit.wire import DEPLOYMENTS, Object, Resource, Wire

STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")


class ScaledSpec(Wire, frozen=True):
    """spec of anything with replicas; absent means 1."""

    replicas: int = 1


class Scaled(Object, frozen=True):
    """A Deployment or StatefulSet, of which only the number of pods matters."""

    spec: ScaledSpec = ScaledSpec()


class Declared:
    """Mirrors of what declares replicas."""

    def __init__(self, client: Client) -> None:
        self._by_kind: dict[str, Reflector[Scaled]] = {
            resource.kind: Reflector(client, resource, Scaled) for resource in (DEPLOYMENTS, STATEFUL_SETS)
        }

    def tasks(self) -> dict[str, Awaitable[None]]:
        """One endless task per mirror."""
        return {f"mirror {kind}": mirror.run() for kind, mirror in self._by_kind.items()}

    def subscribe(self, handler: Handler[Scaled]) -> None:
        """Call ``handler`` for every change."""
        for mirror in self._by_kind.values():
            mirror.subscribe(handler)

    def replicas(self, namespace: str, workloads: Iterable[WorkloadRef]) -> dict[str, int]:
        """Workload selector -> replicas, for those of a group in this namespace that are known."""
        found: dict[str, int] = {}
        for workload in workloads:
            mirror = self._by_kind.get(workload.kind)
            known = mirror.get(f"{workload.namespace or namespace}/{workload.name}") if mirror else None
            if known is not None:
                found[workload.selector] = known.spec.replicas
        return found
