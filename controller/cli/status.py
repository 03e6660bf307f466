"""`status`: all parts and findings on one screen."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.cli.command import Command
from controller.cli.diagnose import render_findings
from controller.cli.session import Session
from controller.cli.shared import note_unused_costs
from controller.cli.style import GOOD, STRONG, format_age, format_percent, format_rate
from controller.views.model import Overview
from controller.views.overview import build_overview


class StatusCommand(Command):
    examples = (
        ("status", "all parts and findings"),
        ("status --exit-code -o json", "for a script: exit code 3 if a finding is worse than info"),
        ("status --prometheus http://localhost:9090", "with limits that are not enforced"),
    )
    description = (
        "One line for each part of the system, then the findings, as `diagnose` shows them. "
        "With --prometheus, limits that are not enforced are added. "
        "Counts AppGroups and pods of all namespaces, or with -n of one."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--exit-code", action="store_true", help="exit with 3 if a finding is worse than info")

    async def run(self, session: Session, options: argparse.Namespace) -> Overview:
        if not options.namespace:
            session.namespace = None
        snapshot = await session.snapshot(everything=True)
        answer = build_overview(snapshot, namespace=session.namespace)
        note_unused_costs(session, answer.network)
        return answer

    def render(self, answer: Overview, options: argparse.Namespace, width: int) -> RenderableType:
        """A line for each part, then the findings; only these if netaware is not installed."""
        findings = render_findings(answer.findings, answer.at)
        if any(finding.code == "not-installed" for finding in answer.findings):
            return Group(*findings)
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style=STRONG, no_wrap=True)
        lines.add_column(overflow="fold")
        for name, text in _lines(answer):
            lines.add_row(name, text)
        return Group(lines, Text(), *(findings or [Text("✓ nothing is wrong", style=GOOD)]))


def _lines(answer: Overview) -> Iterable[tuple[str, str]]:
    """Label and text of each line."""
    network, agents, groups, bandwidth = answer.network, answer.agents, answer.groups, answer.bandwidth
    up = [agent for agent in agents if agent.state == "up"]
    expected = sum(agent.state != "excluded" for agent in agents)
    probers = Counter(agent.prober or "unknown prober" for agent in up)
    kinds = [f"{count} {prober}" for prober, count in sorted(probers.items())]
    versions = sorted({f"version {agent.version}" for agent in up if agent.version})
    yield "Agents", "  ".join([f"{len(up)} of {expected} up in {len(network.zones)} zones", *kinds, *versions])
    measured = {frozenset((p.origin, p.destination)): p.measured_at for p in network.pairs if p.measured_at is not None}
    text = f"{len(measured)} of {len(network.zones) * (len(network.zones) - 1) // 2} zone pairs measured"
    if measured:
        text += f"  oldest {format_age(answer.at - min(measured.values()))} ago"
    yield "Samples", text
    costs = [p.cost for p in network.pairs if p.cost is not None]
    span = f", {min(costs)} to {max(costs)}" if costs else ""
    yield "Costs", f"{len(costs)} of {len(network.pairs)} pairs{span}  {network.topology or ''} {network.weights or ''}"
    running, members = sum(g.running for g in groups), sum(g.members for g in groups)
    violated, edges = sum(g.violated for g in groups), sum(len(g.edges) for g in groups)
    yield "AppGroups", f"{len(groups)}  {running} of {members} pods run  {violated} of {edges} dependencies violated"
    total_bps = sum(n.allocatable_bps or 0 for n in bandwidth.nodes)
    allocated_bps = sum(n.allocated_bps for n in bandwidth.nodes)
    text = f"{sum(n.allocatable_bps is not None for n in bandwidth.nodes)} of {len(bandwidth.nodes)} nodes publish their capacity"
    if total_bps:
        text += f"  {format_rate(allocated_bps)} of {format_rate(total_bps)} allocated ({format_percent(allocated_bps, total_bps)})"
    yield "Bandwidth", text
