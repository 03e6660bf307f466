"""Declared replicas of Deployments and StatefulSets that AppGroups name.

A plan for existing pods alone would give away resources that pods about to be created need. Without the right to read workloads,
only existing pods are known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from controller.cluster.resources import WorkloadRef
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.stores import Handler
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, Wire


class ScalableSpec(Wire, frozen=True):
    """spec of anything with replicas; absent means 1."""

    replicas: int = 1


class ScalableWorkload(Object, frozen=True):
    """A Deployment or StatefulSet, of which only the number of pods matters."""

    spec: ScalableSpec = ScalableSpec()


class DeclaredReplicas:
    """Stores of what declares replicas."""

    def __init__(self, client: Client) -> None:
        self._by_kind: dict[str, Reflector[ScalableWorkload]] = {
            resource.kind: Reflector(client, resource, ScalableWorkload) for resource in (DEPLOYMENTS, STATEFUL_SETS)
        }

    def tasks(self) -> dict[str, Awaitable[None]]:
        """Tasks that fill the stores."""
        return {f"store {kind}": store.run() for kind, store in self._by_kind.items()}

    def subscribe(self, handler: Handler[ScalableWorkload]) -> None:
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


def limit_replicas(declared: Mapping[str, int], live: Mapping[str, int], allowed: int) -> tuple[dict[str, int], int]:
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
