"""The history that a ConfigMap keeps: pending moves, back-offs, evictions, and entries of breakers, which stop ineffective strategies."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from controller.cluster.crds import FIELD_MANAGER
from controller.descheduler.config import LimitsConfig, StrategyName
from controller.descheduler.plan import Move
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.waiting import backoff_delay_s
from kubekit.wire import CONFIGMAPS, DECODE_ERRORS, ConfigMap, Object
from netperf.contract import PART_OF_LABELS

log = logs.get("controller.descheduler")

MoveOutcome = Literal[
    "helped",
    "returned",  # the replacement is on the old node; for ZoneSurvival, in the old zone
    "node-still-overutilized",
    "target-overutilized",
    "cost-not-fallen",
    "not-ready",  # the replacement has a node, but is not ready
    "not-scheduled",  # the replacement has no node
    "not-replaced",  # the workload has no new pod
    "unknown",  # usage was missing, or the pod still terminates
    "not-evicted",  # the pod itself still runs
]
CONFIGMAP_NAME, CONFIGMAP_KEY = "netaware-descheduler", "history.json"
DAY_S = 86_400.0
MAX_BACKOFF_S = 7 * DAY_S
MAX_BACKOFFS, MAX_BREAKER_ENTRIES, MAX_REASON_CHARS = 1500, 1000, 100
"""Limits for a ConfigMap's 1 MiB. A back-off takes at most 500 bytes (with names of 253 characters), a breaker's entry at most 100. The
rest is for pending moves and evictions, which ``descheduler.limits`` bounds; the API server refuses a larger history."""
MIN_OLD_POD_AGE_S = 600.0
"""A pod that is older than this in the round of a move existed before the round, even if clocks differ by minutes."""


class HistoryRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the structs that the ConfigMap holds."""


class PendingMove(HistoryRecord, frozen=True):
    """A move whose outcome is not known yet.

    Attributes:
        planned_at_s: time of the round that planned it, unix seconds.
        usage_percent_before: usage of the node's exceeded resources before the round, percent of allocatable.
        expected_relief_percent: percentage points by which this move should lower that usage.
        exceeded_thresholds: high thresholds of these resources, percent of allocatable.
        sibling_short_uids: `short_uid` of the workload's other pods in that round that were younger than `MIN_OLD_POD_AGE_S`; none of
            them is the replacement, nor is an older pod.
        replacement_node, replacement_pod, replacement_uid: the replacement, once it is bound; the pod as ``namespace/name``.
        replacement_bound_at_s: time of the first round that found it bound, unix seconds.
    """

    move: Move
    planned_at_s: float
    usage_percent_before: dict[str, float] = {}
    expected_relief_percent: dict[str, float] = {}
    exceeded_thresholds: dict[str, float] = {}
    sibling_short_uids: tuple[str, ...] = ()
    replacement_node: str = ""
    replacement_pod: str = ""
    replacement_uid: str = ""
    replacement_bound_at_s: float = 0.0


class BackoffEntry(HistoryRecord, frozen=True):
    """The back-off of a workload or a replica, which is not moved until it ends.

    Attributes:
        until_s: end of the back-off, unix seconds.
        failures: number of consecutive failures; 0 for the replacement of a move that did not fail.
        reason: a `MoveOutcome`, ``refused`` for an eviction, or why the replica stays, at most `MAX_REASON_CHARS` long.
    """

    until_s: float
    failures: int = 0
    reason: str = ""


class EvictionEntry(HistoryRecord, frozen=True):
    """An eviction that counts against ``limits.perWorkload``; ``planned_at_s`` is the time of its round, unix seconds."""

    planned_at_s: float
    workload: str


class BreakerEntry(HistoryRecord, frozen=True):
    """Whether a move helped, for the strategy's breaker; ``evaluated_at_s`` is unix seconds."""

    evaluated_at_s: float
    strategy: StrategyName
    has_helped: bool = False


class History(HistoryRecord, frozen=True):
    """State that the next leader continues from.

    Attributes:
        pending_moves: moves whose outcome is not known yet.
        backoffs: by workload (``namespace/Kind/name``) or replica (its uid), see `is_workload`.
        evictions: those of the last ``limits.workloadBackoffS``.
        breaker_entries: those of the last day, at most `MAX_BREAKER_ENTRIES`.
    """

    pending_moves: tuple[PendingMove, ...] = ()
    backoffs: dict[str, BackoffEntry] = {}
    evictions: tuple[EvictionEntry, ...] = ()
    breaker_entries: tuple[BreakerEntry, ...] = ()

    def active_backoff(self, key: str, now: float) -> BackoffEntry | None:
        """The active back-off of a workload or a replica; None if there is none."""
        backoff = self.backoffs.get(key)
        return backoff if backoff is not None and backoff.until_s > now else None


def short_uid(uid: str) -> str:
    """Eight hex digits that identify a pod within its workload, because hundreds of full uids would not fit into the ConfigMap."""
    return f"{zlib.crc32(uid.encode()):08x}"


def is_workload(key: str) -> bool:
    """Whether a key of `History.backoffs` is a workload, not a replica."""
    return "/" in key


def add_moves(history: History, moves: Sequence[PendingMove]) -> History:
    """The history with more pending moves, whose evictions count against the limits."""
    pending_moves = (*history.pending_moves, *moves)
    evictions = (*history.evictions, *(EvictionEntry(p.planned_at_s, p.move.workload) for p in moves))
    return msgspec.structs.replace(history, pending_moves=pending_moves, evictions=evictions)


def remove_move(history: History, move: PendingMove) -> History:
    """The history without a move whose pod was not evicted, and without its eviction."""
    evictions = list(history.evictions)
    eviction = EvictionEntry(move.planned_at_s, move.move.workload)
    if eviction in evictions:
        evictions.remove(eviction)
    other_moves = tuple(other for other in history.pending_moves if other.move.uid != move.move.uid)
    return msgspec.structs.replace(history, pending_moves=other_moves, evictions=tuple(evictions))


def extend_backoff(
    history: History, key: str, reason: str, base_s: float, now: float, *, cap_s: float = MAX_BACKOFF_S
) -> History:
    """The history with a longer back-off of a workload or a replica: ``base_s``, doubled with each failure up to ``cap_s``."""
    previous = history.backoffs.get(key)
    failures = (previous.failures if previous else 0) + 1
    until_s = now + backoff_delay_s(failures, base_s, cap_s)
    return set_backoff(history, key, BackoffEntry(until_s, failures, reason[:MAX_REASON_CHARS]))


def set_backoff(history: History, key: str, backoff: BackoffEntry) -> History:
    """The history with this back-off of a workload or a replica, with the `MAX_BACKOFFS` that end last."""
    backoffs = {**history.backoffs, key: backoff}
    if len(backoffs) > MAX_BACKOFFS:
        latest = sorted(backoffs, key=lambda key: backoffs[key].until_s)[-MAX_BACKOFFS:]
        backoffs = {key: backoffs[key] for key in latest}
    return msgspec.structs.replace(history, backoffs=backoffs)


def drop_expired(history: History, limits: LimitsConfig, now: float) -> History:
    """The history without expired entries. Failure counts outlive their back-off, so that repeated failures back off longer."""

    def retention_s(key: str, backoff: BackoffEntry) -> float:
        """Seconds for which an entry is kept after the end of its back-off."""
        if not backoff.failures:
            return 0.0
        return MAX_BACKOFF_S if is_workload(key) else limits.failure_backoff_s

    backoffs = {key: entry for key, entry in history.backoffs.items() if entry.until_s + retention_s(key, entry) > now}
    return msgspec.structs.replace(
        history,
        backoffs=backoffs,
        evictions=tuple(e for e in history.evictions if now - e.planned_at_s < limits.workload_backoff_s),
        breaker_entries=tuple(e for e in history.breaker_entries if now - e.evaluated_at_s <= DAY_S),
    )


_decode_history = msgspec.json.Decoder(History).decode


class HistoryStore:
    """Loads and saves the history in the ConfigMap ``netaware-descheduler`` of netaware's namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._saved = History()

    async def load(self) -> History:
        """The stored history; empty if the ConfigMap is absent or cannot be decoded.

        Raises:
            KubekitError: the ConfigMap was not read.
        """
        self._saved = History()
        try:
            config_map = await self._client.get(CONFIGMAPS, CONFIGMAP_NAME, ConfigMap, namespace=self._namespace)
            self._saved = _decode_history((config_map.data or {}).get(CONFIGMAP_KEY, "{}"))
        except ApiError as error:
            if not error.is_not_found:
                raise
        except DECODE_ERRORS as error:
            message = f"ConfigMap {CONFIGMAP_NAME} cannot be decoded; the history starts empty"
            log.log_change("history", str(error), message, error=error)
        return self._saved

    async def save(self, history: History) -> None:
        """Write the history, unless it is unchanged.

        Raises:
            KubekitError: the history was not written.
        """
        if history == self._saved:
            return
        data = {CONFIGMAP_KEY: msgspec.json.encode(history).decode()}
        body = {**CONFIGMAPS.type_meta, "metadata": {"name": CONFIGMAP_NAME, "labels": PART_OF_LABELS}, "data": data}
        await self._client.apply(
            CONFIGMAPS, CONFIGMAP_NAME, body, Object, field_manager=FIELD_MANAGER, namespace=self._namespace
        )
        self._saved = history
