"""Evicts pods through the eviction subresource, which enforces PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.plan import Move
from kubekit.client import Client
from kubekit.errors import ApiError, MalformedObjectError, UnreachableError

ResultKind = Literal["evicted", "dry-run", "gone", "disruption-budget", "throttled", "forbidden", "refused", "unknown"]


class EvictionResult(NamedTuple):
    """The result of an eviction.

    Attributes:
        kind: ``evicted``, or ``dry-run`` if it would be; ``gone`` if the pod no longer exists, or the move is outdated;
            ``disruption-budget`` if a PodDisruptionBudget allows no eviction; ``throttled`` if the API server is busy; ``forbidden`` if
            RBAC or an admission webhook denies it; ``refused`` for an invalid request or a failing webhook; ``unknown`` without a valid
            response: the pod may have been evicted.
        message: the API server's message, or `outdated_reason`.
    """

    kind: ResultKind
    message: str = ""

    @property
    def stops_evictions(self) -> bool:
        """Whether further evictions may fail too: the API server is busy, unreachable, or sent no valid response."""
        return self.kind in {"throttled", "unknown"}


def outdated_reason(move: Move, pods: Mapping[str, PodInfo], nodes: Mapping[str, Host]) -> str:
    """Why a move no longer applies; empty if it does. The API server checks disruption budgets and the uid."""
    pod, target = pods.get(move.pod), nodes.get(move.target)
    if pod is None or pod.uid != move.uid or not pod.is_active or pod.node != move.node:
        return "the pod is gone, has ended or moved, or is terminating"
    if move.target and (target is None or not target.accepts_pods):
        return f"node {move.target}, its target, takes no more pods"
    return ""


async def evict(client: Client, move: Move, *, dry_run: bool = False) -> EvictionResult:
    """Evict the pod with the move's uid, not another pod of that name; ``dry_run`` only asks the API server whether it would.

    Raises:
        NotLeaderError: this replica no longer leads.
    """
    namespace, _, name = move.pod.partition("/")
    try:
        await client.evict(namespace, name, move.uid, dry_run=dry_run)
    except (UnreachableError, MalformedObjectError) as error:
        return EvictionResult("unknown", str(error))
    except ApiError as error:
        if error.is_disruption_budget:
            return EvictionResult("disruption-budget", error.message)
        if error.is_throttled or error.status == 503:
            return EvictionResult("throttled", error.message)
        if error.status in {404, 409}:  # deleted, or another pod has its name
            return EvictionResult("gone", error.message)
        return EvictionResult("forbidden" if error.is_forbidden else "refused", error.message)
    return EvictionResult("dry-run" if dry_run else "evicted")
