"""Nodes from which nothing is heard: their pairs move to other nodes, though the node is Ready and announces an agent.

A probe that fails writes no sample, so a planned pair whose sample does not change for some rounds is silent. A pair has two
ends, and which of them is bad shows in their other pairs: a node is suspected when all of its pairs are silent. Two zones
that are cut off from each other have other pairs that speak, hence suspect nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from netperf.pairs import NodeFacts
from netperf.plans import ZonePlan
from netperf.sample import Sample

SILENT_ROUNDS = 4
QUARANTINE_S = 900.0
FEW_PAIRS = 3

NodePair = tuple[str, str]


class Heard(msgspec.Struct, frozen=True):
    """The newest sample of a pair, by its writer's count and clock, and since when (our clock) there is no newer one."""

    mark: tuple[int, float] | None
    since_s: float


class Listening(msgspec.Struct, frozen=True):
    """What is remembered from look to look.

    Attributes:
        heard: by planned pair of nodes.
        quarantine: suspected nodes, and until when (our clock) they are left out.
    """

    heard: Mapping[NodePair, Heard] = {}
    quarantine: Mapping[str, float] = {}


def listen(
    before: Listening, plans: Iterable[ZonePlan], samples: Iterable[Sample], now_s: float, interval_s: float
) -> Listening:
    """Look at the results once more.

    Args:
        before: from the last look; empty after a restart, which gives every pair its time anew.
        plans: in force.
        samples: all that there are.
        now_s: our clock.
        interval_s: length of a round.
    """
    marks = {(s.origin.node, s.destination.node): (s.sequence, s.taken_at) for s in samples}
    heard: dict[NodePair, Heard] = {}
    for plan in plans:
        for probe in plan.probes:
            pair = probe.origin.node, probe.destination.node
            known, mark = before.heard.get(pair), marks.get(pair)
            heard[pair] = known if known is not None and known.mark == mark else Heard(mark, now_s)
    limit_s = SILENT_ROUNDS * interval_s
    silent = {pair for pair, found in heard.items() if now_s - found.since_s > limit_s}
    quarantine = {node: until for node, until in before.quarantine.items() if until > now_s}
    quarantine |= dict.fromkeys(_suspects(heard.keys(), silent), now_s + QUARANTINE_S)
    return Listening(heard, quarantine)


def _suspects(pairs: Iterable[NodePair], silent: set[NodePair]) -> list[str]:
    of_node: dict[str, list[bool]] = defaultdict(list)
    count = 0
    for pair in pairs:
        count += 1
        for node in pair:
            of_node[node].append(pair in silent)
    suspects = [node for node, found in of_node.items() if all(found)]
    # Where most of a larger plan is silent, the network or the agents' rollout is at fault, and moving pairs helps nobody.
    if count > FEW_PAIRS and 2 * len(suspects) > len(of_node):
        return []
    return suspects


def without_suspects(facts: Iterable[NodeFacts], quarantine: Mapping[str, float]) -> list[NodeFacts]:
    """The same facts, with suspects' agents taken for not ready; but no zone loses all its probers by it."""
    facts = list(facts)
    left = {f.zone for f in facts if f.name not in quarantine and f.ready and f.schedulable and f.agent_ready}
    return [
        msgspec.structs.replace(f, agent_ready=False) if f.name in quarantine and f.zone in left else f for f in facts
    ]
