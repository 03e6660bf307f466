"""Explains a placement: a pod's candidate locations, the cost of each dependency there, and the score. Pure.

Tables are by location, because all nodes of a location score equally except nodes with pods of peers, which have lines of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import Costs, CostTable
from controller.cluster.pods import Pod, Target, target_of
from controller.scheduler.rules import PeerWorkload, ScoreTable, normalise_cost, score_locations
from controller.scheduler.state import State
from kubekit.text import join_first

MAX_PEERS_SHOWN = 5


class Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the output of ``-o json``: names in camelCase."""


class PeerLine(Struct, frozen=True):
    """A workload that the pod depends on, or that depends on it.

    Attributes:
        workload: its selector.
        direction: ``depends-on``, which counts in filter and score, or ``depended-on-by``, which counts only in the score.
        max_cost: maxNetworkCost.
        places: zone (or node without zone) -> number of placed pods.
    """

    workload: str
    direction: str
    max_cost: int
    places: Mapping[str, int]


class Cell(Struct, frozen=True):
    """One peer seen from one candidate: total cost over its pods, and how many pods are within, beyond, or at no known cost."""

    cost: int
    satisfied: int
    violated: int
    unknown: int


class CandidateLine(Struct, frozen=True):
    """Candidate nodes with equal scores: one node, or all nodes of a location without a line of their own.

    Attributes:
        region, zone: of the nodes.
        node: name of the only node; empty for all nodes of a location.
        nodes: number of nodes.
        passes, satisfied, violated, cost: see `NodeScore`.
        score: 0 to 100 among the candidates that pass and have an eligible node, else null.
        cells: in the order of `Explanation.peers`.
        planned: whether the plan has the pod here.
        chosen: whether the pod is here.
        ineligible: reason for which nodes may not run the pod, or are full -> number of nodes.
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
        """Whether filter passes these nodes, and any of them may run the pod."""
        return self.passes and sum(self.ineligible.values()) < self.nodes


class Explanation(Struct, frozen=True):
    """Scores of one pod on every candidate, and the reason for its node.

    Attributes:
        pod: ``namespace/name``.
        node: of the pod; empty while it waits.
        group: ``namespace/name`` of its AppGroup, empty if it has none.
        workload: its selector.
        topology: ``namespace/name`` of the NetworkTopology in use.
        weight: name of the weight in use.
        neutral_reason: reason for which the rule scores all nodes equally; empty if it does not.
        peers: dependencies, then dependents.
        candidates: by score, best first; refused candidates last.
        target: of the plan; null without a plan.
        decided: the reason for its node, in one sentence.
    """

    pod: str
    node: str
    group: str
    workload: str
    topology: str
    weight: str
    neutral_reason: str
    peers: tuple[PeerLine, ...]
    candidates: tuple[CandidateLine, ...]
    target: Target | None
    decided: str


def explain(state: State, pod: Pod, ineligible: Mapping[str, str] = {}) -> Explanation:
    """Explain the node of a pod, or the node that it would get, by the current state.

    Args:
        state: the cluster, for the rules.
        pod: waiting or placed.
        ineligible: node -> reason for which it does not take the pod, see `PlanInputs.ineligible_nodes`.

    Raises:
        DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
    """
    namespace = pod.metadata.namespace
    key = state.group_key_of(namespace, pod.group) if pod.group else ""
    score_table = state.score(namespace, pod.group, pod.workload)
    costs = state.costs(state.groups[key].metadata.namespace) if key else Costs(CostTable())
    dependencies, dependents = state.find_peers(key, pod.workload, state.pod_counts(key)) if key else ((), ())
    lines: Sequence[CandidateLine] = ()
    if not score_table.neutral_reason:
        table, locations, location_index = costs.table, state.locations, state.location_index
        by_peer = [
            *(score_locations((peer,), (), locations, location_index, table) for peer in dependencies),
            *(score_locations((), (peer,), locations, location_index, table) for peer in dependents),
        ]
        lines = _candidate_lines(state, pod, score_table, by_peer, ineligible)
    explanation = Explanation(
        pod=pod.metadata.key,
        node=pod.spec.node_name,
        group=key,
        workload=pod.workload,
        topology=costs.topology_key,
        weight=costs.weight_name,
        neutral_reason=score_table.neutral_reason,
        peers=(
            *(_peer_line(state, peer, "depends-on") for peer in dependencies),
            *(_peer_line(state, peer, "depended-on-by") for peer in dependents),
        ),
        candidates=tuple(lines),
        target=target_of(pod),
        decided="",
    )
    decided = _conclude_placed(explanation) if explanation.node else _conclude_waiting(explanation)
    return msgspec.structs.replace(explanation, decided=decided)


def _peer_line(state: State, peer: PeerWorkload, direction: str) -> PeerLine:
    places: Counter[str] = Counter()
    for node, count in peer.pods_by_node.items():
        places[state.locations[state.location_index[node]].zone or node] += count
    return PeerLine(peer.selector, direction, peer.max_cost, dict(sorted(places.items())))


def _candidate_lines(
    state: State,
    pod: Pod,
    score_table: ScoreTable,
    by_peer: Sequence[ScoreTable],
    ineligible: Mapping[str, str],
) -> list[CandidateLine]:
    """One line for each location, and for each node that holds pods of peers; best first.

    ``by_peer`` has the pod's scores by each peer alone.
    """

    def line_key(node: str) -> tuple[int, str]:
        return state.location_index.get(node, -1), node if node in score_table.by_node else ""

    nodes_by_line: dict[tuple[int, str], list[str]] = defaultdict(list)
    for node in state.location_index:
        nodes_by_line[line_key(node)].append(node)
    target, lines = target_of(pod), []
    for (index, node), nodes in nodes_by_line.items():
        score, location = score_table.node_score(node, index), state.locations[index]
        peer_scores = (table.node_score(node, index) for table in by_peer)
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
            cells=tuple(Cell(s.cost, s.satisfied, s.violated, s.unknown) for s in peer_scores),
            planned=target is not None and line_key(target.node) == (index, node),
            chosen=line_key(pod.spec.node_name) == (index, node),
            ineligible=Counter(ineligible[name] for name in nodes if name in ineligible),
        )
        lines.append(line)
    lines.sort(key=lambda line: (not line.takes_pod, line.cost, line.region, line.zone, not line.node, line.node))
    costs = [line.cost for line in lines if line.takes_pod]
    scores = [normalise_cost(line.cost, min(costs), max(costs)) if line.takes_pod else None for line in lines]
    return [msgspec.structs.replace(line, score=score) for line, score in zip(lines, scores, strict=True)]


def _conclude_placed(explanation: Explanation) -> str:
    chosen = next((line for line in explanation.candidates if line.chosen), None)
    target, node = explanation.target, explanation.node
    details = f"; {explanation.neutral_reason}" if explanation.neutral_reason else ""
    if chosen is not None:
        details = f": {_format_costs(chosen, explanation)}{_compare(chosen, explanation)}"
    if target is None:
        return f"on {node} by the rule{details}"
    if target.node == node:
        return f"on {node} as planned with its group{details}"
    if chosen is not None and (chosen.region, chosen.zone) == target.location:
        return f"on {node} in the planned zone{details}"
    return f"on {node}, though {target.node} was planned{details}"


def _conclude_waiting(explanation: Explanation) -> str:
    candidates, target = explanation.candidates, explanation.target
    best = next((line for line in candidates if line.takes_pod), None)
    if candidates and not any(line.passes for line in candidates):
        return "no node: every place violates more dependencies than it satisfies"
    if candidates and best is None:
        return "no node: none that the filter passes may run it, or has room"
    if target is not None:
        planned = next((line for line in candidates if line.planned), None)
        details = f": {_format_costs(planned, explanation)}" if planned is not None else ""
        return f"waits for {target.node}, planned with its group{details}"
    if best is None:
        return f"any node: {explanation.neutral_reason}"
    return f"best place {_format_place(best)}: {_format_costs(best, explanation)}"


def _format_place(line: CandidateLine) -> str:
    return line.node or line.zone or line.region or "nodes without zone"


def _format_costs(line: CandidateLine, explanation: Explanation) -> str:
    details = [
        f"{peer.workload} {cell.cost}" + (f" of {peer.max_cost}" if sum(peer.places.values()) == 1 else "")
        for peer, cell in zip(explanation.peers, line.cells, strict=True)
        if peer.places
    ]
    violated = f", {line.violated} beyond their maximum" if line.violated else ""
    return f"cost {line.cost} ({join_first(details, MAX_PEERS_SHOWN)}{violated})"


def _compare(chosen: CandidateLine, explanation: Explanation) -> str:
    others = [line for line in explanation.candidates if line.zone != chosen.zone and line.takes_pod]
    refused = sum(line.nodes for line in explanation.candidates if not line.passes)
    next_best = f"; next best zone {_format_place(others[0])} costs {others[0].cost}" if others else ""
    return next_best + (f"; {refused} nodes refused" if refused else "")
