"""Nodes that nobody can measure: their pairs move to other nodes, though the node is Ready and announces an agent.

Blame needs a witness. That a pair of nodes cannot be measured has four possible reasons, either node or either direction of
the path, and that nothing is heard from an agent has more. So a node is left out only when nodes of two zones (its own counts) cannot
measure it and nobody can, itself included. Where a suspect lacks witnesses, some are asked: their probes go into the plan,
and what they say decides. A cut between two zones leaves each of their nodes with others that reach it, hence blames nobody.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from netperf.pairs import ProbeNode
from netperf.plans import Probe, ZonePlan
from netperf.sample import Failure, Sample

FAILED_RUNS = 2
"""Failures in a row before a reporter counts."""
SILENT_ROUNDS = 4
SILENT_S = 300.0
"""An agent writes what does not change every three minutes or in every second round (agent.probing.results)."""
QUARANTINE_S = 900.0
WITNESS_ZONES = 2
MOST_SUSPECTS = 20

NodePair = tuple[str, str]


class Heard(msgspec.Struct, frozen=True, gc=False):
    """The newest word about a pair, by its writer's count and clock, and since when (our clock) there is no newer one."""

    mark: tuple[int, float] | None
    since_s: float


class Liveness(msgspec.Struct, frozen=True):
    """What is remembered from look to look.

    Attributes:
        heard: by planned pair of nodes.
        quarantine: nodes that are left out, and until when (our clock).
        witnesses: origin and destination of probes to plan, because a suspect lacks witnesses.
    """

    heard: Mapping[NodePair, Heard] = {}
    quarantine: Mapping[str, float] = {}
    witnesses: tuple[NodePair, ...] = ()


def update_liveness(
    before: Liveness,
    plans: Iterable[ZonePlan],
    samples: Iterable[Sample],
    failures: Iterable[Failure],
    *,
    now_s: float,
    interval_s: float,
) -> Liveness:
    """Look at the results once more.

    Args:
        before: from the last look; empty after a restart, which gives every pair its time anew.
        plans: in force.
        samples: all that there are.
        failures: all that no newer sample has overtaken.
        now_s: our clock.
        interval_s: length of a round.
    """
    # One word for each pair, the newest: a pair has a sample of each test, and of extra tests a new one in ten rounds only.
    told: list[Sample | Failure] = [*samples, *failures]
    words = {(w.origin.node, w.destination.node): w for w in sorted(told, key=lambda word: word.sequence)}
    probes = [probe for plan in plans for probe in plan.probes]
    heard: dict[NodePair, Heard] = {}
    for pair in {(p.origin.node, p.destination.node) for p in probes}:
        word, known = words.get(pair), before.heard.get(pair)
        mark = (word.sequence, word.taken_at) if word is not None else None
        heard[pair] = known if known is not None and known.mark == mark else Heard(mark, now_s)
    limit_s = max(SILENT_ROUNDS * interval_s, SILENT_S + 2 * interval_s)
    fresh = {pair: word for pair, word in words.items() if pair in heard and now_s - heard[pair].since_s <= limit_s}
    evidence = _Evidence(probes, fresh)
    quarantine = {node: until for node, until in before.quarantine.items() if until > now_s}
    quarantine |= {n: now_s + QUARANTINE_S for n in evidence.suspects if evidence.is_blamed(n)}
    doubtful = [n for n in evidence.suspects if n not in quarantine][:MOST_SUSPECTS]
    return Liveness(heard, quarantine, tuple(pair for node in doubtful for pair in evidence.call_witnesses(node)))


class _Evidence:
    """Who says what about whom."""

    def __init__(self, probes: Iterable[Probe], fresh: Mapping[NodePair, Sample | Failure]) -> None:
        self._zone: dict[str, str] = {}
        for probe in probes:
            self._zone |= {probe.origin.node: probe.origin.zone, probe.destination.node: probe.destination.zone}
        good = {pair for pair, word in fresh.items() if isinstance(word, Sample)}
        self._alive = {node for pair in good for node in pair}
        heard_datagrams = {p[0] for p in good if _by_datagrams(fresh[p])}
        self._reporters: dict[str, set[str]] = defaultdict(set)
        for (origin, destination), word in fresh.items():
            if not isinstance(word, Failure) or word.in_a_row < FAILED_RUNS:
                continue
            # A host that answers while datagrams do not come back: where UDP is filtered that says nothing of its agent.
            if origin in self._alive and (not word.alive or origin in heard_datagrams):
                self._reporters[destination].add(origin)
        speakers = {origin for origin, _ in fresh}
        silent = {probe.origin.node for probe in probes} - speakers
        self.suspects = sorted((self._reporters.keys() | silent) - self._alive)

    def is_blamed(self, node: str) -> bool:
        """Whether reporters of enough zones cannot measure the node."""
        return len({self._zone[origin] for origin in self._reporters[node]}) >= WITNESS_ZONES

    def call_witnesses(self, node: str) -> list[NodePair]:
        """Probes by a neighbour and by a node of yet another zone, both known to be alive."""
        asked = {self._zone[origin] for origin in self._reporters[node]}
        at_hand = sorted(self._alive - {node}, key=lambda name: _order(name, node))
        neighbour = next((n for n in at_hand if self._zone.get(n) == self._zone[node]), None)
        others = asked | {self._zone[node]}
        stranger = next((n for n in at_hand if n in self._zone and self._zone[n] not in others), None)
        reporters = sorted(self._reporters[node])[:1]
        return [(witness, node) for witness in (*reporters, neighbour, stranger) if witness is not None]


def _by_datagrams(word: Sample | Failure) -> bool:
    return isinstance(word, Sample) and (word.datagrams is not None or word.measurement.prober == "datagrams")


def _order(witness: str, node: str) -> bytes:
    return hashlib.blake2b(f"{witness}\0{node}".encode(), digest_size=8).digest()


def without_suspects(facts: Iterable[ProbeNode], quarantine: Mapping[str, float]) -> list[ProbeNode]:
    """The same facts, with suspects' agents taken for not ready; but no zone loses all its probers by it."""
    facts = list(facts)
    left = {f.zone for f in facts if f.name not in quarantine and f.ready and f.schedulable and f.agent_ready}
    return [
        msgspec.structs.replace(f, agent_ready=False) if f.name in quarantine and f.zone in left else f for f in facts
    ]
