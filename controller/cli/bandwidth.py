"""`bandwidth`: capacity and allocated bandwidth of nodes, or requests and limits of pods."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, format_coloured_percent, format_short_rate, make_table
from controller.diagnosis.bandwidth import build_bandwidth
from controller.diagnosis.cluster_views import BandwidthView, NodeBandwidthView, PodBandwidthView


class BandwidthCommand(Command):
    examples = (
        ("bandwidth", "by node"),
        ("bandwidth pod -A", "by pod"),
    )
    description = (
        "Nodes: capacity (allocatable, if the node has it), and how much of it pods have requested as network.aware.com/bandwidth. "
        "Pods: requests, limits by annotation, and with --prometheus whether limits are enforced. Actual traffic is on "
        "the Grafana dashboard Bandwidth."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", nargs="?", choices=("node", "pod"), default="node", help="rows (default: node)")

    async def run(self, session: Session, options: argparse.Namespace) -> BandwidthView:
        # Requests on a node come from pods of every namespace.
        snapshot = await session.read_snapshot(bandwidth=True, all_namespaces=options.kind == "node")
        view = build_bandwidth(snapshot)
        return BandwidthView(pods=view.pods) if options.kind == "pod" else BandwidthView(nodes=view.nodes)

    def render(self, answer: BandwidthView, options: argparse.Namespace, width: int) -> RenderableType:
        """A table of nodes, or of pods."""
        if options.kind == "node":
            return _make_node_table(answer.nodes)
        return _make_pod_table(answer.pods) if answer.pods else Text("no pod requests or limits bandwidth", style=FAINT)


def _make_node_table(nodes: Iterable[NodeBandwidthView]) -> RenderableType:
    numeric_headers = ("CAPACITY", "ALLOCATED", "", "PODS")
    table = make_table("NODE", "ZONE", *numeric_headers, numeric=numeric_headers)
    for node in nodes:
        capacity = node.allocatable_bps if node.allocatable_bps is not None else node.capacity_bps
        table.add_row(
            node.node,
            node.zone or "-",
            format_short_rate(capacity) if capacity is not None else Text("unknown", style=FAINT),
            format_short_rate(node.allocated_bps) if node.allocated_bps else "0",
            format_coloured_percent(node.allocated_bps, capacity),
            str(node.pods),
        )
    return table


def _make_pod_table(pods: Sequence[PodBandwidthView]) -> RenderableType:
    """The table of pods, with their problems below it."""
    table = make_table("POD", "NODE", "REQUESTS", "INGRESS", "EGRESS", "", numeric=("REQUESTS", "INGRESS", "EGRESS"))
    problem_lines: list[RenderableType] = []
    for pod in pods:
        name = f"{pod.namespace}/{pod.name}"
        problems = [*(f"{direction} {verdict}" for direction, verdict in pod.ineffective_verdicts.items()), pod.problem]
        problem_text = "; ".join(filter(None, problems))
        has_effect = any(verdict != "not-applicable" for verdict in pod.verdicts.values())
        sign = Text("✓", style=GOOD) if has_effect else Text("-", style=FAINT)
        if problem_text:
            sign = Text("✗", style=BAD)
            problem_lines.append(Text.assemble((name, STRONG), (f"  ✗ {problem_text}", BAD)))
        table.add_row(
            name,
            pod.node or Text("pending", style="italic"),
            format_short_rate(pod.requested_bps) if pod.requested_bps else "-",
            _format_limit(pod.ingress_limit, pod.ingress_limit_bps),
            _format_limit(pod.egress_limit, pod.egress_limit_bps),
            sign,
        )
    return Group(table, *([Text(), *problem_lines] if problem_lines else []))


def _format_limit(annotation: str | None, limit_bps: int | None) -> Text:
    if annotation is None:
        return Text("-", style=FAINT)
    return Text(format_short_rate(limit_bps)) if limit_bps is not None else Text(repr(annotation), style=BAD)
