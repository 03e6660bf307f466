"""`explain pod NAME`: candidate zones and nodes, the cost of each dependency there, and what decided."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.diagnose import describe_pod
from controller.cli.plan_inputs import read_inputs
from controller.cli.session import Session
from controller.cli.shared import pod_diagnosis
from controller.cli.style import BAD, FAINT, GOOD, STRONG, grid
from controller.diagnosis.pods import PodDiagnosis
from controller.diagnosis.reading import read_facts
from controller.diagnosis.rules import diagnose
from controller.scheduler.explain import CandidateLine, Cell, Explanation, PeerLine, explain
from kubekit.text import counted

MAX_CANDIDATES = 30
MAX_PEERS, MAX_REASONS = 6, 2


class ExplainView(msgspec.Struct, frozen=True, rename="camel"):
    """The explanation of a pod; ``at`` is unix seconds."""

    now: Explanation
    diagnosis: PodDiagnosis | None = None
    at: float = 0.0


class ExplainCommand(Command):
    """See `controller.cli.command.Command`."""

    examples = (("explain pod cart-5d9f -n shop", "where it could be, and what decided"),)
    description = (
        "For a pod of an AppGroup: the zones and nodes it could be on, what each of its dependencies costs from there (✗ beyond "
        "its maxNetworkCost), how many nodes may not run it and why, the score among those that pass, and what decided. Columns are the "
        "workloads it depends on, and in brackets those that depend on it, which only weigh in the score. Computed by the scheduler's own rules, with the "
        "running controller's configuration, from what holds now. Of a whole group, see graph."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("kind", choices=("pod",), help="what to explain")
        parser.add_argument("name", metavar="NAME", help="the pod")

    async def run(self, session: Session, options: argparse.Namespace) -> ExplainView:
        """Read the pod, its group, and the state that rules need."""
        pod = await session.pod(options.name)
        session.namespace = None
        snapshot = await session.snapshot(everything=True)
        inputs, _ = await read_inputs(session, snapshot)
        key, state = pod.metadata.key, inputs.state
        # The pod is explained as if it were not bound yet.
        known = next((other for other in snapshot.pods if other.metadata.key == key), None)
        state.on_pod_change(key, known, None)
        inputs.node_cache.drop(lambda info: info.key == key)
        now, facts = explain(state, pod, inputs.ineligible_nodes(pod)), read_facts(snapshot, pod)
        return ExplainView(now, pod_diagnosis(pod, facts, diagnose(facts)), snapshot.now_s)

    def render(self, answer: ExplainView, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """Print the reason, then the table."""
        now = answer.now
        parts: list[RenderableType] = [_headline(now)]
        pod = answer.diagnosis
        # The headline suffices for a placed pod without a finding, and for a finished one.
        if pod is not None and pod.kind != "finished" and (pod.kind != "placed" or pod.fix):
            parts += describe_pod(pod, answer.at)
        # The rule decides only about pods that are placed or wait for the scheduler.
        if pod is None or pod.kind in {"placed", "waiting"}:
            parts.append(Text(now.decided))
        if now.peers:
            parts += [Text(), _peers(now)]
        if now.candidates:
            parts += [Text(), _candidates(now)]
            more = len(now.candidates) - MAX_CANDIDATES
            if more > 0:
                parts.append(Text(f"and {more} more; -o json has all", style=FAINT))
        return Group(*parts)


def _headline(now: Explanation) -> Text:
    text = Text.assemble((now.pod, STRONG))
    if now.group:
        text.append(f"  {now.workload} of AppGroup {now.group}")
    if now.topology:
        text.append(f"  costs: {now.topology} {now.weight}".rstrip(), style=FAINT)
    return text


def _peers(now: Explanation) -> RenderableType:
    table = grid("DEPENDENCY", "", "MAX COST", "ITS PODS ARE IN", right=("MAX COST",))
    for peer in now.peers:
        places = ", ".join(zone if count == 1 else f"{zone} ×{count}" for zone, count in peer.places.items())
        direction = "needs it" if peer.direction == "depended-on-by" else "needed"
        table.add_row(
            peer.workload, Text(direction, style=FAINT), str(peer.max_cost), places or Text("nowhere yet", style=FAINT)
        )
    return table


def _candidates(now: Explanation) -> RenderableType:
    peers = now.peers[:MAX_PEERS]
    names = [p.workload if p.direction == "depends-on" else f"({p.workload})" for p in peers]
    hidden = len(now.peers) - len(names)
    columns = (*names, *((f"+{hidden}",) if hidden > 0 else ()))
    table = grid("", "ZONE", "NODES", *columns, "COST", "SCORE", right=(*columns, "COST", "SCORE"))
    for line in _shown(now.candidates):
        sign, style = (
            ("●", GOOD) if line.chosen else ("○", GOOD) if line.planned else ("✗", BAD) if not line.passes else ("", "")
        )
        cells = [_cell(cell, peer) for cell, peer in zip(line.cells, now.peers, strict=True)][: len(names)]
        rest = [Text(str(sum(cell.cost for cell in line.cells[len(names) :])), style=FAINT)] if hidden > 0 else []
        score = str(line.score) if line.score is not None else "-" if line.passes else "refused"
        nodes = ", ".join((line.node or counted(line.nodes, "node"), *_reasons(line)))
        table.add_row(
            Text(sign, style=style),
            line.zone or line.region or "-",
            nodes,
            *cells,
            *rest,
            str(line.cost),
            Text(score, style=BAD if line.score is None else ""),
        )
    return Group(table, Text("● here  ○ planned  ✗ refused by the filter", style=FAINT))


def _shown(lines: Sequence[CandidateLine]) -> Iterable[CandidateLine]:
    """The best candidates, and those where the pod is or is planned."""
    return [line for i, line in enumerate(lines) if i < MAX_CANDIDATES or line.chosen or line.planned]


def _reasons(line: CandidateLine) -> list[str]:
    """Reasons why nodes may not run the pod, the most frequent first."""
    ranked = sorted(line.ineligible.items(), key=lambda item: (-item[1], item[0]))
    return [why if line.node else f"{count} {why}" for why, count in ranked[:MAX_REASONS]]


def _cell(cell: Cell, peer: PeerLine) -> Text:
    if not peer.places:
        return Text("-", style=FAINT)
    sign = "✗" if cell.violated else "?" if cell.unknown else ""
    return Text(f"{cell.cost}{sign}", style=BAD if cell.violated else "")
