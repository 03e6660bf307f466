"""Evicts pods through the eviction subresource, which enforces PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.round_plan import Move
from kubekit.client import Client
from kubekit.errors import ApiError, MalformedObjectError, UnreachableError

ResultKind = Literal["evicted", "dry-run", "gone", "disruption-budget", "throttled", "forbidden", "refused", "unknown"]
DISRUPTION_CAUSE = "DisruptionBudget"


class Result(NamedTuple):
    """The result of an eviction.

    Attributes:
        kind: ``unknown`` when no answer came: the pod may or may not be on its way.
    """

    kind: ResultKind
    message: str = ""

    @property
    def ends_round(self) -> bool:
        """Whether the next eviction would fail too: the API server is busy or unreachable."""
        return self.kind in {"throttled", "unknown"}

    @property
    def refused(self) -> bool:
        """Whether this pod was refused, by rights or by a webhook; asking again soon would bring the same answer."""
        return self.kind in {"forbidden", "refused"}


def why_outdated(move: Move, pods: Mapping[str, PodInfo], nodes: Mapping[str, Host]) -> str:
    """Why a move does not hold any more, since it was planned some time ago; empty when it does.

    Usage is read once a round; disruption budgets are kept by the API server, and uids too, of pods that changed in this moment.
    """
    pod, target = pods.get(move.pod), nodes.get(move.target)
    if pod is None or pod.uid != move.uid or not pod.is_active or pod.node != move.node:
        return "the pod is gone, or about to be"
    if move.target and (target is None or not target.takes_pods):
        return f"node {move.target}, where it was to go, takes no pods any more"
    return ""


async def evict(client: Client, move: Move, *, dry_run: bool = False) -> Result:
    """Evict the pod with the plan's uid, another pod of that name is left alone; or ask the API server whether it would.

    Raises:
        NotLeaderError: the client is fenced by a leadership that is lost.
    """
    namespace, _, name = move.pod.partition("/")
    try:
        await client.evict(namespace, name, move.uid, dry_run=dry_run)
    except (UnreachableError, MalformedObjectError) as error:
        return Result("unknown", str(error))
    except ApiError as error:
        # 429 means a PodDisruptionBudget only if a cause says so; otherwise the API server is busy.
        if error.status == 429 and DISRUPTION_CAUSE in error.causes:
            return Result("disruption-budget", error.message)
        if error.status in {429, 503}:
            return Result("throttled", error.message)
        if error.status in {404, 409}:  # deleted, or another pod has its name
            return Result("gone", error.message)
        return Result("forbidden" if error.forbidden else "refused", error.message)
    return Result("dry-run" if dry_run else "evicted")
