"""What outlives a round, and in a ConfigMap a restart: moves being followed and judged, workloads at rest, what was spent."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from controller.cluster.resources import FIELD_MANAGER
from controller.descheduler.config import LimitsConfig, Strategy
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, DECODE_ERRORS, ConfigMap, Object
from netperf.contract import PART_OF

Outcome = Literal[
    "helped",
    "returned",
    "not-cooled",
    "moved-heat",
    "cost-not-fallen",
    "not-running",
    "lost",
    "not-replaced",
    "not-known",
    "not-evicted",
    "refused",
]
HOUR_S = 3600.0
MOST_RESTS = 2000
"""Workloads at rest that are remembered; about 150 bytes each in a ConfigMap of at most 1 MiB."""
MOST_TRIED = 1000
MOST_HEIRS = 5000
"""Twice what the default budget moves in a day; about 50 bytes each."""


class Remembered(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of what is written into the ConfigMap."""


class Followed(Remembered, frozen=True):
    """A move whose end is not known yet.

    Attributes:
        pod, uid: who was evicted.
        node: from where.
        target: where the plan expected it to go; empty when it had no expectation.
        at_s: when, unix seconds.
        used: amounts that leave the node.
        share_before: percent of the exceeded resources on the node, before any move of that round.
        relief: percent points of them that this move was to take off.
        high: the thresholds that were exceeded.
        cost_before: network cost at the node, for NetworkMisplacement.
        weight: what it costs of the hourly budget.
        pool: of the node, for LowNodeLoad.
        expected: marks (`mark_of`) of the nodes that it was expected to land on; empty where any but its own would do.
        known: marks (`mark_of`) of the workload's other pods at the time: none of them is the replacement.
        landed, landed_pod, landed_uid, landed_s: the replacement, once it is bound.
    """

    pod: str
    uid: str
    workload: str
    node: str
    at_s: float
    strategy: Strategy = "LowNodeLoad"
    target: str = ""
    group: str = ""
    used: dict[str, float] = {}
    share_before: dict[str, float] = {}
    relief: dict[str, float] = {}
    high: dict[str, float] = {}
    cost_before: int = 0
    weight: int = 1
    pool: str = ""
    expected: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    landed: str = ""
    landed_pod: str = ""
    landed_uid: str = ""
    landed_s: float = 0.0


def mark_of(uid: str) -> str:
    """Eight digits that tell the pods of one workload apart, so that hundreds of them fit into the memory."""
    return f"{zlib.crc32(uid.encode()):08x}"


class Rest(Remembered, frozen=True):
    """A workload that is left alone.

    Attributes:
        until_s: unix seconds.
        failures: moves in a row that did not help.
        why: outcome of the newest one.
    """

    until_s: float
    failures: int = 0
    why: str = ""


class Spent(Remembered, frozen=True):
    """An eviction that counts against limits over time."""

    at_s: float
    workload: str
    weight: int = 1


class Tried(Remembered, frozen=True):
    """A move that was judged.

    Attributes:
        pool: of the node, or what stands for one.
        came_true: the replacement landed where it was expected.
        helped: see `Outcome`.
    """

    at_s: float
    pool: str
    workload: str
    came_true: bool = False
    helped: bool = False


class Heir(Remembered, frozen=True):
    """A replacement of a pod that was moved.

    Attributes:
        at_s: when the move ended, unix seconds.
        vain: it did not help.
    """

    at_s: float
    vain: bool = False


class Memory(Remembered, frozen=True):
    """Everything that is remembered.

    Attributes:
        tried: judged moves, the newest `MOST_TRIED` of them.
        heirs: by mark (`mark_of`), the newest `MOST_HEIRS` of them.
        hold_until_s: the API server asked for patience until then.
    """

    follows: tuple[Followed, ...] = ()
    rests: dict[str, Rest] = {}
    spent: tuple[Spent, ...] = ()
    tried: tuple[Tried, ...] = ()
    heirs: dict[str, Heir] = {}
    hold_until_s: float = 0.0

    def resting(self, workload: str, now: float) -> Rest | None:
        """The workload's rest, if it is not over."""
        rest = self.rests.get(workload)
        return rest if rest is not None and rest.until_s > now else None

    def spent_since(self, start_s: float) -> int:
        """Weight of all evictions after ``start_s``."""
        return sum(entry.weight for entry in self.spent if entry.at_s > start_s)

    def moves_since(self, workload: str, start_s: float) -> int:
        """Evictions of one workload after ``start_s``."""
        return sum(1 for entry in self.spent if entry.workload == workload and entry.at_s > start_s)


_decode_memory = msgspec.json.Decoder(Memory).decode


def add_moves(memory: Memory, moves: Iterable[Followed]) -> Memory:
    """Remember moves about to be made: follow them, and count them against the budgets."""
    moves = tuple(moves)
    spent = tuple(Spent(move.at_s, move.workload, move.weight) for move in moves)
    return msgspec.structs.replace(memory, follows=memory.follows + moves, spent=memory.spent + spent)


def take_back(memory: Memory, move: Followed) -> Memory:
    """Forget a move that was not made after all, and give its budget back."""
    spent = list(memory.spent)
    for i, entry in enumerate(spent):
        if entry.at_s == move.at_s and entry.workload == move.workload:
            del spent[i]
            break
    follows = tuple(known for known in memory.follows if known.uid != move.uid)
    return msgspec.structs.replace(memory, follows=follows, spent=tuple(spent))


def add_tried(memory: Memory, tried: Tried) -> Memory:
    """Remember how a move was judged."""
    return msgspec.structs.replace(memory, tried=(*memory.tried, tried)[-MOST_TRIED:])


def add_heir(memory: Memory, mark: str, heir: Heir) -> Memory:
    """Remember who replaced a pod that was moved; of too many, those of the oldest moves are forgotten."""
    heirs = {**{known: found for known, found in memory.heirs.items() if known != mark}, mark: heir}
    return msgspec.structs.replace(memory, heirs=dict(list(heirs.items())[-MOST_HEIRS:]))


def put_to_rest(memory: Memory, workload: str, rest: Rest) -> Memory:
    """Leave a workload alone for a while; of too many, those whose rest ends first are forgotten."""
    rests = {**memory.rests, workload: rest}
    if len(rests) > MOST_RESTS:
        latest = sorted(rests, key=lambda name: rests[name].until_s)[-MOST_RESTS:]
        rests = {name: rests[name] for name in latest}
    return msgspec.structs.replace(memory, rests=rests)


def forget_old(memory: Memory, limits: LimitsConfig, now: float) -> Memory:
    """Drop what no rule asks for any more."""
    keep_s, failure_memory_s, trust_s = limits.workload_backoff_s, limits.longest_backoff_s, limits.trust_window_s
    heirs = {mark: heir for mark, heir in memory.heirs.items() if now - heir.at_s <= limits.rest_of(heir.vain)}
    tried = tuple(entry for entry in memory.tried if now - entry.at_s <= trust_s)
    spent = tuple(entry for entry in memory.spent if now - entry.at_s < max(keep_s, HOUR_S))
    rests: Mapping[str, Rest] = {
        name: rest
        for name, rest in memory.rests.items()
        if rest.until_s + (failure_memory_s if rest.failures else 0.0) > now
    }
    kept = msgspec.structs.replace(memory, spent=spent, rests=dict(rests), tried=tried, heirs=heirs)
    return memory if kept == memory else kept


log = logs.get("controller.descheduler")

NAME, KEY = "netaware-descheduler", "memory.json"


class MemoryStore:
    """The ConfigMap ``netaware-descheduler`` in netaware's namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._written: Memory | None = None

    async def load(self) -> Memory:
        """Read it; an absent one is an empty memory, and so is one that does not read, which is said once.

        Raises:
            KubekitError: the API server does not answer, or does not allow it.
        """
        try:
            found = await self._client.get(CONFIGMAPS, NAME, ConfigMap, namespace=self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return Memory()
        text = (found.data or {}).get(KEY, "{}")
        try:
            memory = _decode_memory(text)
        except DECODE_ERRORS as error:
            log.change("memory", str(error), "memory does not read and starts anew", configmap=NAME, error=error)
            return Memory()
        self._written = memory
        return memory

    async def save(self, memory: Memory) -> None:
        """Write it, unless it stands there already.

        Raises:
            KubekitError: it was not written.
        """
        if memory == self._written or (self._written is None and memory == Memory()):
            return
        data = {KEY: msgspec.json.encode(memory).decode()}
        metadata = {"name": NAME, "labels": PART_OF}
        body = {**CONFIGMAPS.type_meta, "metadata": metadata, "data": data}
        await self._client.apply(CONFIGMAPS, NAME, body, Object, field_manager=FIELD_MANAGER, namespace=self._namespace)
        self._written = memory
