"""Encodes the extender's answers (docs/contracts, section 7) from prepared pieces.

A scheduler of 10,000 nodes sends and reads half a megabyte per pod. Names are therefore grouped by location, whole locations are
copied from pieces encoded once, and prioritize recognises the list that filter gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import msgspec
import numpy as np

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import NO_LOCATION
from controller.cluster.pods import Target
from controller.cluster.requests import amounts
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.rules import (
    MAX_SCORE,
    NodeScore,
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
        by_location: index of a location -> its nodes that were named; the list of `NodeIndex` itself where all were.
        count: how many.
    """

    raw: bytes
    by_location: Mapping[int, Sequence[str]]
    count: int


class NodeIndex:
    """Every node's name in the pieces that answers need, numbered, and grouped by location."""

    def __init__(self, state: State, allocatable: AllocatableArgs) -> None:
        self._state, self._allocatable = state, allocatable
        self._version = -1
        self._hosts: dict[str, bytes] = {}
        self._raw_scores: dict[str, int] = {}
        self._names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._locations = np.zeros(0, np.int64)
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
        self._names = list(state.location_index)
        self._number_of = {name: number for number, name in enumerate(self._names)}
        self._locations = np.fromiter(state.location_index.values(), np.int64, count=len(self._names))
        self._sizes = np.bincount(self._locations, minlength=len(state.locations))
        self._members = [[] for _ in state.locations]
        for name, index in state.location_index.items():
            self._members[index].append(name)
        self._member_hosts = [[self.host(name) for name in names] for names in self._members]
        self._joined = [_join_names(names) for names in self._members]
        self._raw_scores.clear()
        for name in self._hosts.keys() - state.location_index.keys():
            del self._hosts[name]

    def group(self, raw: bytes) -> Names:
        """Group the names of a JSON list by location; names that we have never seen go with `NO_LOCATION`.

        Raises:
            kubekit.wire.DECODE_ERRORS: it is no list of texts.
        """
        names = _decode_names(raw)
        numbers = np.fromiter(map(self._number_of.get, names, repeat(-1)), np.int64, len(names))
        unknown = dict.fromkeys(names[i] for i in np.flatnonzero(numbers < 0).tolist())
        numbers = numbers[numbers >= 0]
        named = np.flatnonzero(np.bincount(numbers, minlength=len(self._names)))
        locations = self._locations[named]
        counts = np.bincount(locations, minlength=len(self._sizes))
        by_location: dict[int, Sequence[str]] = {}
        for index in np.flatnonzero(counts).tolist():
            if counts[index] == self._sizes[index]:
                by_location[index] = self._members[index]
            else:
                by_location[index] = [self._names[i] for i in named[locations == index].tolist()]
        if unknown:
            by_location[0] = [*by_location.get(0, ()), *unknown]
        return Names(raw, by_location, len(named) + len(unknown))

    def is_whole(self, index: int, names: Sequence[str]) -> bool:
        """Whether a group is all nodes of its location."""
        return names is self._members[index]

    def names_joined(self, index: int, names: Sequence[str]) -> bytes:
        """Names as the inside of a JSON list."""
        return self._joined[index] if self.is_whole(index, names) else _join_names(names)

    def hosts(self, index: int, names: Sequence[str]) -> Sequence[bytes]:
        """The beginnings of the entries of a prioritize answer."""
        return self._member_hosts[index] if self.is_whole(index, names) else [self.host(name) for name in names]

    def host(self, name: str) -> bytes:
        """The beginning of one entry."""
        known = self._hosts.get(name)
        if known is None:
            known = b'{"host":' + _encode(name)
            if name in self._state.location_index:
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
        """The answer to a filter request, with nodes that pass grouped by location, and how many nodes it refuses."""
        refusals = [
            (index, group) for index, group in names.by_location.items() if not score_table.by_location[index].passes
        ]
        if not refusals and all(node_score.passes for node_score in score_table.by_node.values()):
            return pass_all(self._remember(names).raw), 0
        kept: dict[int, Sequence[str]] = {}
        refused: dict[int, Sequence[str]] = {}
        exceptions = self._exceptions(score_table)
        for index, group in names.by_location.items():
            if index in exceptions:
                passing = {name for name in group if score_table.node_score(name, index).passes}
                kept[index] = [name for name in group if name in passing]
                refused[index] = [name for name in group if name not in passing]
            else:
                (kept if score_table.by_location[index].passes else refused)[index] = group
        given = self._remember_given({index: group for index, group in kept.items() if group})
        body = b'{"nodenames":' + given.raw + self._failures(refused, score_table) + b',"error":""}'
        return body, names.count - given.count

    def encode_planned(self, names: bytes, score_table: ScoreTable, target: Target) -> bytes | None:
        """Answer a filter request by the plan: its host alone or, where that was not asked about, what passes of its zone.

        By prioritize's scores one of these would win anyway; a scheduler that is spared thousands of names answers several
        times faster. None where nothing of the plan passes, and the plain rule is to answer.

        Raises:
            kubekit.wire.DECODE_ERRORS: the names are no list of texts.
        """
        location_index = self._state.location_index
        index = location_index.get(target.node)
        # A name is quoted as a whole, so what is found is that name and not a part of another.
        if index is not None and score_table.node_score(target.node, index).passes and _encode(target.node) in names:
            return pass_all(_encode([target.node]))
        kept: dict[int, Sequence[str]] = {}
        for number, group in self.names(names).by_location.items():
            location = self._state.locations[number]
            if location.zone and location == target.location:
                passing = [name for name in group if score_table.node_score(name, number).passes]
                kept |= {number: group if len(passing) == len(group) else passing} if passing else {}
        if not kept:
            return None
        return pass_all(self._remember_given(kept).raw)

    def _exceptions(self, score_table: ScoreTable) -> set[int]:
        """Locations with a node of which the filter thinks otherwise than of the rest."""
        location_index = self._state.location_index
        return {
            location_index[node]
            for node, node_score in score_table.by_node.items()
            if node in location_index and node_score.passes != score_table.by_location[location_index[node]].passes
        }

    def _failures(self, refused: Mapping[int, Sequence[str]], score_table: ScoreTable) -> bytes:
        """The refused nodes with reasons.

        Refusals are unresolvable: evicting pods makes no network nearer, and without saying so kube-scheduler would preempt
        for nothing. The first are in ``failedNodes`` as well, for readers who know only that; kube-scheduler lets the
        other map win. A sentence of its own for each of thousands of nodes would end up in the pod's status.
        """
        named: dict[str, str] = {}
        rest: list[bytes] = []
        for index, group in refused.items():
            left = max(REASONS_LIMIT - len(named), 0)
            named |= {name: refusal(name, score_table.node_score(name, index)) for name in group[:left]}
            if len(group) > left:
                rest.append(self._shared_reasons(index, group[left:], score_table.by_location[index]))
        first = _encode(named)
        every = b",".join(part for part in (first[1:-1], *rest) if part)
        return b',"failedNodes":' + first + b',"failedAndUnresolvableNodes":{' + every + b"}"

    def _shared_reasons(self, index: int, names: Sequence[str], node_score: NodeScore) -> bytes:
        location = self._state.locations[index]
        where = f"in {location.zone or location.region}" if location != NO_LOCATION else "without zone"
        text = f"{where}: network requirements from Workload dependencies, Satisfied: {node_score.satisfied} Violated: {node_score.violated}"
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
            score_table = ScoreTable(score_table.neutral, [NodeScore()] * len(self._state.locations))
        scores = self._scores(names, score_table, target)
        if allocatable and self._allocatable.weight:
            return self._combined(names, scores)
        parts: list[bytes] = []
        for index, group in names.by_location.items():
            score, special = scores[index]
            if special:
                parts += [b'%b,"score":%d}' % (self._index.host(n), special.get(n, score)) for n in group]
            else:
                end = b',"score":%d}' % score
                parts.append((end + b",").join(self._index.hosts(index, group)) + end)
        return b"[" + b",".join(parts) + b"]"

    def _scores(
        self, names: Names, score_table: ScoreTable, target: Target | None
    ) -> dict[int, tuple[int, Mapping[str, int]]]:
        """Per location a score, and those of its nodes that differ."""
        own: dict[int, dict[str, NodeScore]] = {}
        for node, node_score in score_table.by_node.items():
            index = self._state.location_index.get(node)
            if index is not None:
                own.setdefault(index, {})[node] = node_score
        costs: list[int] = []
        for index, group in names.by_location.items():
            special = own.get(index, {})
            present = [n for n in special if self._index.is_whole(index, group) or n in group]
            own[index] = {n: special[n] for n in present}
            costs += [special[n].cost for n in present]
            if len(group) > len(present):
                costs.append(score_table.by_location[index].cost)
        low, high = min(costs), max(costs)
        found: dict[int, tuple[int, Mapping[str, int]]] = {}
        for index in names.by_location:
            score = normalise(score_table.by_location[index].cost, low, high)
            special_scores = {node: normalise(node_score.cost, low, high) for node, node_score in own[index].items()}
            found[index] = self._planned(index, score, special_scores, target)
        return found

    def _planned(
        self, index: int, score: int, special: dict[str, int], target: Target | None
    ) -> tuple[int, Mapping[str, int]]:
        """Put the plan before the plain rule: its host, then its zone by the rule, then the others by the rule."""
        weight = self._overhead.weight
        if target is None:
            return score * weight, {node: value * weight for node, value in special.items()}
        here = self._state.locations[index] == target.location

        def node_score(value: int) -> int:
            return (_ZONE_SCORE + value // _ZONE_SHARE if here else value // _OTHERS_SHARE) * weight

        planned = {node: node_score(value) for node, value in special.items()}
        if self._state.location_index.get(target.node) == index:
            planned[target.node] = MAX_SCORE * weight
        return node_score(score), planned

    def _combined(self, names: Names, scores: Mapping[int, tuple[int, Mapping[str, int]]]) -> bytes:
        """Add NodeResourcesAllocatable's score, which differs from node to node."""
        raw = {name: self._index.raw_score(name) for group in names.by_location.values() for name in group}
        low, high = min(raw.values()), max(raw.values())
        weight = self._allocatable.weight
        parts: list[bytes] = []
        for index, group in names.by_location.items():
            score, special = scores[index]
            for name in group:
                total = special.get(name, score) + weight * normalise_allocatable(raw[name], low, high)
                parts.append(b'%b,"score":%d}' % (self._index.host(name), total))
        return b"[" + b",".join(parts) + b"]"
