"""Encodes the extender's answers (docs/contracts.md, section 7) from the JSON that `NodeIndex` prepares.

A prioritize request with the list that filter returned is not decoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.costs import NO_LOCATION
from controller.cluster.pods import Target
from controller.scheduler.extender.node_index import NodeIndex, NodeNames, score_prefix
from controller.scheduler.rules import (
    MAX_SCORE,
    NodeScore,
    ScoreTable,
    failed_filter_message,
    normalise_allocatable_score,
    normalise_cost,
)
from controller.scheduler.state import State

MAX_NODE_REASONS = 50
"""Refused nodes with a reason of their own; kube-scheduler writes every different reason into the pod's status."""
_NO_FAILURES = b',"failedNodes":{},"failedAndUnresolvableNodes":{},"error":""}'
_PLANNED_ZONE_BASE, _PLANNED_ZONE_DIVISOR, _OTHER_ZONES_DIVISOR = 70, 5, 2
"""Before the weight, the planned node scores 100, other nodes of its zone 70 to 90 by the rule, nodes of other zones 0 to 50."""

_encode = msgspec.json.Encoder().encode


class _LocationScores(NamedTuple):
    """The weighted score of a location's nodes, and node -> weighted score of the nodes with a score of their own."""

    score: int
    by_node: Mapping[str, int]


def encode_pass_all(names_json: bytes) -> bytes:
    """The answer to a filter request that passes the nodes of this JSON list."""
    return b'{"nodenames":' + names_json + _NO_FAILURES


class AnswerEncoder:
    """Encodes answers, and remembers the last list that filter returned, because the next prioritize request usually has the same list.

    ``weight`` is the factor of NetworkOverhead's score.
    """

    def __init__(self, state: State, weight: int) -> None:
        self._state, self._weight, self._index = state, weight, NodeIndex(state)
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

    def _join_and_remember(self, passed: Mapping[int, Sequence[str]]) -> NodeNames:
        """The passed nodes of all locations, index of a location -> nodes, in one list, which is remembered."""
        names_json = b"[" + b",".join(self._index.join_names(index, names) for index, names in passed.items()) + b"]"
        filtered = NodeNames(names_json, passed, sum(map(len, passed.values())))
        self._last_filtered = self._state.node_version, filtered
        return filtered

    def encode_filter(self, names: NodeNames, score_table: ScoreTable) -> tuple[bytes, int]:
        """The answer to a filter request by the rule, and the number of refused nodes."""
        location_scores = (score_table.by_location[index] for index in names.by_location)
        if all(score.passes for score in (*location_scores, *score_table.by_node.values())):
            self._last_filtered = self._state.node_version, names
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
        target_index = self._state.location_index.get(target.node)
        # The encoded name has quotes, so it is not a part of another name.
        is_requested = _encode(target.node) in names_json
        if target_index is not None and is_requested and score_table.node_score(target.node, target_index).passes:
            return encode_pass_all(_encode([target.node]))
        passed: dict[int, Sequence[str]] = {}
        for index, nodes in self.parse_names(names_json).by_location.items():
            location = self._state.locations[index]
            if location.zone and location == target.location:
                passing = [name for name in nodes if score_table.node_score(name, index).passes]
                if passing:
                    passed[index] = nodes if len(passing) == len(nodes) else passing
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
        if with_allocatable and self._state.allocatable_args.weight:
            scores = self._add_allocatable(names, scores)
        parts: list[bytes] = []
        for index, nodes in names.by_location.items():
            score, score_by_node = scores[index]
            if score_by_node:
                parts += [b'%b,"score":%d}' % (score_prefix(n), score_by_node.get(n, score)) for n in nodes]
            else:
                end = b',"score":%d}' % score
                parts.append((end + b",").join(self._index.score_prefixes(index, nodes)) + end)
        return b"[" + b",".join(parts) + b"]"

    def _score_locations(
        self, names: NodeNames, score_table: ScoreTable, target: Target | None
    ) -> dict[int, _LocationScores]:
        """Index of a location -> scores of its nodes, normalised over the nodes of the request and weighted."""
        node_costs: dict[int, dict[str, int]] = {index: {} for index in names.by_location}
        location_index = self._state.location_index
        # Not the lists, because a search in a list for each node takes quadratic time.
        requested = {
            index: location_index if self._index.are_all_nodes(index, nodes) else frozenset(nodes)
            for index, nodes in names.by_location.items()
        }
        for node, node_score in score_table.by_node.items():
            index = location_index.get(node, -1)
            if node in requested.get(index, ()):
                node_costs[index][node] = node_score.cost
        costs = [cost for costs_of_location in node_costs.values() for cost in costs_of_location.values()]
        for index, nodes in names.by_location.items():
            if len(nodes) > len(node_costs[index]):
                costs.append(score_table.by_location[index].cost)
        low, high = min(costs), max(costs)
        scores: dict[int, _LocationScores] = {}
        for index in names.by_location:
            score = normalise_cost(score_table.by_location[index].cost, low, high)
            score_by_node = {name: normalise_cost(cost, low, high) for name, cost in node_costs[index].items()}
            scores[index] = self._prefer_target(index, score, score_by_node, target)
        return scores

    def _prefer_target(
        self, index: int, score: int, score_by_node: Mapping[str, int], target: Target | None
    ) -> _LocationScores:
        """Weighted scores of a location: the plan's node has the highest, its zone higher scores than other zones, each by the rule."""

        def weigh(value: int) -> int:
            if target is not None and self._state.locations[index] == target.location:
                value = _PLANNED_ZONE_BASE + value // _PLANNED_ZONE_DIVISOR
            elif target is not None:
                value //= _OTHER_ZONES_DIVISOR
            return value * self._weight

        weighted = {node: weigh(value) for node, value in score_by_node.items()}
        if target is not None and self._state.location_index.get(target.node) == index:
            weighted[target.node] = MAX_SCORE * self._weight
        return _LocationScores(weigh(score), weighted)

    def _add_allocatable(self, names: NodeNames, scores: Mapping[int, _LocationScores]) -> dict[int, _LocationScores]:
        """The scores plus NodeResourcesAllocatable's weighted scores, which differ from node to node."""
        raw = {name: self._index.raw_score(name) for nodes in names.by_location.values() for name in nodes}
        low, high, weight = min(raw.values()), max(raw.values()), self._state.allocatable_args.weight
        sums: dict[int, _LocationScores] = {}
        for index, (score, score_by_node) in scores.items():
            by_node = {name: score_by_node.get(name, score) for name in names.by_location[index]}
            for name in by_node:
                by_node[name] += weight * normalise_allocatable_score(raw[name], low, high)
            sums[index] = _LocationScores(score, by_node)
        return sums
