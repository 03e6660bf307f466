"""Encodes the extender's answers (docs/contracts, section 7) from prepared pieces.

A scheduler of 10,000 nodes sends and reads half a megabyte per pod. Names are therefore grouped by place, whole places are
copied from pieces encoded once, and prioritize recognises the list that filter gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import msgspec
import numpy as np

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import NOWHERE
from controller.cluster.pods import Target
from controller.cluster.requests import amounts
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.rules import (
    MAX_SCORE,
    PlaceScore,
    ScoreTable,
    normalise,
    normalise_allocatable,
    raw_score,
    refusal,
)
from controller.scheduler.state import State

REASONS_LIMIT = 50
"""Refused nodes with a sentence each: kube-scheduler writes every different sentence into the pod's status."""
_END = b',"failedNodes":{},"failedAndUnresolvableNodes":{},"error":""}'
_ZONE_SCORE, _ZONE_SHARE, _OTHERS_SHARE = 70, 5, 2
"""The planned host scores 100, others of its zone 70 to 90 by the rule, all others 0 to 50."""

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(list[str]).decode


class Names(msgspec.Struct, frozen=True):
    """The nodes of a request.

    Attributes:
        raw: the JSON list as it came or went.
        by_place: index of a place -> its nodes that were named; the node's own index where all of a place were.
        count: how many.
    """

    raw: bytes
    by_place: Mapping[int, Sequence[str]]
    count: int


class NodeIndex:
    """Every node's name in the pieces that answers need, numbered, and grouped by place."""

    def __init__(self, state: State, allocatable: AllocatableArgs) -> None:
        self._state, self._allocatable = state, allocatable
        self._version = -1
        self._hosts: dict[str, bytes] = {}
        self._raw_scores: dict[str, int] = {}
        self._names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._places = np.zeros(0, np.int64)
        self._sizes = np.zeros(1, np.int64)
        self._members: list[list[str]] = []
        self._member_hosts: list[list[bytes]] = []
        self._joined: list[bytes] = []

    def refresh(self) -> None:
        """Follow changes of nodes."""
        state = self._state
        if self._version == state.node_version:
            return
        self._version = state.node_version
        self._names = list(state.place_of)
        self._number_of = {name: number for number, name in enumerate(self._names)}
        self._places = np.fromiter(state.place_of.values(), np.int64, count=len(self._names))
        self._sizes = np.bincount(self._places, minlength=len(state.places))
        self._members = [[] for _ in state.places]
        for name, place in state.place_of.items():
            self._members[place].append(name)
        self._member_hosts = [[self.host(name) for name in names] for names in self._members]
        self._joined = [_join_names(names) for names in self._members]
        self._raw_scores.clear()
        for name in self._hosts.keys() - state.place_of.keys():
            del self._hosts[name]

    def group(self, raw: bytes) -> Names:
        """Group the names of a JSON list by place; names that we have never seen go with `NOWHERE`.

        Raises:
            kubekit.wire.DECODE_ERRORS: it is no list of texts.
        """
        names = _decode_names(raw)
        numbers = np.fromiter(map(self._number_of.get, names, repeat(-1)), np.int64, len(names))
        unknown = dict.fromkeys(names[i] for i in np.flatnonzero(numbers < 0).tolist())
        numbers = numbers[numbers >= 0]
        named = np.flatnonzero(np.bincount(numbers, minlength=len(self._names)))
        places = self._places[named]
        counts = np.bincount(places, minlength=len(self._sizes))
        by_place: dict[int, Sequence[str]] = {}
        for place in np.flatnonzero(counts).tolist():
            if counts[place] == self._sizes[place]:
                by_place[place] = self._members[place]
            else:
                by_place[place] = [self._names[i] for i in named[places == place].tolist()]
        if unknown:
            by_place[0] = [*by_place.get(0, ()), *unknown]
        return Names(raw, by_place, len(named) + len(unknown))

    def is_whole(self, place: int, names: Sequence[str]) -> bool:
        """Whether a group is all of its place."""
        return names is self._members[place]

    def names_joined(self, place: int, names: Sequence[str]) -> bytes:
        """Names as the inside of a JSON list."""
        return self._joined[place] if self.is_whole(place, names) else _join_names(names)

    def hosts(self, place: int, names: Sequence[str]) -> Sequence[bytes]:
        """The beginnings of the entries of a prioritize answer."""
        return self._member_hosts[place] if self.is_whole(place, names) else [self.host(name) for name in names]

    def host(self, name: str) -> bytes:
        """The beginning of one entry."""
        known = self._hosts.get(name)
        if known is None:
            known = b'{"host":' + _encode(name)
            if name in self._state.place_of:
                self._hosts[name] = known
        return known

    def raw_score(self, name: str) -> int:
        """NodeResourcesAllocatable's score before it is normalised."""
        known = self._raw_scores.get(name)
        if known is None:
            facts = self._state.nodes.get(name)
            known = raw_score(amounts(facts.allocatable if facts else None), self._allocatable)
            if facts:
                self._raw_scores[name] = known
        return known


def _join_names(names: Iterable[str]) -> bytes:
    return _encode(list(names))[1:-1]


def pass_all(names: bytes) -> bytes:
    """The answer to a filter request that refuses nothing, without looking at the list."""
    return b'{"nodenames":' + names + _END


class Answers:
    """Encodes answers, and remembers the last list that filter gave, because prioritize asks about it next."""

    def __init__(self, state: State, overhead: NetworkOverheadArgs, allocatable: AllocatableArgs) -> None:
        self._state, self._overhead, self._allocatable = state, overhead, allocatable
        self._index = NodeIndex(state, allocatable)
        self._last_filtered: tuple[int, Names] | None = None

    def names(self, raw: bytes) -> Names:
        """The nodes of a request.

        Raises:
            kubekit.wire.DECODE_ERRORS: it is no list of texts.
        """
        self._index.refresh()
        if self._last_filtered is not None:
            version, given = self._last_filtered
            if version == self._state.node_version and given.raw == raw:
                return given
        return self._index.group(raw)

    def _remember(self, given: Names) -> Names:
        self._last_filtered = self._state.node_version, given
        return given

    def _remember_given(self, kept: Mapping[int, Sequence[str]]) -> Names:
        """These nodes as a list, remembered."""
        raw = b"[" + b",".join(self._index.names_joined(p, g) for p, g in kept.items()) + b"]"
        return self._remember(Names(raw, kept, sum(map(len, kept.values()))))

    def filter(self, names: Names, score_table: ScoreTable) -> tuple[bytes, int]:
        """The answer to a filter request, with nodes that pass grouped by place, and how many nodes it refuses."""
        refusals = [(place, group) for place, group in names.by_place.items() if not score_table.by_place[place].passes]
        if not refusals and all(place_score.passes for place_score in score_table.by_node.values()):
            return pass_all(self._remember(names).raw), 0
        kept: dict[int, Sequence[str]] = {}
        refused: dict[int, Sequence[str]] = {}
        exceptions = self._exceptions(score_table)
        for place, group in names.by_place.items():
            if place in exceptions:
                passing = {name for name in group if score_table.place_score(name, place).passes}
                kept[place] = [name for name in group if name in passing]
                refused[place] = [name for name in group if name not in passing]
            else:
                (kept if score_table.by_place[place].passes else refused)[place] = group
        given = self._remember_given({place: group for place, group in kept.items() if group})
        body = b'{"nodenames":' + given.raw + self._failures(refused, score_table) + b',"error":""}'
        return body, names.count - given.count

    def encode_planned(self, names: bytes, score_table: ScoreTable, target: Target) -> bytes | None:
        """Answer a filter request by the plan: its host alone or, where that was not asked about, what passes of its zone.

        By prioritize's scores one of these would win anyway; a scheduler that is spared thousands of names answers several
        times faster. None where nothing of the plan passes, and the plain rule is to answer.

        Raises:
            kubekit.wire.DECODE_ERRORS: the names are no list of texts.
        """
        place_of = self._state.place_of
        place = place_of.get(target.node)
        # A name is quoted as a whole, so what is found is that name and not a part of another.
        if place is not None and score_table.place_score(target.node, place).passes and _encode(target.node) in names:
            return pass_all(_encode([target.node]))
        kept: dict[int, Sequence[str]] = {}
        for number, group in self.names(names).by_place.items():
            location = self._state.places[number]
            if location.zone and location == target.location:
                passing = [name for name in group if score_table.place_score(name, number).passes]
                kept |= {number: group if len(passing) == len(group) else passing} if passing else {}
        if not kept:
            return None
        return pass_all(self._remember_given(kept).raw)

    def _exceptions(self, score_table: ScoreTable) -> set[int]:
        """Places with a node of which the filter thinks otherwise than of the rest."""
        place_of = self._state.place_of
        return {
            place_of[node]
            for node, place_score in score_table.by_node.items()
            if node in place_of and place_score.passes != score_table.by_place[place_of[node]].passes
        }

    def _failures(self, refused: Mapping[int, Sequence[str]], score_table: ScoreTable) -> bytes:
        """The refused nodes with reasons.

        Refusals are unresolvable: evicting pods makes no network nearer, and without saying so kube-scheduler would preempt
        for nothing. The first are in ``failedNodes`` as well, for readers who know only that; kube-scheduler lets the
        other map win. A sentence of its own for each of thousands of nodes would end up in the pod's status.
        """
        named: dict[str, str] = {}
        rest: list[bytes] = []
        for place, group in refused.items():
            left = max(REASONS_LIMIT - len(named), 0)
            named |= {name: refusal(name, score_table.place_score(name, place)) for name in group[:left]}
            if len(group) > left:
                rest.append(self._shared_reasons(place, group[left:], score_table.by_place[place]))
        first = _encode(named)
        every = b",".join(part for part in (first[1:-1], *rest) if part)
        return b',"failedNodes":' + first + b',"failedAndUnresolvableNodes":{' + every + b"}"

    def _shared_reasons(self, place: int, names: Sequence[str], place_score: PlaceScore) -> bytes:
        location = self._state.places[place]
        where = f"in {location.zone or location.region}" if location != NOWHERE else "without zone"
        text = f"{where}: network requirements from Workload dependencies, Satisfied: {place_score.satisfied} Violated: {place_score.violated}"
        reason = b":" + _encode(text)
        return (reason + b",").join([_encode(name) for name in names]) + reason

    def prioritize(self, names: Names, score_table: ScoreTable, target: Target | None, *, allocatable: bool) -> bytes:
        """Answer a prioritize request: lower accumulated cost scores higher, the plan's target highest.

        Args:
            names: from `names`.
            score_table: the rule's answer for the pod.
            target: where the plan wants the pod, None without a plan.
            allocatable: add NodeResourcesAllocatable's score, if it has a weight.
        """
        if not names.count:
            return b"[]"
        if score_table.neutral:
            score_table = ScoreTable(score_table.neutral, [PlaceScore()] * len(self._state.places))
        scores = self._scores(names, score_table, target)
        if allocatable and self._allocatable.weight:
            return self._combined(names, scores)
        parts: list[bytes] = []
        for place, group in names.by_place.items():
            score, special = scores[place]
            if special:
                parts += [b'%b,"score":%d}' % (self._index.host(n), special.get(n, score)) for n in group]
            else:
                end = b',"score":%d}' % score
                parts.append((end + b",").join(self._index.hosts(place, group)) + end)
        return b"[" + b",".join(parts) + b"]"

    def _scores(
        self, names: Names, score_table: ScoreTable, target: Target | None
    ) -> dict[int, tuple[int, Mapping[str, int]]]:
        """Per place a score, and those of its nodes that differ."""
        own: dict[int, dict[str, PlaceScore]] = {}
        for node, place_score in score_table.by_node.items():
            place = self._state.place_of.get(node)
            if place is not None:
                own.setdefault(place, {})[node] = place_score
        costs: list[int] = []
        for place, group in names.by_place.items():
            special = own.get(place, {})
            present = [n for n in special if self._index.is_whole(place, group) or n in group]
            own[place] = {n: special[n] for n in present}
            costs += [special[n].cost for n in present]
            if len(group) > len(present):
                costs.append(score_table.by_place[place].cost)
        low, high = min(costs), max(costs)
        found: dict[int, tuple[int, Mapping[str, int]]] = {}
        for place in names.by_place:
            score = normalise(score_table.by_place[place].cost, low, high)
            special_scores = {node: normalise(place_score.cost, low, high) for node, place_score in own[place].items()}
            found[place] = self._planned(place, score, special_scores, target)
        return found

    def _planned(
        self, place: int, score: int, special: dict[str, int], target: Target | None
    ) -> tuple[int, Mapping[str, int]]:
        """Put the plan before the plain rule: its host, then its zone by the rule, then the others by the rule."""
        weight = self._overhead.weight
        if target is None:
            return score * weight, {node: value * weight for node, value in special.items()}
        here = self._state.places[place] == target.location

        def place_score(value: int) -> int:
            return (_ZONE_SCORE + value // _ZONE_SHARE if here else value // _OTHERS_SHARE) * weight

        planned = {node: place_score(value) for node, value in special.items()}
        if self._state.place_of.get(target.node) == place:
            planned[target.node] = MAX_SCORE * weight
        return place_score(score), planned

    def _combined(self, names: Names, scores: Mapping[int, tuple[int, Mapping[str, int]]]) -> bytes:
        """Add NodeResourcesAllocatable's score, which differs from node to node."""
        raw = {name: self._index.raw_score(name) for group in names.by_place.values() for name in group}
        low, high = min(raw.values()), max(raw.values())
        weight = self._allocatable.weight
        parts: list[bytes] = []
        for place, group in names.by_place.items():
            score, special = scores[place]
            for name in group:
                total = special.get(name, score) + weight * normalise_allocatable(raw[name], low, high)
                parts.append(b'%b,"score":%d}' % (self._index.host(name), total))
        return b"[" + b",".join(parts) + b"]"
