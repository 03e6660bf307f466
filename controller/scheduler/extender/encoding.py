"""Decodes the extender's node names, and encodes its answers (docs/contracts.md, section 7) from JSON that is prepared once.

With 10,000 nodes, requests and answers of one pod have half a megabyte. Node names are therefore grouped by location, the JSON of whole
locations is copied, and a prioritize request with the list that filter returned is not decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import NO_LOCATION
from controller.cluster.pods import Target
from controller.cluster.resource_requests import parse_amounts
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.rules import (
    MAX_SCORE,
    NodeScore,
    ScoreTable,
    failed_filter_message,
    normalise_allocatable_score,
    normalise_cost,
    raw_allocatable_score,
)
from controller.scheduler.state import NO_LOCATION_INDEX, State

MAX_NODE_REASONS = 50
"""Refused nodes with a reason of their own; kube-scheduler writes every different reason into the pod's status."""
_NO_FAILURES = b',"failedNodes":{},"failedAndUnresolvableNodes":{},"error":""}'
_PLANNED_ZONE_BASE, _PLANNED_ZONE_DIVISOR, _OTHER_ZONES_DIVISOR = 70, 5, 2
"""Before the weight, the planned node scores 100, other nodes of its zone 70 to 90 by the rule, nodes of other zones 0 to 50."""

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(list[str]).decode


class NodeNames(msgspec.Struct, frozen=True):
    """The nodes of a request or of filter's answer.

    Attributes:
        json: the list as it was received or sent.
        by_location: index of a location -> its nodes in the list; the same object as in `NodeIndex` if these are all its nodes.
        count: number of different nodes.
    """

    json: bytes
    by_location: Mapping[int, Sequence[str]]
    count: int


class _LocationScores(NamedTuple):
    """The weighted score of a location's nodes, and node -> weighted score of the nodes with a score of their own."""

    score: int
    by_node: Mapping[str, int]


class NodeIndex:
    """All node names grouped by location, with their JSON for answers.

    ``_names`` and ``_location_of_node`` are by number of a node; ``_sizes`` and the lists ``..._of_location`` are by index of a location.
    An entry head is the start of a node's entry in a prioritize answer: the node's name without the score.
    """

    def __init__(self, state: State, allocatable: AllocatableArgs) -> None:
        self._state, self._allocatable = state, allocatable
        self._version = -1
        self._entry_heads: dict[str, bytes] = {}
        self._raw_scores: dict[str, int] = {}
        self._names: list[str] = []
        self._number_by_name: dict[str, int] = {}
        self._location_of_node = np.zeros(0, np.int64)
        self._sizes = np.zeros(1, np.int64)
        self._names_of_location: list[list[str]] = []
        self._entry_heads_of_location: list[list[bytes]] = []
        self._joined_names_of_location: list[bytes] = []

    def refresh(self) -> None:
        """Update the index if nodes have changed."""
        state = self._state
        if self._version == state.node_version:
            return
        self._version = state.node_version
        self._names = list(state.location_index)
        self._number_by_name = {name: number for number, name in enumerate(self._names)}
        self._location_of_node = np.fromiter(state.location_index.values(), np.int64, count=len(self._names))
        self._sizes = np.bincount(self._location_of_node, minlength=len(state.locations))
        self._names_of_location = [[] for _ in state.locations]
        for name, index in state.location_index.items():
            self._names_of_location[index].append(name)
        self._entry_heads_of_location = [[self.entry_head(name) for name in names] for names in self._names_of_location]
        self._joined_names_of_location = [_join_names(names) for names in self._names_of_location]
        self._raw_scores.clear()
        for name in self._entry_heads.keys() - state.location_index.keys():
            del self._entry_heads[name]

    def group_by_location(self, names_json: bytes) -> NodeNames:
        """Group the names of a JSON list by location; unknown names count as nodes at `NO_LOCATION`.

        Raises:
            kubekit.wire.DECODE_ERRORS: the JSON is not a list of strings.
        """
        names = _decode_names(names_json)
        numbers = np.fromiter(map(self._number_by_name.get, names, repeat(-1)), np.int64, len(names))
        unknown = dict.fromkeys(names[i] for i in np.flatnonzero(numbers < 0).tolist())
        numbers = numbers[numbers >= 0]
        distinct = np.flatnonzero(np.bincount(numbers, minlength=len(self._names)))
        locations = self._location_of_node[distinct]
        counts = np.bincount(locations, minlength=len(self._sizes))
        by_location: dict[int, Sequence[str]] = {}
        for index in np.flatnonzero(counts).tolist():
            if counts[index] == self._sizes[index]:
                by_location[index] = self._names_of_location[index]
            else:
                by_location[index] = [self._names[i] for i in distinct[locations == index].tolist()]
        if unknown:
            by_location[NO_LOCATION_INDEX] = [*by_location.get(NO_LOCATION_INDEX, ()), *unknown]
        return NodeNames(names_json, by_location, len(distinct) + len(unknown))

    def are_all_nodes(self, index: int, names: Sequence[str]) -> bool:
        """Whether names of a `NodeNames` are all nodes of the location."""
        return names is self._names_of_location[index]

    def join_names(self, index: int, names: Sequence[str]) -> bytes:
        """Node names as the elements of a JSON list, without the list's brackets."""
        return self._joined_names_of_location[index] if self.are_all_nodes(index, names) else _join_names(names)

    def entry_heads(self, index: int, names: Sequence[str]) -> Sequence[bytes]:
        """The entry heads of a location's nodes."""
        if self.are_all_nodes(index, names):
            return self._entry_heads_of_location[index]
        return [self.entry_head(name) for name in names]

    def entry_head(self, name: str) -> bytes:
        """The entry head of a node."""
        head = self._entry_heads.get(name)
        if head is None:
            head = b'{"host":' + _encode(name)
            if name in self._state.location_index:
                self._entry_heads[name] = head
        return head

    def raw_score(self, name: str) -> int:
        """NodeResourcesAllocatable's score of a node before normalisation."""
        score = self._raw_scores.get(name)
        if score is None:
            node = self._state.nodes.get(name)
            score = raw_allocatable_score(parse_amounts(node.allocatable if node else None), self._allocatable)
            if node:
                self._raw_scores[name] = score
        return score


def _join_names(names: Iterable[str]) -> bytes:
    return _encode(list(names))[1:-1]


def encode_pass_all(names_json: bytes) -> bytes:
    """The answer to a filter request that passes the nodes of this JSON list."""
    return b'{"nodenames":' + names_json + _NO_FAILURES


class AnswerEncoder:
    """Encodes answers, and remembers the last list that filter returned, because the next prioritize request usually has the same list."""

    def __init__(self, state: State, overhead: NetworkOverheadArgs, allocatable: AllocatableArgs) -> None:
        self._state, self._overhead, self._allocatable = state, overhead, allocatable
        self._index = NodeIndex(state, allocatable)
        self._last_filtered: tuple[int, NodeNames] | None = None
        """The version of the nodes, and the list."""

    def parse_names(self, names_json: bytes) -> NodeNames:
        """The nodes of a request.

        Raises:
            kubekit.wire.DECODE_ERRORS: the JSON is not a list of strings.
        """
        self._index.refresh()
        if self._last_filtered is not None:
            version, filtered = self._last_filtered
            if version == self._state.node_version and filtered.json == names_json:
                return filtered
        return self._index.group_by_location(names_json)

    def _remember_filtered(self, filtered: NodeNames) -> None:
        self._last_filtered = self._state.node_version, filtered

    def _join_and_remember(self, passed: Mapping[int, Sequence[str]]) -> NodeNames:
        """The passed nodes of all locations, index of a location -> nodes, in one list, which is remembered."""
        names_json = b"[" + b",".join(self._index.join_names(index, names) for index, names in passed.items()) + b"]"
        filtered = NodeNames(names_json, passed, sum(map(len, passed.values())))
        self._remember_filtered(filtered)
        return filtered

    def encode_filter(self, names: NodeNames, score_table: ScoreTable) -> tuple[bytes, int]:
        """The answer to a filter request by the rule, and the number of refused nodes."""
        location_scores = (score_table.by_location[index] for index in names.by_location)
        if all(score.passes for score in (*location_scores, *score_table.by_node.values())):
            self._remember_filtered(names)
            return encode_pass_all(names.json), 0
        passed: dict[int, Sequence[str]] = {}
        refused: dict[int, Sequence[str]] = {}
        mixed_locations = self._mixed_locations(score_table)
        for index, nodes in names.by_location.items():
            if index in mixed_locations:
                passes = {name: score_table.node_score(name, index).passes for name in nodes}
                passed[index] = [name for name in nodes if passes[name]]
                refused[index] = [name for name in nodes if not passes[name]]
            elif score_table.by_location[index].passes:
                passed[index] = nodes
            else:
                refused[index] = nodes
        filtered = self._join_and_remember({index: nodes for index, nodes in passed.items() if nodes})
        answer = b'{"nodenames":' + filtered.json + self._encode_failures(refused, score_table) + b',"error":""}'
        return answer, names.count - filtered.count

    def encode_planned_filter(self, names_json: bytes, score_table: ScoreTable, target: Target) -> bytes | None:
        """The answer to a filter request by the plan: its node, or the nodes of its zone that pass; None if there are none.

        Prioritize would score these nodes highest anyway, and the scheduler is faster with a short list.

        Raises:
            kubekit.wire.DECODE_ERRORS: the JSON is not a list of strings.
        """
        location_index = self._state.location_index
        index = location_index.get(target.node)
        # The encoded name has quotes, so it is not a part of another name.
        is_requested = _encode(target.node) in names_json
        if index is not None and is_requested and score_table.node_score(target.node, index).passes:
            return encode_pass_all(_encode([target.node]))
        passed: dict[int, Sequence[str]] = {}
        for number, nodes in self.parse_names(names_json).by_location.items():
            location = self._state.locations[number]
            if location.zone and location == target.location:
                passing = [name for name in nodes if score_table.node_score(name, number).passes]
                if passing:
                    passed[number] = nodes if len(passing) == len(nodes) else passing
        return encode_pass_all(self._join_and_remember(passed).json) if passed else None

    def _mixed_locations(self, score_table: ScoreTable) -> set[int]:
        """Indexes of the locations of which filter passes some nodes and refuses others."""
        location_index = self._state.location_index
        return {
            location_index[node]
            for node, node_score in score_table.by_node.items()
            if node in location_index and node_score.passes != score_table.by_location[location_index[node]].passes
        }

    def _encode_failures(self, refused: Mapping[int, Sequence[str]], score_table: ScoreTable) -> bytes:
        """The refused nodes with reasons.

        All nodes are in ``failedAndUnresolvableNodes``, so that kube-scheduler does not try to evict pods there. The first
        `MAX_NODE_REASONS` are in ``failedNodes`` too, for clients that read only this field; the others share one reason per location.
        """
        reasons: dict[str, str] = {}
        shared: list[bytes] = []
        for index, nodes in refused.items():
            count = max(MAX_NODE_REASONS - len(reasons), 0)
            for name in nodes[:count]:
                reasons[name] = failed_filter_message(name, score_table.node_score(name, index))
            if len(nodes) > count:
                shared.append(self._encode_shared_reason(index, nodes[count:], score_table.by_location[index]))
        failed = _encode(reasons)
        unresolvable = b",".join(part for part in (failed[1:-1], *shared) if part)
        return b',"failedNodes":' + failed + b',"failedAndUnresolvableNodes":{' + unresolvable + b"}"

    def _encode_shared_reason(self, index: int, names: Sequence[str], node_score: NodeScore) -> bytes:
        location = self._state.locations[index]
        where = f"in {location.zone or location.region}" if location != NO_LOCATION else "without zone"
        counts = f"Satisfied: {node_score.satisfied} Violated: {node_score.violated}"
        text = f"{where}: network requirements from Workload dependencies, {counts}"
        reason = b":" + _encode(text)
        return (reason + b",").join([_encode(name) for name in names]) + reason

    def encode_priorities(
        self, names: NodeNames, score_table: ScoreTable, target: Target | None, *, with_allocatable: bool
    ) -> bytes:
        """The answer to a prioritize request: nodes with a lower accumulated cost have higher scores, the plan's target the highest.

        A neutral table gives all nodes the same cost. ``with_allocatable`` adds NodeResourcesAllocatable's score, if it has a weight.
        """
        if not names.count:
            return b"[]"
        if score_table.neutral_reason:
            score_table = ScoreTable(score_table.neutral_reason, [NodeScore()] * len(self._state.locations))
        scores = self._score_locations(names, score_table, target)
        if with_allocatable and self._allocatable.weight:
            return self._encode_with_allocatable(names, scores)
        parts: list[bytes] = []
        for index, nodes in names.by_location.items():
            score, exceptions = scores[index]
            if exceptions:
                parts += [b'%b,"score":%d}' % (self._index.entry_head(n), exceptions.get(n, score)) for n in nodes]
            else:
                end = b',"score":%d}' % score
                parts.append((end + b",").join(self._index.entry_heads(index, nodes)) + end)
        return b"[" + b",".join(parts) + b"]"

    def _score_locations(
        self, names: NodeNames, score_table: ScoreTable, target: Target | None
    ) -> dict[int, _LocationScores]:
        """Index of a location -> scores of its nodes, normalised over the nodes of the request and weighted."""
        by_node: dict[int, dict[str, NodeScore]] = {}
        for node, node_score in score_table.by_node.items():
            index = self._state.location_index.get(node)
            if index is not None:
                by_node.setdefault(index, {})[node] = node_score
        costs: list[int] = []
        for index, nodes in names.by_location.items():
            node_scores = by_node.get(index, {})
            are_all = self._index.are_all_nodes(index, nodes)
            by_node[index] = {name: score for name, score in node_scores.items() if are_all or name in nodes}
            costs += [node_score.cost for node_score in by_node[index].values()]
            if len(nodes) > len(by_node[index]):
                costs.append(score_table.by_location[index].cost)
        low, high = min(costs), max(costs)
        scores: dict[int, _LocationScores] = {}
        for index in names.by_location:
            score = normalise_cost(score_table.by_location[index].cost, low, high)
            exceptions = {name: normalise_cost(exact.cost, low, high) for name, exact in by_node[index].items()}
            scores[index] = self._prefer_target(index, score, exceptions, target)
        return scores

    def _prefer_target(
        self, index: int, score: int, exceptions: dict[str, int], target: Target | None
    ) -> _LocationScores:
        """Weighted scores of a location: the plan's node has the highest, its zone higher scores than other zones, each by the rule."""
        weight = self._overhead.weight
        if target is None:
            return _LocationScores(score * weight, {node: value * weight for node, value in exceptions.items()})
        is_planned_zone = self._state.locations[index] == target.location

        def weigh(value: int) -> int:
            in_planned_zone = _PLANNED_ZONE_BASE + value // _PLANNED_ZONE_DIVISOR
            return (in_planned_zone if is_planned_zone else value // _OTHER_ZONES_DIVISOR) * weight

        weighted = {node: weigh(value) for node, value in exceptions.items()}
        if self._state.location_index.get(target.node) == index:
            weighted[target.node] = MAX_SCORE * weight
        return _LocationScores(weigh(score), weighted)

    def _encode_with_allocatable(self, names: NodeNames, scores: Mapping[int, _LocationScores]) -> bytes:
        """Encode the sums of these scores and NodeResourcesAllocatable's weighted scores, which differ from node to node."""
        raw = {name: self._index.raw_score(name) for nodes in names.by_location.values() for name in nodes}
        low, high = min(raw.values()), max(raw.values())
        weight = self._allocatable.weight
        parts: list[bytes] = []
        for index, nodes in names.by_location.items():
            score, exceptions = scores[index]
            for name in nodes:
                total = exceptions.get(name, score) + weight * normalise_allocatable_score(raw[name], low, high)
                parts.append(b'%b,"score":%d}' % (self._index.entry_head(name), total))
        return b"[" + b",".join(parts) + b"]"
