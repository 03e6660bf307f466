"""Explains a pod's node: the nodes where it could be, the cost of each dependency from there, and the score.

All nodes of a location are one candidate, because they score equally; only nodes with pods of peers are candidates of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from controller.cluster.costs import Costs, CostTable
from controller.cluster.pods import Pod, Target, target_of
from controller.scheduler.rules import PeerWorkload, ScoreTable, normalise_cost, score_locations
from controller.scheduler.state import State
from kubekit.text import join_first

MAX_PEERS_SHOWN = 5
Direction = Literal["depends-on", "depended-on-by"]


class Peer(msgspec.Struct, frozen=True, rename="camel"):
    """A workload that the pod depends on, or that depends on the pod.

    Attributes:
        workload: its selector.
        direction: ``depends-on``, which counts in filter and score, or ``depended-on-by``, which counts only in the score.
        max_cost: maxNetworkCost.
        pods_by_zone: zone (or node without zone) -> number of placed pods.
    """

    workload: str
    direction: Direction
    max_cost: int
    pods_by_zone: Mapping[str, int]


class PeerCost(msgspec.Struct, frozen=True, rename="camel"):
    """A peer seen from a candidate; the attributes are those of `NodeScore`, of this peer alone."""

    cost: int
    satisfied: int
    violated: int
    unknown: int


class Candidate(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes with equal scores: one node with pods of peers, or all other nodes of a location.

    Attributes:
        region, zone: location of the nodes.
        node: name of the only node; empty for several nodes.
        nodes: number of nodes.
        passes, satisfied, violated, cost: see `NodeScore`.
        score: 0 to 100 if the candidate is feasible, else null.
        peer_costs: in the order of `Explanation.peers`.
        is_target: whether the plan has the pod here.
        has_pod: whether the pod is here.
        ineligible: reason why nodes may not run the pod, or are full -> number of nodes.
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
    peer_costs: tuple[PeerCost, ...]
    is_target: bool
    has_pod: bool
    ineligible: Mapping[str, int] = {}

    @property
    def is_feasible(self) -> bool:
        """Whether the filter passes these nodes, and at least one of them may run the pod."""
        return self.passes and sum(self.ineligible.values()) < self.nodes


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Scores of a pod on every candidate, and the reason for its node.

    Attributes:
        pod: ``namespace/name`` of the pod.
        node: the pod's node; empty while the pod waits.
        group: ``namespace/name`` of its AppGroup; empty without an AppGroup.
        workload: selector of its workload.
        topology: ``namespace/name`` of the NetworkTopology with the costs; empty without costs.
        weight_name: name of the weight with the costs; empty likewise.
        neutral_reason: why the rule scores all nodes equally; empty if there are scores.
        peers: dependencies, then dependents.
        candidates: by cost, the lowest first; those that are not feasible last. Empty if there are no scores.
        target: target of the plan; null without a plan.
        conclusion: the reason for the pod's node, in one sentence.
    """

    pod: str
    node: str
    group: str
    workload: str
    topology: str
    weight_name: str
    neutral_reason: str
    peers: tuple[Peer, ...]
    candidates: tuple[Candidate, ...]
    target: Target | None
    conclusion: str


def explain(state: State, pod: Pod, ineligible: Mapping[str, str] = {}) -> Explanation:
    """Explain the node of a pod, or the node that it would get, by the current state.

    ``ineligible`` is node -> why it may not run the pod, see `PlanInputs.ineligible_nodes`.

    Raises:
        DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
    """
    namespace = pod.metadata.namespace
    key = state.group_key_of(namespace, pod.group) if pod.group else ""
    score_table = state.score(namespace, pod.group, pod.workload)
    costs = state.costs(state.groups[key].metadata.namespace) if key else Costs(CostTable())
    dependencies, dependents = state.find_peers(key, pod.workload, state.pod_counts(key)) if key else ((), ())
    candidates: Sequence[Candidate] = ()
    if not score_table.neutral_reason:
        arguments = state.locations, state.location_index, costs.table
        by_peer = [score_locations((peer,), (), *arguments) for peer in dependencies]
        by_peer += [score_locations((), (peer,), *arguments) for peer in dependents]
        candidates = _list_candidates(state, pod, score_table, by_peer, ineligible)
    explanation = Explanation(
        pod=pod.metadata.key,
        node=pod.spec.node_name,
        group=key,
        workload=pod.workload,
        topology=costs.network_topology,
        weight_name=costs.weight_name,
        neutral_reason=score_table.neutral_reason,
        peers=(
            *(_describe_peer(state, peer, "depends-on") for peer in dependencies),
            *(_describe_peer(state, peer, "depended-on-by") for peer in dependents),
        ),
        candidates=tuple(candidates),
        target=target_of(pod),
        conclusion="",
    )
    conclusion = _conclude_placed(explanation) if explanation.node else _conclude_waiting(explanation)
    return msgspec.structs.replace(explanation, conclusion=conclusion)


def _describe_peer(state: State, peer: PeerWorkload, direction: Direction) -> Peer:
    pods_by_zone: Counter[str] = Counter()
    for node, count in peer.pods_by_node.items():
        pods_by_zone[state.locations[state.location_index[node]].zone or node] += count
    return Peer(peer.selector, direction, peer.max_cost, dict(sorted(pods_by_zone.items())))


def _list_candidates(
    state: State, pod: Pod, score_table: ScoreTable, by_peer: Sequence[ScoreTable], ineligible: Mapping[str, str]
) -> list[Candidate]:
    """All candidates, the lowest cost first. ``by_peer`` has the pod's scores by each peer alone."""

    def key_of(node: str) -> tuple[int, str]:
        return state.location_index.get(node, -1), node if node in score_table.by_node else ""

    nodes_by_key: dict[tuple[int, str], list[str]] = defaultdict(list)
    for node in state.location_index:
        nodes_by_key[key_of(node)].append(node)
    target, candidates = target_of(pod), []
    for (index, node), nodes in nodes_by_key.items():
        score, location = score_table.node_score(node, index), state.locations[index]
        peer_scores = (table.node_score(node, index) for table in by_peer)
        candidate = Candidate(
            region=location.region,
            zone=location.zone,
            node=node,
            nodes=len(nodes),
            passes=score.passes,
            satisfied=score.satisfied,
            violated=score.violated,
            cost=score.cost,
            score=None,
            peer_costs=tuple(PeerCost(s.cost, s.satisfied, s.violated, s.unknown) for s in peer_scores),
            is_target=target is not None and key_of(target.node) == (index, node),
            has_pod=key_of(pod.spec.node_name) == (index, node),
            ineligible=Counter(ineligible[name] for name in nodes if name in ineligible),
        )
        candidates.append(candidate)
    candidates.sort(key=lambda c: (not c.is_feasible, c.cost, c.region, c.zone, not c.node, c.node))
    costs = [c.cost for c in candidates if c.is_feasible]
    scores = [normalise_cost(c.cost, min(costs), max(costs)) if c.is_feasible else None for c in candidates]
    return [msgspec.structs.replace(c, score=score) for c, score in zip(candidates, scores, strict=True)]


def _conclude_placed(explanation: Explanation) -> str:
    current = next((candidate for candidate in explanation.candidates if candidate.has_pod), None)
    target, node = explanation.target, explanation.node
    details = f"; {explanation.neutral_reason}" if explanation.neutral_reason else ""
    if current is not None:
        details = f": {_format_costs(current, explanation)}{_format_alternatives(current, explanation)}"
    if target is None:
        return f"on {node} by NetworkOverhead{details}"
    if target.node == node:
        return f"on {node} as planned with its group{details}"
    if current is not None and (current.region, current.zone) == target.location:
        return f"on {node} in the planned zone{details}"
    return f"on {node}, though {target.node} was planned{details}"


def _conclude_waiting(explanation: Explanation) -> str:
    candidates, target = explanation.candidates, explanation.target
    best = next((candidate for candidate in candidates if candidate.is_feasible), None)
    if candidates and not any(candidate.passes for candidate in candidates):
        return "no node: every node violates more dependencies than it satisfies"
    if candidates and best is None:
        return "no node: the nodes that the filter passes may not run the pod, or lack resources"
    if target is not None:
        planned = next((candidate for candidate in candidates if candidate.is_target), None)
        details = f": {_format_costs(planned, explanation)}" if planned is not None else ""
        return f"waits for {target.node}, planned with its group{details}"
    if best is None:
        return f"any node: {explanation.neutral_reason}"
    return f"best place {_format_place(best)}: {_format_costs(best, explanation)}"


def _format_place(candidate: Candidate) -> str:
    return candidate.node or candidate.zone or candidate.region or "nodes without zone"


def _format_costs(candidate: Candidate, explanation: Explanation) -> str:
    details = [
        f"{peer.workload} {cost.cost}" + (f" of {peer.max_cost}" if sum(peer.pods_by_zone.values()) == 1 else "")
        for peer, cost in zip(explanation.peers, candidate.peer_costs, strict=True)
        if peer.pods_by_zone
    ]
    violated = f", {candidate.violated} beyond maxNetworkCost" if candidate.violated else ""
    return f"cost {candidate.cost} ({join_first(details, MAX_PEERS_SHOWN)}{violated})"


def _format_alternatives(current: Candidate, explanation: Explanation) -> str:
    location = current.region, current.zone
    others = [c for c in explanation.candidates if (c.region, c.zone) != location and c.is_feasible]
    refused = sum(candidate.nodes for candidate in explanation.candidates if not candidate.passes)
    best_other = f"; best in another zone {_format_place(others[0])} with cost {others[0].cost}" if others else ""
    return best_other + (f"; {refused} nodes refused" if refused else "")
