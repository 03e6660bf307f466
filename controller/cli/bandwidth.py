"""`bandwidth`: requested, allocated, enforced and used bandwidth."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, grid, share, short_rate
from controller.diagnosis.bandwidth import build_bandwidth
from controller.diagnosis.model import BandwidthView, NodeBandwidthView, PodBandwidthView, View


class BandwidthAnswer(View, frozen=True):
    """Nodes or pods; ``readings`` tells whether Prometheus answered."""

    bandwidth: BandwidthView
    readings: bool


class Bandwidth(Command):
    """See `controller.cli.command.Command`."""

    name = "bandwidth"
    examples = (
        ("bandwidth", "by node"),
        ("bandwidth pod -A", "by pod, with what the agents find"),
    )
    description = (
        "Nodes: what the NIC offers, what pods have booked of it (requests for network.aware.com/bandwidth), what flows. "
        "Pods: what they request, what their annotations limit, whether the agent finds the limit enforced, what flows. "
        "What flows and what is enforced comes from Prometheus (--prometheus); without it these columns are left out."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("kind", nargs="?", choices=("node", "pod"), default="node", help="default: node")

    async def ask(self, session: Session, options: argparse.Namespace) -> BandwidthAnswer:
        """Read the cluster, and select the nodes or pods to show."""
        if options.kind == "node":
            # Requests on a node come from pods of every namespace.
            session.namespace = None
        snapshot = await session.snapshot(bandwidth=True, readings=True)
        found = build_bandwidth(snapshot)
        known = bool(snapshot.readings.source) and not snapshot.readings.error
        shown = BandwidthView(pods=found.pods) if options.kind == "pod" else BandwidthView(nodes=found.nodes)
        return BandwidthAnswer(bandwidth=shown, readings=known)

    def show(self, answer: BandwidthAnswer, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """A table of nodes, or of pods."""
        unit = Text("rates in bit/s" + ("; used of limit" if answer.readings else ""), style=FAINT)
        if options.kind == "node":
            return Group(_nodes(answer.bandwidth.nodes, answer.readings), unit)
        pods = answer.bandwidth.pods
        return Group(_pods(pods, answer.readings), unit) if pods else Text("no pod asks for bandwidth", style=FAINT)

    def is_bad(self, answer: BandwidthAnswer) -> bool:
        """A node is overcommitted, or a limit does not hold."""
        nodes, pods = answer.bandwidth.nodes, answer.bandwidth.pods
        return any(n.overcommitted for n in nodes) or any(p.problem or p.unenforced for p in pods)


def _nodes(nodes: Iterable[NodeBandwidthView], readings: bool) -> RenderableType:
    used = ("SENT", "RECEIVED") if readings else ()
    numbers = ("CAPACITY", "ALLOCATED", "", "PODS", *used)
    table = grid("NODE", "ZONE", *numbers, right=numbers)
    for node in nodes:
        capacity = node.allocatable_bps if node.allocatable_bps is not None else node.capacity_bps
        table.add_row(
            node.node,
            node.zone or "-",
            short_rate(capacity) if capacity is not None else Text("unknown", style=FAINT),
            short_rate(node.allocated_bps) if node.allocated_bps else "0",
            share(node.allocated_bps, capacity),
            str(node.pods),
            *((short_rate(node.transmit_bps), short_rate(node.receive_bps)) if readings else ()),
        )
    return table


def _pods(pods: Sequence[PodBandwidthView], readings: bool) -> RenderableType:
    """The table of pods, with problems below it."""
    table = grid("POD", "NODE", "REQUESTS", "INGRESS", "EGRESS", "", right=("REQUESTS", "INGRESS", "EGRESS"))
    remarks: list[RenderableType] = []
    for pod in pods:
        name = f"{pod.namespace}/{pod.name}"
        wrong = [*(f"{direction} {verdict}" for direction, verdict in pod.unenforced.items()), pod.problem]
        if text := "; ".join(filter(None, wrong)):
            remarks.append(Text.assemble((name, STRONG), (f"  ✗ {text}", BAD)))
        table.add_row(
            name,
            pod.node or Text("pending", style="italic"),
            short_rate(pod.requested_bps) if pod.requested_bps else "-",
            _of_limit(pod.ingress_used_bps if readings else None, _limit(pod.ingress_asked, pod.ingress_asked_bps)),
            _of_limit(pod.egress_used_bps if readings else None, _limit(pod.egress_asked, pod.egress_asked_bps)),
            Text("✗", style=BAD) if text else Text("✓" if pod.verdicts else "-", style=GOOD),
        )
    return Group(table, *([Text(), *remarks] if remarks else []))


def _of_limit(used_bps: float | None, limit: Text) -> Text:
    return limit if used_bps is None else Text.assemble(f"{short_rate(used_bps)} of ", limit)


def _limit(text: str | None, rate_bps: int | None) -> Text:
    if text is None:
        return Text("-", style=FAINT)
    return Text(short_rate(rate_bps)) if rate_bps is not None else Text(repr(text), style=BAD)
