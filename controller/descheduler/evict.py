"""Evictions: through the eviction subresource, or as a dry-run that asks the same questions and moves nobody."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from controller.descheduler.decision import Move
from controller.descheduler.round import Ledger
from controller.descheduler.snapshot import LoadSnapshot, World
from kubekit.client import Client
from kubekit.errors import ApiError, MalformedObjectError, UnreachableError

ResultKind = Literal["evicted", "dry-run", "gone", "disruption-budget", "throttled", "forbidden", "refused", "unknown"]
DISRUPTION_CAUSE = "DisruptionBudget"
RETRY_AFTER_S, MOST_RETRY_AFTER_S = 10.0, 3600.0


class Result(NamedTuple):
    """How an eviction went.

    Attributes:
        kind: ``unknown`` when no answer came: the pod may or may not be on its way.
        retry_after_s: how long the API server asks to wait; only with ``throttled``.
    """

    kind: ResultKind
    message: str = ""
    retry_after_s: float = 0.0

    @property
    def ends_round(self) -> bool:
        """Whether the next eviction would fare no better: the API server is busy, or out of reach."""
        return self.kind in {"throttled", "unknown"}

    @property
    def refused(self) -> bool:
        """Whether this pod alone was refused, by rights or by a webhook; asking again soon would bring the same answer."""
        return self.kind in {"forbidden", "refused"}


def outdated(world: World, move: Move) -> str:
    """Why a move is none any more: what was planned was seen some time ago; empty when it stands.

    Usage is read once a round; disruption budgets are kept by the API server, and uids too, of pods that changed in this moment.
    """
    pod, target = world.pods.by_key.get(move.pod), world.nodes.get(move.target)
    if pod is None or pod.uid != move.uid or pod.going or pod.node != move.node:
        return "the pod is gone, or about to be"
    if move.target and (target is None or not target.takes_pods):
        return f"node {move.target}, where it was to go, takes no pods any more"
    return ""


class Evictor(Protocol):
    """Carries out one move of a plan."""

    async def evict(self, move: Move) -> Result:
        """Evict the pod, or say why not; never raises for what a cluster may answer."""
        ...


class ApiEvictor:
    """Evicts through the eviction subresource, where the API server keeps PodDisruptionBudgets.

    A client that is fenced by a leadership raises NotLeaderError when that is lost, which ends the round.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def evict(self, move: Move) -> Result:
        """Evict the pod with the plan's uid; another pod of that name is left alone."""
        return await _post(self._client, move)


class DryRunEvictor:
    """Asks the API server to go through the eviction without doing it, and books disruption budgets by itself.

    The booking is ours since the API server's dry-run takes nothing from a budget: it would allow ten evictions under a budget
    for one.
    """

    def __init__(self, client: Client, snapshot: LoadSnapshot) -> None:
        self._client, self._pods, self._ledger = client, snapshot.pods, Ledger(snapshot.guards)

    async def evict(self, move: Move) -> Result:
        """Tell what evicting this pod would come to, after those asked about before."""
        pod = self._pods.by_key.get(move.pod)
        if pod is None or pod.uid != move.uid:
            return Result("gone", "the pod is gone")
        why = self._ledger.refusal(pod)
        if why:
            return Result("disruption-budget", why)
        result = await _post(self._client, move, dry_run=True)
        if result.kind != "evicted":
            return result
        self._ledger.book(pod)
        return Result("dry-run")


async def _post(client: Client, move: Move, *, dry_run: bool = False) -> Result:
    namespace, _, name = move.pod.partition("/")
    try:
        await client.evict(namespace, name, move.uid, dry_run=dry_run)
    except ApiError as error:
        return result_of(error)
    except (UnreachableError, MalformedObjectError) as error:
        return Result("unknown", str(error))
    return Result("evicted")


def result_of(error: ApiError) -> Result:
    """What an error answer of the eviction subresource means.

    429 means a PodDisruptionBudget only if a cause says so; otherwise the API server is busy and wants us to wait.
    """
    if error.status == 429 and DISRUPTION_CAUSE in error.causes:
        return Result("disruption-budget", error.message)
    if error.status in {429, 503}:
        wait_s = RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        return Result("throttled", error.message, min(wait_s, MOST_RETRY_AFTER_S))
    if error.status in {404, 409}:  # deleted, or another pod has its name
        return Result("gone", error.message)
    if error.forbidden:
        return Result("forbidden", error.message)
    return Result("refused", error.message)
