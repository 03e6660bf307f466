"""`status`: all parts and findings on one screen."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.cli.command import Command
from controller.cli.diagnose import render_findings
from controller.cli.session import Session
from controller.cli.style import GOOD, STRONG, format_age, format_percent, format_rate
from controller.diagnosis.cluster_views import BandwidthView, NetworkView
from controller.views.group_views import GroupView
from controller.views.overview import Overview, build_overview


class StatusCommand(Command):
    examples = (
        ("status", "all parts and findings"),
        ("status --exit-code -o json", "for a script: exit code 3 if a finding is worse than info"),
        ("status --prometheus http://localhost:9090", "also bandwidth limits that are not enforced"),
    )
    description = (
        "One line for each part of the system, then the findings, as `diagnose` shows them. "
        "With --prometheus, the findings include bandwidth limits that are not enforced. "
        "Counts AppGroups, and the bandwidth that pods request, of all namespaces or, with -n, of one namespace."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--exit-code", action="store_true", help="exit with 3 if a finding is worse than info")

    async def run(self, session: Session, options: argparse.Namespace) -> Overview:
        # The kubeconfig's namespace does not count here.
        namespace = session.namespace if options.namespace else None
        snapshot = await session.read_snapshot(everything=True, all_namespaces=namespace is None)
        answer = build_overview(snapshot, namespace=namespace)
        session.note_unused_costs(answer.network)
        return answer

    def render(self, answer: Overview, options: argparse.Namespace, width: int) -> RenderableType:
        """A line for each part, then the findings; only these if netaware is not installed."""
        findings = render_findings(answer.findings, answer.read_at)
        if any(finding.code == "not-installed" for finding in answer.findings):
            return Group(*findings)
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style=STRONG, no_wrap=True)
        lines.add_column(overflow="fold")
        lines.add_row("Agents", _format_agents(answer))
        lines.add_row("Samples", _format_samples(answer))
        lines.add_row("Costs", _format_costs(answer.network))
        lines.add_row("AppGroups", _format_groups(answer.groups))
        lines.add_row("Bandwidth", _format_bandwidth(answer.bandwidth))
        return Group(lines, Text(), *(findings or [Text("✓ nothing is wrong", style=GOOD)]))


def _format_agents(answer: Overview) -> str:
    agents_up = [agent for agent in answer.agents if agent.state == "up"]
    expected = sum(agent.state != "excluded" for agent in answer.agents)
    counts_by_prober = Counter(agent.prober or "unknown prober" for agent in agents_up)
    probers = [f"{count} {prober}" for prober, count in sorted(counts_by_prober.items())]
    versions = sorted({f"version {agent.version}" for agent in agents_up if agent.version})
    return "  ".join([f"{len(agents_up)} of {expected} up in {len(answer.network.zones)} zones", *probers, *versions])


def _format_samples(answer: Overview) -> str:
    zone_count = len(answer.network.zones)
    measured_at: dict[frozenset[str], float] = {}
    for pair in answer.network.pairs:
        if pair.measured_at is not None:
            zones = frozenset(pair.zones)  # Its directions may show different samples: the newer one counts.
            measured_at[zones] = max(pair.measured_at, measured_at.get(zones, 0.0))
    oldest = f"  oldest {format_age(answer.read_at - min(measured_at.values()))} ago" if measured_at else ""
    return f"{len(measured_at)} of {zone_count * (zone_count - 1) // 2} zone pairs measured{oldest}"


def _format_costs(network: NetworkView) -> str:
    costs = [p.cost for p in network.pairs if p.cost is not None]
    cost_range = f", {min(costs)} to {max(costs)}" if costs else ""
    source = " ".join(filter(None, (network.topology, network.weight_name)))
    return f"{len(costs)} of {len(network.pairs)} directed pairs{cost_range}  {source}".rstrip()


def _format_groups(groups: Collection[GroupView]) -> str:
    pods = f"{sum(g.running_pods for g in groups)} of {sum(g.num_members for g in groups)} pods run"
    violated_count = sum(g.violated_dependencies for g in groups)
    dependencies = f"{violated_count} of {sum(len(g.dependencies) for g in groups)} dependencies violated"
    return f"{len(groups)} groups  {pods}  {dependencies}"


def _format_bandwidth(bandwidth: BandwidthView) -> str:
    nodes = bandwidth.nodes_with_capacity
    allocated_bps = sum(n.allocated_bps for n in nodes)
    total_bps = sum(n.allocatable_bps or 0 for n in nodes)
    text = f"{len(nodes)} of {len(bandwidth.nodes)} nodes publish their capacity"
    if total_bps:
        share = format_percent(allocated_bps, total_bps)
        text += f"  {format_rate(allocated_bps)} of {format_rate(total_bps)} allocated ({share})"
    return text
