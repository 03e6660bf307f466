"""Encodes the extender's answers (docs/contracts, section 7) from prepared JSON.

For 10,000 nodes a scheduler sends and reads half a megabyte per pod. Node names are therefore grouped by location, whole locations are
copied from JSON that is encoded once, and a prioritize request with the list that filter returned is not decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

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

MAX_REASONS = 50
"""Refused nodes with a reason of their own: kube-scheduler writes every different reason into the pod's status."""
_NO_FAILURES = b',"failedNodes":{},"failedAndUnresolvableNodes":{},"error":""}'
_ZONE_BASE, _ZONE_DIVISOR, _OTHERS_DIVISOR = 70, 5, 2
"""The planned node scores 100, others of its zone 70 to 90 by the rule, all others 0 to 50."""

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(list[str]).decode


class NodeNames(msgspec.Struct, frozen=True):
    """The nodes of a request.

    Attributes:
        raw: the JSON list as it was received or sent.
        by_location: index of a location -> its nodes in the request; the same object as in `NodeIndex` if these are all its nodes.
        count: number of nodes.
    """

    raw: bytes
    by_location: Mapping[int, Sequence[str]]
    count: int


class NodeIndex:
    """All node names grouped by location, with their JSON for answers.

    ``_names`` and ``_locations`` are by number of a node; ``_sizes`` and the ``_member...`` lists are by index of a location.
    """

    def __init__(self, state: State, allocatable: AllocatableArgs) -> None:
        self._state, self._allocatable = state, allocatable
        self._version = -1
        self._entry_heads: dict[str, bytes] = {}
        self._raw_scores: dict[str, int] = {}
        self._names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._locations = np.zeros(0, np.int64)
        self._sizes = np.zeros(1, np.int64)
        self._members: list[list[str]] = []
        self._member_heads: list[list[bytes]] = []
        self._member_lists: list[bytes] = []

    def refresh(self) -> None:
        """Update the index if nodes have changed."""
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
        self._member_heads = [[self.entry_head(name) for name in names] for names in self._members]
        self._member_lists = [_join_names(names) for names in self._members]
        self._raw_scores.clear()
        for name in self._entry_heads.keys() - state.location_index.keys():
            del self._entry_heads[name]

    def group(self, raw: bytes) -> NodeNames:
        """Group the names of a JSON list by location; unknown names count as nodes at `NO_LOCATION`.

        Raises:
            kubekit.wire.DECODE_ERRORS: it is no list of strings.
        """
        names = _decode_names(raw)
        numbers = np.fromiter(map(self._number_of.get, names, repeat(-1)), np.int64, len(names))
        unknown = dict.fromkeys(names[i] for i in np.flatnonzero(numbers < 0).tolist())
        numbers = numbers[numbers >= 0]
        distinct = np.flatnonzero(np.bincount(numbers, minlength=len(self._names)))
        locations = self._locations[distinct]
        counts = np.bincount(locations, minlength=len(self._sizes))
        by_location: dict[int, Sequence[str]] = {}
        for index in np.flatnonzero(counts).tolist():
            if counts[index] == self._sizes[index]:
                by_location[index] = self._members[index]
            else:
                by_location[index] = [self._names[i] for i in distinct[locations == index].tolist()]
        if unknown:
            by_location[NO_LOCATION_INDEX] = [*by_location.get(NO_LOCATION_INDEX, ()), *unknown]
        return NodeNames(raw, by_location, len(distinct) + len(unknown))

    def is_whole(self, index: int, names: Sequence[str]) -> bool:
        """Whether these are all nodes of the location."""
        return names is self._members[index]

    def join_names(self, index: int, names: Sequence[str]) -> bytes:
        """Node names as the elements of a JSON list, without its brackets."""
        return self._member_lists[index] if self.is_whole(index, names) else _join_names(names)

    def entry_heads(self, index: int, names: Sequence[str]) -> Sequence[bytes]:
        """The first bytes of these nodes' entries in a prioritize answer."""
        return self._member_heads[index] if self.is_whole(index, names) else [self.entry_head(name) for name in names]

    def entry_head(self, name: str) -> bytes:
        """The first bytes of a node's entry in a prioritize answer: its name, without a score."""
        head = self._entry_heads.get(name)
        if head is None:
            head = b'{"host":' + _encode(name)
            if name in self._state.location_index:
                self._entry_heads[name] = head
        return head

    def raw_allocatable_score(self, name: str) -> int:
        """NodeResourcesAllocatable's score before it is normalised."""
        score = self._raw_scores.get(name)
        if score is None:
            facts = self._state.nodes.get(name)
            score = raw_allocatable_score(parse_amounts(facts.allocatable if facts else None), self._allocatable)
            if facts:
                self._raw_scores[name] = score
        return score


def _join_names(names: Iterable[str]) -> bytes:
    return _encode(list(names))[1:-1]


def pass_all(names: bytes) -> bytes:
    """The answer to a filter request that passes the nodes of this JSON list."""
    return b'{"nodenames":' + names + _NO_FAILURES


class Answers:
    """Encodes answers, and remembers the last list that filter returned, because the next prioritize request usually has it."""

    def __init__(self, state: State, overhead: NetworkOverheadArgs, allocatable: AllocatableArgs) -> None:
        self._state, self._overhead, self._allocatable = state, overhead, allocatable
        self._index = NodeIndex(state, allocatable)
        self._last_filtered: tuple[int, NodeNames] | None = None

    def names(self, raw: bytes) -> NodeNames:
        """The nodes of a request.

        Raises:
            kubekit.wire.DECODE_ERRORS: it is no list of strings.
        """
        self._index.refresh()
        if self._last_filtered is not None:
            version, filtered = self._last_filtered
            if version == self._state.node_version and filtered.raw == raw:
                return filtered
        return self._index.group(raw)

    def _remember(self, filtered: NodeNames) -> None:
        self._last_filtered = self._state.node_version, filtered

    def _join_and_remember(self, kept: Mapping[int, Sequence[str]]) -> NodeNames:
        """The nodes of all locations in one list."""
        raw = b"[" + b",".join(self._index.join_names(index, names) for index, names in kept.items()) + b"]"
        filtered = NodeNames(raw, kept, sum(map(len, kept.values())))
        self._remember(filtered)
        return filtered

    def filter(self, names: NodeNames, score_table: ScoreTable) -> tuple[bytes, int]:
        """The answer to a filter request by the rule, and the number of refused nodes."""
        location_scores = (score_table.by_location[index] for index in names.by_location)
        if all(score.passes for score in (*location_scores, *score_table.by_node.values())):
            self._remember(names)
            return pass_all(names.raw), 0
        kept: dict[int, Sequence[str]] = {}
        refused: dict[int, Sequence[str]] = {}
        mixed_locations = self._mixed_locations(score_table)
        for index, nodes in names.by_location.items():
            if index in mixed_locations:
                passing = {name for name in nodes if score_table.node_score(name, index).passes}
                kept[index] = [name for name in nodes if name in passing]
                refused[index] = [name for name in nodes if name not in passing]
            elif score_table.by_location[index].passes:
                kept[index] = nodes
            else:
                refused[index] = nodes
        filtered = self._join_and_remember({index: nodes for index, nodes in kept.items() if nodes})
        body = b'{"nodenames":' + filtered.raw + self._failures(refused, score_table) + b',"error":""}'
        return body, names.count - filtered.count

    def encode_planned(self, names: bytes, score_table: ScoreTable, target: Target) -> bytes | None:
        """Answer a filter request by the plan: its node alone or, if that does not pass, the nodes of its zone that pass.

        Prioritize would score these highest anyway, and the scheduler is faster with a short list. None if none of them passes.

        Raises:
            kubekit.wire.DECODE_ERRORS: it is no list of strings.
        """
        location_index = self._state.location_index
        index = location_index.get(target.node)
        # With its quotes the name cannot be a part of another name.
        if index is not None and score_table.node_score(target.node, index).passes and _encode(target.node) in names:
            return pass_all(_encode([target.node]))
        kept: dict[int, Sequence[str]] = {}
        for number, nodes in self.names(names).by_location.items():
            location = self._state.locations[number]
            if location.zone and location == target.location:
                passing = [name for name in nodes if score_table.node_score(name, number).passes]
                if passing:
                    kept[number] = nodes if len(passing) == len(nodes) else passing
        return pass_all(self._join_and_remember(kept).raw) if kept else None

    def _mixed_locations(self, score_table: ScoreTable) -> set[int]:
        """Locations of which filter passes some nodes and refuses others."""
        location_index = self._state.location_index
        return {
            location_index[node]
            for node, node_score in score_table.by_node.items()
            if node in location_index and node_score.passes != score_table.by_location[location_index[node]].passes
        }

    def _failures(self, refused: Mapping[int, Sequence[str]], score_table: ScoreTable) -> bytes:
        """The refused nodes with reasons.

        All nodes are in ``failedAndUnresolvableNodes``, so that kube-scheduler does not evict pods there in vain. The first `MAX_REASONS`
        are in ``failedNodes`` too, for clients that read only that; the others share one reason per location.
        """
        reasons: dict[str, str] = {}
        shared: list[bytes] = []
        for index, nodes in refused.items():
            left = max(MAX_REASONS - len(reasons), 0)
            reasons |= {name: failed_filter_message(name, score_table.node_score(name, index)) for name in nodes[:left]}
            if len(nodes) > left:
                shared.append(self._shared_reasons(index, nodes[left:], score_table.by_location[index]))
        first = _encode(reasons)
        refusals = b",".join(part for part in (first[1:-1], *shared) if part)
        return b',"failedNodes":' + first + b',"failedAndUnresolvableNodes":{' + refusals + b"}"

    def _shared_reasons(self, index: int, names: Sequence[str], node_score: NodeScore) -> bytes:
        location = self._state.locations[index]
        where = f"in {location.zone or location.region}" if location != NO_LOCATION else "without zone"
        text = f"{where}: network requirements from Workload dependencies, Satisfied: {node_score.satisfied} Violated: {node_score.violated}"
        reason = b":" + _encode(text)
        return (reason + b",").join([_encode(name) for name in names]) + reason

    def prioritize(
        self, names: NodeNames, score_table: ScoreTable, target: Target | None, *, allocatable: bool
    ) -> bytes:
        """The answer to a prioritize request: lower accumulated cost scores higher, the plan's target highest.

        Args:
            names: from `names`.
            score_table: the pod's scores by the rule.
            target: of the plan; None without a plan.
            allocatable: whether to add NodeResourcesAllocatable's score, if it has a weight.
        """
        if not names.count:
            return b"[]"
        if score_table.neutral_reason:
            score_table = ScoreTable(score_table.neutral_reason, [NodeScore()] * len(self._state.locations))
        scores = self._scores(names, score_table, target)
        if allocatable and self._allocatable.weight:
            return self._encode_combined(names, scores)
        parts: list[bytes] = []
        for index, nodes in names.by_location.items():
            score, exceptions = scores[index]
            if exceptions:
                parts += [b'%b,"score":%d}' % (self._index.entry_head(n), exceptions.get(n, score)) for n in nodes]
            else:
                end = b',"score":%d}' % score
                parts.append((end + b",").join(self._index.entry_heads(index, nodes)) + end)
        return b"[" + b",".join(parts) + b"]"

    def _scores(
        self, names: NodeNames, score_table: ScoreTable, target: Target | None
    ) -> dict[int, tuple[int, Mapping[str, int]]]:
        """Location index -> the score of its nodes, and node -> score of the nodes with a score of their own."""
        by_node: dict[int, dict[str, NodeScore]] = {}
        for node, node_score in score_table.by_node.items():
            index = self._state.location_index.get(node)
            if index is not None:
                by_node.setdefault(index, {})[node] = node_score
        costs: list[int] = []
        for index, nodes in names.by_location.items():
            node_scores = by_node.get(index, {})
            by_node[index] = {n: s for n, s in node_scores.items() if self._index.is_whole(index, nodes) or n in nodes}
            costs += [node_score.cost for node_score in by_node[index].values()]
            if len(nodes) > len(by_node[index]):
                costs.append(score_table.by_location[index].cost)
        low, high = min(costs), max(costs)
        scores: dict[int, tuple[int, Mapping[str, int]]] = {}
        for index in names.by_location:
            score = normalise_cost(score_table.by_location[index].cost, low, high)
            exceptions = {
                node: normalise_cost(node_score.cost, low, high) for node, node_score in by_node[index].items()
            }
            scores[index] = self._prefer_target(index, score, exceptions, target)
        return scores

    def _prefer_target(
        self, index: int, score: int, exceptions: dict[str, int], target: Target | None
    ) -> tuple[int, Mapping[str, int]]:
        """Weighted scores of a location, so that the plan's node comes first, then its zone, then the others, each by the rule."""
        weight = self._overhead.weight
        if target is None:
            return score * weight, {node: value * weight for node, value in exceptions.items()}
        is_planned_zone = self._state.locations[index] == target.location

        def weigh(value: int) -> int:
            return (_ZONE_BASE + value // _ZONE_DIVISOR if is_planned_zone else value // _OTHERS_DIVISOR) * weight

        weighted = {node: weigh(value) for node, value in exceptions.items()}
        if self._state.location_index.get(target.node) == index:
            weighted[target.node] = MAX_SCORE * weight
        return weigh(score), weighted

    def _encode_combined(self, names: NodeNames, scores: Mapping[int, tuple[int, Mapping[str, int]]]) -> bytes:
        """Encode the scores with NodeResourcesAllocatable's, which differ from node to node."""
        raw = {name: self._index.raw_allocatable_score(name) for nodes in names.by_location.values() for name in nodes}
        low, high = min(raw.values()), max(raw.values())
        weight = self._allocatable.weight
        parts: list[bytes] = []
        for index, nodes in names.by_location.items():
            score, exceptions = scores[index]
            for name in nodes:
                total = exceptions.get(name, score) + weight * normalise_allocatable_score(raw[name], low, high)
                parts.append(b'%b,"score":%d}' % (self._index.entry_head(name), total))
        return b"[" + b",".join(parts) + b"]"
