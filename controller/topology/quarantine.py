"""Finds nodes that cannot be measured, so that other nodes represent their zone.

A failed pair has four possible reasons: either node, or either direction of the path; silence of an agent has more. So a node is
excluded only if nodes in two zones (its own counts) fail to reach it, and no node reaches it, itself included. If too few nodes have
tried, additional pairs go into the probe plan, and their results decide. A cut between two zones leaves each node with others
that reach it, so that it excludes none.
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
"""Failures in a row before a failed pair counts."""
SILENT_ROUNDS = 4
SILENT_S = 300.0
"""An agent repeats unchanged results every three minutes, or in every second round (agent.probing.results)."""
QUARANTINE_S = 900.0
FAILING_ZONES = 2
MAX_SUSPECTS = 20

NodePair = tuple[str, str]


class LastResult(msgspec.Struct, frozen=True, gc=False):
    """The newest result of a pair, by its writer's sequence and time (``version``), and when we first saw it (our clock)."""

    version: tuple[int, float] | None
    since_s: float


class Liveness(msgspec.Struct, frozen=True):
    """The state between two evaluations.

    Attributes:
        last_results: by planned pair of nodes.
        quarantine: excluded nodes, and until when (our clock).
        additional_pairs: origin and destination of probes to plan, because too few nodes have tried a suspect.
    """

    last_results: Mapping[NodePair, LastResult] = {}
    quarantine: Mapping[str, float] = {}
    additional_pairs: tuple[NodePair, ...] = ()


def update_liveness(
    before: Liveness,
    plans: Iterable[ZonePlan],
    samples: Iterable[Sample],
    failures: Iterable[Failure],
    *,
    now_s: float,
    interval_s: float,
) -> Liveness:
    """Find the unreachable nodes by the results of a round.

    Args:
        before: from the last call; empty after a restart, which restarts every pair's time limit.
        plans: the current ones.
        samples: all.
        failures: those without a newer sample.
        now_s: our clock.
        interval_s: length of a round.
    """
    # The newest result of each pair: it has a sample of each test, and of extra tests a new one in ten rounds only.
    every: list[Sample | Failure] = [*samples, *failures]
    in_order = sorted(every, key=lambda result: result.sequence)
    results = {(r.origin.node, r.destination.node): r for r in in_order}
    probes = [probe for plan in plans for probe in plan.probes]
    last: dict[NodePair, LastResult] = {}
    for pair in {(p.origin.node, p.destination.node) for p in probes}:
        result, known = results.get(pair), before.last_results.get(pair)
        version = (result.sequence, result.taken_at) if result is not None else None
        last[pair] = known if known is not None and known.version == version else LastResult(version, now_s)
    limit_s = max(SILENT_ROUNDS * interval_s, SILENT_S + 2 * interval_s)
    fresh = {pair: r for pair, r in results.items() if pair in last and now_s - last[pair].since_s <= limit_s}
    evidence = _Evidence(probes, fresh)
    quarantine = {node: until for node, until in before.quarantine.items() if until > now_s}
    quarantine |= {n: now_s + QUARANTINE_S for n in evidence.suspects if evidence.is_unreachable(n)}
    open_cases = [n for n in evidence.suspects if n not in quarantine][:MAX_SUSPECTS]
    return Liveness(last, quarantine, tuple(pair for node in open_cases for pair in evidence.additional_pairs(node)))


class _Evidence:
    """Which nodes reach which, by fresh results."""

    def __init__(self, probes: Iterable[Probe], fresh: Mapping[NodePair, Sample | Failure]) -> None:
        self._zone: dict[str, str] = {}
        for probe in probes:
            self._zone |= {probe.origin.node: probe.origin.zone, probe.destination.node: probe.destination.zone}
        good = {pair for pair, result in fresh.items() if isinstance(result, Sample)}
        self._alive = {node for pair in good for node in pair}
        sent_datagrams = {p[0] for p in good if _by_datagrams(fresh[p])}
        self._failing: dict[str, set[str]] = defaultdict(set)
        for (origin, destination), result in fresh.items():
            if not isinstance(result, Failure) or result.in_a_row < FAILED_RUNS:
                continue
            # If UDP is filtered, a host that answers while datagrams do not come back proves nothing about its agent.
            if origin in self._alive and (not result.alive or origin in sent_datagrams):
                self._failing[destination].add(origin)
        silent = {probe.origin.node for probe in probes} - {origin for origin, _ in fresh}
        self.suspects = sorted((self._failing.keys() | silent) - self._alive)

    def is_unreachable(self, node: str) -> bool:
        """Whether nodes in enough zones fail to reach the node."""
        return len({self._zone[origin] for origin in self._failing[node]}) >= FAILING_ZONES

    def additional_pairs(self, node: str) -> list[NodePair]:
        """Probes by a neighbour and by a node of yet another zone, both known to be alive."""
        tried = {self._zone[origin] for origin in self._failing[node]}
        candidates = sorted(self._alive - {node}, key=lambda name: _order(name, node))
        neighbour = next((n for n in candidates if self._zone.get(n) == self._zone[node]), None)
        others = tried | {self._zone[node]}
        remote = next((n for n in candidates if n in self._zone and self._zone[n] not in others), None)
        failing = sorted(self._failing[node])[:1]
        return [(origin, node) for origin in (*failing, neighbour, remote) if origin is not None]


def _by_datagrams(result: Sample | Failure) -> bool:
    return isinstance(result, Sample) and (result.datagrams is not None or result.measurement.prober == "datagrams")


def _order(origin: str, node: str) -> bytes:
    return hashlib.blake2b(f"{origin}\0{node}".encode(), digest_size=8).digest()


def without_suspects(facts: Iterable[ProbeNode], quarantine: Mapping[str, float]) -> list[ProbeNode]:
    """The nodes with quarantined agents as not ready; a zone keeps its last probers."""
    facts = list(facts)
    left = {f.zone for f in facts if f.name not in quarantine and f.ready and f.schedulable and f.agent_ready}
    return [
        msgspec.structs.replace(f, agent_ready=False) if f.name in quarantine and f.zone in left else f for f in facts
    ]
