"""The nodes of a request, grouped by location, with JSON for answers that is prepared once.

With 10,000 nodes, requests and answers of one pod are half a megabyte large, so the JSON of whole locations is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import msgspec
import numpy as np

from controller.cluster.resource_requests import parse_amounts
from controller.scheduler.rules import raw_allocatable_score
from controller.scheduler.state import NO_LOCATION_INDEX, State

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


class NodeIndex:
    """All node names grouped by location, with their JSON for answers."""

    def __init__(self, state: State) -> None:
        self._state, self._version = state, -1
        self._raw_scores: dict[str, int] = {}
        # By number of a node.
        self._names: list[str] = []
        self._location_of_node = np.zeros(0, np.int64)
        self._number_by_name: dict[str, int] = {}
        # By index of a location.
        self._sizes = np.zeros(1, np.int64)
        self._names_of_location: list[list[str]] = []
        self._score_prefixes_of_location: list[list[bytes]] = []
        self._encoded_names_of_location: list[bytes] = []

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
        self._score_prefixes_of_location = [[score_prefix(name) for name in names] for names in self._names_of_location]
        self._encoded_names_of_location = [_encode_names(names) for names in self._names_of_location]
        self._raw_scores.clear()

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
        return self._encoded_names_of_location[index] if self.are_all_nodes(index, names) else _encode_names(names)

    def score_prefixes(self, index: int, names: Sequence[str]) -> Sequence[bytes]:
        """The `score_prefix` of each of a location's nodes."""
        if self.are_all_nodes(index, names):
            return self._score_prefixes_of_location[index]
        return [score_prefix(name) for name in names]

    def raw_score(self, name: str) -> int:
        """NodeResourcesAllocatable's score of a node before normalisation."""
        score = self._raw_scores.get(name)
        if score is None:
            allocatable = self._state.allocatable_by_node.get(name)
            score = raw_allocatable_score(parse_amounts(allocatable), self._state.allocatable_args)
            if allocatable is not None:  # Requests may name any number of unknown nodes.
                self._raw_scores[name] = score
        return score


def score_prefix(name: str) -> bytes:
    """A node's HostPriority in a prioritize answer up to its score."""
    return b'{"host":' + _encode(name)


def _encode_names(names: Iterable[str]) -> bytes:
    return _encode(list(names))[1:-1]
