"""`status`: all parts and findings on one screen."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table as Lines
from rich.text import Text

from controller.cli.command import Command
from controller.cli.diagnose import describe
from controller.cli.session import Session
from controller.cli.shared import note_unused
from controller.cli.style import BAD, FAINT, GOOD, STRONG, age, percent, rate
from controller.diagnosis.model import NetworkView
from controller.views.model import Overview
from controller.views.overview import build
from kubekit.text import counted

SHOWN = 3


class ShowStatus(Command):
    """See `controller.cli.command.Command`."""

    name = "status"
    examples = (
        ("status", "is it working, on one screen"),
        ("status --exit-code -o json", "for a script: exit code 3 when something is wrong"),
        ("status --prometheus http://localhost:9090", "with alerts that only history can judge"),
    )
    description = (
        "One line per part of the system, then what is wrong, as `diagnose` shows it. "
        "With --prometheus, limits that are not enforced and firing alerts are added. "
        "AppGroups and pods of all namespaces count, unless -n is given."
    )

    async def ask(self, session: Session, options: argparse.Namespace) -> Overview:
        """Read everything."""
        if not options.namespace:
            session.namespace = None
        await session.ask_controllers()
        snapshot = await session.snapshot(groups=True, bandwidth=True, agents=True, readings=True, control_plane=True)
        answer = build(snapshot, namespace=session.namespace)
        note_unused(session, answer.network)
        return answer

    def show(self, answer: Overview, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The screen."""
        lines = Lines.grid(padding=(0, 2, 0, 0))
        lines.add_column(style=STRONG, no_wrap=True)
        lines.add_column(overflow="fold")
        for name, text in _lines(answer):
            lines.add_row(name, text)
        if any(finding.code == "not-installed" for finding in answer.findings):
            return Group(*describe(answer.findings, answer.at))
        return Group(lines, Text(), *(describe(answer.findings, answer.at) or [Text("✓ nothing is wrong", style=GOOD)]))

    def is_bad(self, answer: Overview) -> bool:
        """There is a finding that is more than a remark."""
        return any(finding.severity != "info" for finding in answer.findings)


def _lines(answer: Overview) -> Iterable[tuple[str, Text]]:
    yield "Agents", _agents(answer)
    yield "Samples", _samples(answer.network, answer.at)
    yield "Costs", _costs(answer.network)
    yield "AppGroups", _groups(answer)
    yield "Bandwidth", _bandwidth(answer)
    if answer.prometheus:
        state = answer.prometheus_error or f"{sum(bool(f.firing) for f in answer.findings)} of our alerts firing"
        yield "Prometheus", Text.assemble(answer.prometheus, (f"  {state}", BAD if answer.prometheus_error else ""))


def _agents(answer: Overview) -> Text:
    states = Counter(agent.state for agent in answer.agents)
    probers = Counter(agent.prober or "unknown prober" for agent in answer.agents if agent.state == "up")
    versions = {agent.version for agent in answer.agents if agent.state == "up" and agent.version}
    wanted = len(answer.agents) - states["away"]
    text = Text(f"{states['up']} of {wanted} up")
    text.append(f" in {len(answer.network.zones)} zones", style=FAINT)
    if states["down"]:
        text.append(f"  {states['down']} down", style=BAD)
    if states["away"]:
        text.append(f"  {states['away']} nodes not in use", style=FAINT)
    details = [f"{count} {prober}" for prober, count in sorted(probers.items())]
    text.append(f"  {', '.join(details)}" if details else "", style=FAINT)
    if versions:
        text.append(f"  version {' and '.join(sorted(versions))}", style=BAD if len(versions) > 1 else FAINT)
    return text


def _samples(network: NetworkView, at: float) -> Text:
    links = {frozenset((p.origin, p.destination)): p for p in network.pairs if p.measured_at is not None}
    possible = len(network.zones) * (len(network.zones) - 1) // 2
    text = Text(f"{len(links)} of {possible} zone pairs measured")
    ages = sorted(at - p.measured_at for p in links.values() if p.measured_at is not None)
    if network.interval_s is None:
        text.append("  no probe plan", style=BAD)
    else:
        text.append(f"  a round every {age(network.interval_s)}", style=FAINT)
    if ages:
        text.append(f"  newest {age(ages[0])}, oldest {age(ages[-1])} ago", style=FAINT)
    return text


def _costs(network: NetworkView) -> Text:
    if network.topology is None:
        return Text("no NetworkTopology", style=BAD)
    known = [p.cost for p in network.pairs if p.cost is not None]
    text = Text(f"{len(known)} of {len(network.pairs)} pairs")
    if known:
        text.append(f", {min(known)} to {max(known)}")
    text.append(f"  {network.topology} {network.weights or 'without weights'}", style=FAINT)
    return text


def _groups(answer: Overview) -> Text:
    groups = answer.groups
    if not groups:
        return Text("none", style=FAINT)
    running, members = sum(g.running for g in groups), sum(g.members for g in groups)
    text = Text(f"{len(groups)}")
    text.append(f"  {running} of {members} members running", style=FAINT)
    for count, what in ((sum(g.gated for g in groups), "gated"), (sum(g.pending for g in groups), "pending")):
        if count:
            text.append(f"  {count} {what}")
    violated, edges = sum(g.violated for g in groups), sum(len(g.edges) for g in groups)
    text.append(f"  {violated} of {edges} dependencies violated", style=BAD if violated else FAINT)
    return text


def _bandwidth(answer: Overview) -> Text:
    nodes = answer.bandwidth.nodes
    known = [n for n in nodes if n.allocatable_bps is not None]
    total = sum(n.allocatable_bps or 0 for n in known)
    text = Text(f"{len(known)} of {len(nodes)} nodes publish their capacity")
    if total:
        allocated = sum(n.allocated_bps for n in nodes)
        text.append(
            f"  {rate(allocated) if allocated else '0'} of {rate(total)} allocated ({percent(allocated, total)})",
            style=FAINT,
        )
    limited = sum(p.ingress_asked is not None or p.egress_asked is not None for p in answer.bandwidth.pods)
    if limited:
        text.append(f"  {counted(limited, 'pod')} with limits", style=FAINT)
    return text
