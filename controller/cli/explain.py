"""`explain pod NAME`: candidate zones and nodes, the cost of each dependency there, and what decided."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.diagnose import diagnose_listed_pod, render_pod
from controller.cli.plan_inputs import read_inputs
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, format_counts, make_table
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import build_facts
from controller.diagnosis.pod_diagnosis import PodDiagnosis
from controller.scheduler.explain import Candidate, Explanation, Peer, PeerCost, explain
from kubekit.text import pluralize

MAX_CANDIDATES_SHOWN, MAX_PEER_COLUMNS, MAX_REASONS_SHOWN = 30, 6, 2


class ExplainView(msgspec.Struct, frozen=True, rename="camel"):
    """The explanation and the diagnosis of a pod; ``read_at`` is when they were read (unix seconds)."""

    read_at: float
    explanation: Explanation
    diagnosis: PodDiagnosis


class ExplainCommand(Command):
    examples = (("explain pod cart-5d9f -n shop", "where a pod could be, and what decided"),)
    description = (
        "For a pod of an AppGroup: the zones and nodes where it could be, the cost of each dependency from there (✗ over its "
        "maxNetworkCost, ? partly unknown), how many nodes may not run the pod and why, the score of those that may, and what "
        "decided. Columns are the workloads that the pod depends on; those in brackets depend on it and only count in the score. "
        "Uses the scheduler's rules, the running controller's configuration, and the present state. For a whole group, use the command graph."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", choices=("pod",), help="explain a pod")
        parser.add_argument("name", metavar="NAME", help="name of the pod")

    async def run(self, session: Session, options: argparse.Namespace) -> ExplainView:
        pod = await session.read_pod(options.name)
        snapshot = await session.read_snapshot(everything=True, all_namespaces=True)
        inputs, _ = await read_inputs(session, snapshot)
        key, state = pod.metadata.key, inputs.state
        # The pod is explained as if it were not bound yet: remove it from the inputs.
        listed_pod = next((other for other in snapshot.pods if other.metadata.key == key), None)
        state.on_pod_change(key, listed_pod, None)
        inputs.node_cache.remove_pods(lambda info: info.key == key)
        explanation, facts = explain(state, pod, inputs.ineligible_nodes(pod)), build_facts(snapshot, pod)
        return ExplainView(snapshot.now_s, explanation, diagnose_listed_pod(pod, facts, diagnose(facts)))

    def render(self, answer: ExplainView, options: argparse.Namespace, width: int) -> RenderableType:
        """The diagnosis or the conclusion, then the tables of peers and of candidates."""
        explanation, pod = answer.explanation, answer.diagnosis
        parts: list[RenderableType] = [_make_headline(explanation)]
        # For a finished pod, and for a placed pod without a fix, the headline suffices.
        if pod.kind != "finished" and (pod.kind != "placed" or pod.fix):
            parts += render_pod(pod, answer.read_at)
        # The scheduler decides only about pods that are placed or wait for it.
        if pod.kind in {"placed", "waiting"}:
            parts.append(Text(explanation.conclusion))
        if explanation.peers:
            parts += [Text(), _make_peer_table(explanation)]
        if explanation.candidates:
            parts += [Text(), _make_candidate_table(explanation)]
        return Group(*parts)


def _make_headline(explanation: Explanation) -> Text:
    text = Text.assemble((explanation.pod, STRONG))
    if explanation.group:
        text.append(f"  {explanation.workload} of AppGroup {explanation.group}")
    if explanation.topology:
        text.append(f"  costs: {explanation.topology} {explanation.weight_name}".rstrip(), style=FAINT)
    return text


def _make_peer_table(explanation: Explanation) -> RenderableType:
    table = make_table("DEPENDENCY", "IS", "MAX COST", "ITS PODS ARE IN", numeric=("MAX COST",))
    for peer in explanation.peers:
        zones = format_counts(peer.pods_by_zone) or Text("nowhere yet", style=FAINT)
        direction = "caller" if peer.direction == "depended-on-by" else "called"
        table.add_row(peer.workload, Text(direction, style=FAINT), str(peer.max_cost), zones)
    return table


def _make_candidate_table(explanation: Explanation) -> RenderableType:
    """The best candidates, then those where the pod runs or is planned."""
    peers = explanation.peers[:MAX_PEER_COLUMNS]
    names = [p.workload if p.direction == "depends-on" else f"({p.workload})" for p in peers]
    hidden_peer_count = len(explanation.peers) - len(peers)
    numeric_headers = (*names, *([f"+{hidden_peer_count}"] if hidden_peer_count else []), "COST", "SCORE")
    table = make_table("", "ZONE", "NODES", *numeric_headers, numeric=numeric_headers)
    own_candidates = (c for c in explanation.candidates[MAX_CANDIDATES_SHOWN:] if c.has_pod or c.is_target)
    for candidate in (*explanation.candidates[:MAX_CANDIDATES_SHOWN], *own_candidates):
        peer_costs = zip(candidate.peer_costs[:MAX_PEER_COLUMNS], peers, strict=True)
        cells = [_format_peer_cost(cost, peer) for cost, peer in peer_costs]
        if hidden_peer_count:
            cells.append(Text(str(sum(cost.cost for cost in candidate.peer_costs[MAX_PEER_COLUMNS:])), style=FAINT))
        table.add_row(
            _format_sign(candidate),
            candidate.zone or candidate.region or "-",
            ", ".join((candidate.node or pluralize(candidate.nodes, "node"), *_format_reasons(candidate))),
            *cells,
            str(candidate.cost),
            _format_score(candidate),
        )
    legend = Text("● here  ○ planned  ✗ refused by the filter", style=FAINT)
    hidden_count = len(explanation.candidates) - len(table.rows)
    notes = [Text(f"and {hidden_count} more; -o json has all", style=FAINT)] if hidden_count else []
    return Group(table, legend, *notes)


def _format_sign(candidate: Candidate) -> Text:
    if candidate.has_pod:
        return Text("●", style=GOOD)
    if candidate.is_target:
        return Text("○", style=GOOD)
    return Text("" if candidate.passes else "✗", style=BAD)


def _format_score(candidate: Candidate) -> Text:
    if not candidate.passes:
        return Text("refused", style=BAD)
    return Text("-" if candidate.score is None else str(candidate.score))


def _format_reasons(candidate: Candidate) -> list[str]:
    """Reasons why nodes may not run the pod, the most frequent first."""
    node_counts = sorted(candidate.ineligible.items(), key=lambda item: (-item[1], item[0]))
    return [reason if candidate.node else f"{count} {reason}" for reason, count in node_counts[:MAX_REASONS_SHOWN]]


def _format_peer_cost(cost: PeerCost, peer: Peer) -> Text:
    if not peer.pods_by_zone:
        return Text("-", style=FAINT)
    if cost.violated:
        return Text(f"{cost.cost}✗", style=BAD)
    return Text(f"{cost.cost}?" if cost.unknown else str(cost.cost))
