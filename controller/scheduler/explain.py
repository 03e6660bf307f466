"""Explains a placement: a pod's candidate places, the cost of each dependency there, and the score. Pure.

Tables are by location, because all nodes of a location are equal except those with pods of dependencies, which have
a row of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from controller.cluster.costs import Costs, CostTable
from controller.cluster.pods import GroupPod, Target, target_of
from controller.scheduler.rules import PeerWorkload, ScoreTable, normalise, score_locations
from controller.scheduler.state import State
from kubekit.text import listed

SHOWN = 5


class Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Base: camelCase, as ``-o json`` prints it."""


class PeerLine(Struct, frozen=True):
    """A dependency of the pod, or one on it.

    Attributes:
        workload: selector of the other workload.
        direction: ``depends-on``, which decides filter and score, or ``depended-on-by``, which only adds to the score.
        max_cost: maxNetworkCost.
        places: zone (or node without zone) -> placed pods.
    """

    workload: str
    direction: str
    max_cost: int
    places: Mapping[str, int]


class Cell(Struct, frozen=True):
    """One peer from one candidate: total cost over its pods; of dependencies, how many are within their maximum or beyond."""

    cost: int
    satisfied: int
    violated: int
    unknown: int


class CandidateLine(Struct, frozen=True):
    """A location, or one node of it.

    Attributes:
        node: empty for the nodes of a location that are equal.
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
    """Scores of one pod on every candidate, and why it is where it is.

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
        state: what the rules read.
        pod: the pod.
        ineligible: see `PlanInputs.ineligible`; may be empty.

    Raises:
        DeletedNodeError: only in upstream parity.
    """
    namespace = pod.metadata.namespace
    key = state.group_of(namespace, pod.group) if pod.group else ""
    score_table = state.score(namespace, pod.group, pod.workload)
    costs = state.costs(state.groups[key].metadata.namespace) if key else Costs(CostTable())
    dependencies, dependents = state.peers(key, pod.workload, state.members(key)) if key else ((), ())
    lines: Sequence[CandidateLine] = ()
    if not score_table.neutral:
        table, locations, location_index = costs.table, state.locations, state.location_index
        scored = [
            *(score_locations((peer,), (), locations, location_index, table) for peer in dependencies),
            *(score_locations((), (peer,), locations, location_index, table) for peer in dependents),
        ]
        lines = _candidate_lines(state, pod, score_table, scored, ineligible)
    explanation = Explanation(
        pod=pod.metadata.key,
        node=pod.spec.node_name,
        group=key,
        workload=pod.workload,
        topology=costs.topology,
        weight=costs.weight,
        neutral=score_table.neutral,
        peers=(
            *(_peer_line(state, peer, "depends-on") for peer in dependencies),
            *(_peer_line(state, peer, "depended-on-by") for peer in dependents),
        ),
        candidates=tuple(_with_scores(lines)),
        target=target_of(pod),
        decided="",
    )
    return msgspec.structs.replace(explanation, decided=conclude(explanation))


def _peer_line(state: State, peer: PeerWorkload, direction: str) -> PeerLine:
    places: Counter[str] = Counter()
    for node, count in peer.pods.items():
        places[state.locations[state.location_index[node]].zone or node] += count
    return PeerLine(peer.selector, direction, peer.max_cost, dict(sorted(places.items())))


def _candidate_lines(
    state: State,
    pod: GroupPod,
    score_table: ScoreTable,
    scored: Sequence[ScoreTable],
    ineligible: Mapping[str, str],
) -> list[CandidateLine]:
    """One line for each location, and for each node that holds pods of peers; best first, without scores.

    Args:
        state: for the nodes.
        pod: the pod.
        score_table: its scores.
        scored: its scores by each peer alone.
        ineligible: node -> why it does not take the pod.
    """

    def line_of(node: str) -> tuple[int, str]:
        return state.location_index.get(node, -1), node if node in score_table.by_node else ""

    nodes_of: dict[tuple[int, str], list[str]] = defaultdict(list)
    for node in state.location_index:
        nodes_of[line_of(node)].append(node)
    target, found = target_of(pod), []
    for (index, node), nodes in nodes_of.items():
        score, location = score_table.node_score(node, index), state.locations[index]
        alone = (each.node_score(node, index) for each in scored)
        line = CandidateLine(
            region=location.region,
            zone=location.zone,
            node=node,
            nodes=len(nodes),
            passes=score.passes,
            satisfied=score.satisfied,
            violated=score.violated,
            cost=score.cost,
            score=None,
            cells=tuple(Cell(each.cost, each.satisfied, each.violated, each.unknown) for each in alone),
            planned=target is not None and line_of(target.node) == (index, node),
            chosen=line_of(pod.spec.node_name) == (index, node),
            ineligible=Counter(ineligible[name] for name in nodes if name in ineligible),
        )
        found.append(line)
    found.sort(key=lambda line: (not line.takes_pod, line.cost, line.region, line.zone, not line.node, line.node))
    return found


def _with_scores(lines: Sequence[CandidateLine]) -> Iterator[CandidateLine]:
    """The lines, with a score for each that takes the pod."""
    costs = [line.cost for line in lines if line.takes_pod]
    for line in lines:
        score = normalise(line.cost, min(costs), max(costs)) if line.takes_pod else None
        yield msgspec.structs.replace(line, score=score)


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
