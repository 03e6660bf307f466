"""Explains a placement: a pod's candidate places, the cost of each dependency there, and the score. Pure.

Tables are by place, because all nodes of a place are equal except those with pods of dependencies, which have
a row of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import SAME_HOST_COST, CostTable, LimitCheck
from controller.cluster.pods import GroupPod, Target, target_of
from controller.scheduler.rules import PeerWorkload, ScoreTable, normalise, score_places
from controller.scheduler.state import State
from kubekit.text import listed

SHOWN = 5


class Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Base: camelCase, as ``-o json`` prints it."""


class PeerLine(Struct, frozen=True):
    """A dependency of the pod, or one on it.

    Attributes:
        workload: selector of the other workload.
        direction: ``depends-on``, which decides filter and score, or ``depended-on-by``, which weighs in the score.
        max_cost: maxNetworkCost.
        places: zone (or node without zone) -> placed pods.
    """

    workload: str
    direction: str
    max_cost: int
    places: Mapping[str, int]


class Cell(Struct, frozen=True):
    """One dependency from one candidate: total cost over its pods, and how many pods are within their maximum or beyond."""

    cost: int
    satisfied: int
    violated: int
    unknown: int


class CandidateLine(Struct, frozen=True):
    """A place, or one node of it.

    Attributes:
        node: empty for the nodes of a place that are equal.
        nodes: how many there are.
        ineligible: why some of them may not run the pod, or lack room for it -> how many.
        cells: in the order of `Explanation.peers`.
        score: 0 to 100 among the candidates that pass and have an eligible node, else null.
        planned: the plan wants the pod here.
        chosen: the pod is here.
    """

    region: str
    zone: str
    node: str
    nodes: int
    passes: bool
    satisfied: int
    violated: int
    cost: int
    score: int | None
    cells: tuple[Cell, ...]
    planned: bool
    chosen: bool
    ineligible: Mapping[str, int] = {}

    @property
    def takes_pod(self) -> bool:
        """Whether the filter passes it, and any of its nodes may run the pod."""
        return self.passes and sum(self.ineligible.values()) < self.nodes


class Explanation(Struct, frozen=True):
    """The whole answer.

    Attributes:
        group: ``namespace/name`` of its AppGroup, empty when it has none.
        topology: ``namespace/name`` of the NetworkTopology in use.
        weight: name of the weight in use.
        neutral: why the rule finds all nodes equal; empty when it does not.
        candidates: by score, best first; refused ones last.
        target: where the plan wants the pod.
        decided: one sentence.
    """

    pod: str
    node: str
    group: str
    workload: str
    topology: str
    weight: str
    neutral: str
    peers: tuple[PeerLine, ...]
    candidates: tuple[CandidateLine, ...]
    target: Target | None
    decided: str


def explain(state: State, pod: GroupPod, ineligible: Mapping[str, str] = {}) -> Explanation:
    """Explain a pod, waiting or placed, by what holds now.

    Args:
        state: the cluster in the rules' eyes.
        pod: the pod.
        ineligible: see `PlanInputs.ineligible`; may be empty.

    Raises:
        DeletedNodeError: only in upstream parity.
    """
    metadata = pod.metadata
    target = target_of(pod)
    key = state.group_of(metadata.namespace, pod.group) if pod.group else ""
    score_table = state.score(metadata.namespace, pod.group, pod.workload)
    costs = state.costs(state.groups[key].metadata.namespace) if key else None
    peers: list[tuple[PeerWorkload, bool]] = []
    if key:
        dependencies, dependants = state.peers(key, pod.workload, state.members(key))
        peers = [(peer, True) for peer in dependencies] + [(peer, False) for peer in dependants]
    candidates: tuple[CandidateLine, ...] = ()
    if not score_table.neutral and costs is not None:
        candidates = _Table(state, pod, target, peers, costs.table).lines(score_table, ineligible)
    explanation = Explanation(
        pod=metadata.key,
        node=pod.spec.node_name,
        group=key,
        workload=pod.workload,
        topology=costs.topology if costs else "",
        weight=costs.weight if costs else "",
        neutral=score_table.neutral,
        peers=tuple(_peer_line(state, peer, depends) for peer, depends in peers),
        candidates=candidates,
        target=target,
        decided="",
    )
    return msgspec.structs.replace(explanation, decided=conclude(explanation))


def _peer_line(state: State, peer: PeerWorkload, depends: bool) -> PeerLine:
    places: Counter[str] = Counter()
    for node, count in peer.pods.items():
        places[state.places[state.place_of[node]].zone or node] += count
    return PeerLine(
        peer.selector, "depends-on" if depends else "depended-on-by", peer.max_cost, dict(sorted(places.items()))
    )


class _Table:
    """Makes the candidate lines."""

    def __init__(
        self,
        state: State,
        pod: GroupPod,
        target: Target | None,
        peers: Sequence[tuple[PeerWorkload, bool]],
        costs: CostTable,
    ) -> None:
        self._state, self._target, self._peers, self._costs = state, target, peers, costs
        self._node = pod.spec.node_name
        # Of dependencies the rule itself says what each alone comes to: by the replicas that answer, not by all of them.
        self._scored = [score_places((peer,), (), state.places, state.place_of, costs) for peer, _ in peers]

    def lines(self, score_table: ScoreTable, ineligible: Mapping[str, str]) -> tuple[CandidateLine, ...]:
        nodes_of: dict[tuple[int, str], list[str]] = defaultdict(list)
        for node, place in self._state.place_of.items():
            nodes_of[place, node if node in score_table.by_node else ""].append(node)
        rows = [self._line(row, nodes, score_table, ineligible) for row, nodes in nodes_of.items()]
        costs = [line.cost for line in rows if line.takes_pod]
        low, high = min(costs, default=0), max(costs, default=0)
        found = [
            msgspec.structs.replace(line, score=normalise(line.cost, low, high)) if line.takes_pod else line
            for line in rows
        ]
        found.sort(key=lambda line: (not line.takes_pod, line.cost, line.region, line.zone, not line.node, line.node))
        return tuple(found)

    def _line(
        self, row: tuple[int, str], nodes: Sequence[str], score_table: ScoreTable, ineligible: Mapping[str, str]
    ) -> CandidateLine:
        place, node = row
        place_score, location = score_table.place_score(node, place), self._state.places[place]
        return CandidateLine(
            region=location.region,
            zone=location.zone,
            node=node,
            nodes=len(nodes),
            passes=place_score.passes,
            satisfied=place_score.satisfied,
            violated=place_score.violated,
            cost=place_score.cost,
            score=None,
            cells=tuple(self._cell(place, node, i) for i in range(len(self._peers))),
            planned=self._target is not None and self._is_at(self._target.node, place, node),
            chosen=self._is_at(self._node, place, node),
            ineligible=Counter(ineligible[name] for name in nodes if name in ineligible),
        )

    def _is_at(self, wanted: str, place: int, node: str) -> bool:
        if node:
            return node == wanted
        return self._state.place_of.get(wanted) == place and not any(wanted in peer.pods for peer, _ in self._peers)

    def _cell(self, place: int, node: str, number: int) -> Cell:
        peer, depends = self._peers[number]
        if depends:
            place_score = self._scored[number].place_score(node, place)
            return Cell(place_score.cost, place_score.satisfied, place_score.violated, place_score.unknown)
        here, cost = self._state.places[place], 0
        verdicts: Counter[LimitCheck] = Counter()
        for peer_node, count in peer.pods.items():
            verdict, each = self._costs.check_limit(
                self._state.places[self._state.place_of[peer_node]], here, peer.max_cost
            )
            if peer_node == node:
                verdict, each = "satisfied", SAME_HOST_COST
            verdicts[verdict] += count
            cost += each * count
        return Cell(cost, verdicts["satisfied"], verdicts["violated"], verdicts["unknown"])


def conclude(explanation: Explanation) -> str:
    """One sentence on what decided, fit for an event."""
    return _placed(explanation) if explanation.node else _waiting(explanation)


def _placed(explanation: Explanation) -> str:
    chosen = next((line for line in explanation.candidates if line.chosen), None)
    target, where = explanation.target, f"on {explanation.node}"
    if chosen is None:
        tail = f"; {explanation.neutral}" if explanation.neutral else ""
    else:
        tail = f": {_costs(chosen, explanation)}{_against(chosen, explanation)}"
    if target is None:
        return f"{where} by the rule{tail}"
    if target.node == explanation.node:
        return f"{where} as planned with its group{tail}"
    same = chosen is not None and (chosen.region, chosen.zone) == target.location
    return f"{where} in the planned zone{tail}" if same else f"{where}, though {target.node} was planned{tail}"


def _waiting(explanation: Explanation) -> str:
    candidates, target = explanation.candidates, explanation.target
    best = next((line for line in candidates if line.takes_pod), None)
    if candidates and not any(line.passes for line in candidates):
        return "no node: every place violates more dependencies than it satisfies"
    if candidates and best is None:
        return "no node: none that the filter passes may run it, or has room"
    if target is not None:
        planned = next((line for line in candidates if line.planned), None)
        tail = f": {_costs(planned, explanation)}" if planned is not None else ""
        return f"waits for {target.node}, planned with its group{tail}"
    if best is None:
        return f"any node: {explanation.neutral}"
    return f"best place {_name(best)}: {_costs(best, explanation)}"


def _name(line: CandidateLine) -> str:
    return line.node or line.zone or line.region or "nodes without zone"


def _costs(line: CandidateLine, explanation: Explanation) -> str:
    details = [
        f"{peer.workload} {cell.cost}" + (f" of {peer.max_cost}" if sum(peer.places.values()) == 1 else "")
        for peer, cell in zip(explanation.peers, line.cells, strict=True)
        if peer.places
    ]
    violated = f", {line.violated} beyond their maximum" if line.violated else ""
    return f"cost {line.cost} ({listed(details, SHOWN)}{violated})"


def _against(chosen: CandidateLine, explanation: Explanation) -> str:
    others = [line for line in explanation.candidates if line.zone != chosen.zone and line.takes_pod]
    refused = sum(line.nodes for line in explanation.candidates if not line.passes)
    tail = f"; next best zone {_name(others[0])} costs {others[0].cost}" if others else ""
    return tail + (f"; {refused} nodes refused" if refused else "")
