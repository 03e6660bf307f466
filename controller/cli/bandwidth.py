"""`bandwidth`: asked, allocated, enforced, used."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import NotFoundError, Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, grid, share, short_rate
from controller.diagnosis.bandwidth import build_bandwidth
from controller.diagnosis.model import ENFORCED_VERDICTS, BandwidthView, NodeBandwidthView, PodBandwidthView, View

_WORDS = {"ingress": "in", "egress": "out"}


class BandwidthAnswer(View, frozen=True):
    """Nodes and pods that were asked for; ``readings`` tells whether Prometheus answered."""

    bandwidth: BandwidthView
    readings: bool


class Bandwidth(Command):
    """See `controller.cli.command.Command`."""

    name = "bandwidth"
    examples = (
        ("bandwidth", "by node"),
        ("bandwidth pod -A", "by pod, with verdicts"),
        ("bandwidth node n1", "one node's pods"),
    )
    description = (
        "Nodes: what the NIC offers, what pods have booked of it (requests for network.aware.com/bandwidth), what flows. "
        "Pods: what they request, what their annotations limit, whether the agent finds the limit enforced, what flows. "
        "What flows and what is enforced comes from Prometheus (--prometheus); without it these columns are left out."
    )
    completes = "nodes"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("kind", nargs="?", choices=("node", "pod"), default="node", help="default: node")
        parser.add_argument(
            "name", nargs="?", default="", metavar="NAME", help="one of them; a node's name lists its pods"
        )

    async def ask(self, session: Session, options: argparse.Namespace) -> BandwidthAnswer:
        """Read everything, and select what was asked for."""
        if options.kind == "node":
            # Requests on a node come from pods of every namespace.
            session.namespace = None
        snapshot = await session.snapshot(bandwidth=True, readings=True)
        found = build_bandwidth(snapshot)
        known = bool(snapshot.readings.source) and not snapshot.readings.error
        if options.kind == "node" and options.name:
            nodes = tuple(n for n in found.nodes if n.node == options.name)
            _must(nodes, f"there is no node {options.name!r}")
            pods = tuple(p for p in found.pods if p.node == options.name)
        elif options.kind == "node":
            nodes, pods = found.nodes, ()
        else:
            nodes, pods = (), tuple(p for p in found.pods if not options.name or p.name == options.name)
            _must(not options.name or pods, f"no pod {options.name!r} asks for bandwidth here")
        return BandwidthAnswer(bandwidth=BandwidthView(nodes=nodes, pods=pods), readings=known)

    def show(self, answer: BandwidthAnswer, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """One table, or a node and its pods."""
        nodes, pods = answer.bandwidth.nodes, answer.bandwidth.pods
        parts: list[RenderableType] = []
        if nodes:
            parts.append(_nodes(nodes, answer.readings))
        if pods or options.kind == "pod":
            parts += [Text()] if parts else []
            parts.append(_pods(pods, answer.readings) if pods else Text("no pod asks for bandwidth", style=FAINT))
        return Group(
            *parts, Text("rates in bit/s" + ("; used of limit" if answer.readings and pods else ""), style=FAINT)
        )

    def is_bad(self, answer: BandwidthAnswer) -> bool:
        """A node is overcommitted, or a limit does not hold."""
        nodes, pods = answer.bandwidth.nodes, answer.bandwidth.pods
        return any(n.overcommitted for n in nodes) or any(p.problem or p.unenforced for p in pods)


def _must(found: object, message: str) -> None:
    if not found:
        raise NotFoundError(message)


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
    """Without the namespace if all have the same; what is wrong in lines below the table."""
    several = len({pod.namespace for pod in pods}) > 1
    lead = ("NAMESPACE",) if several else ()
    table = grid(*lead, "POD", "NODE", "REQUESTS", "INGRESS", "EGRESS", "", right=("REQUESTS", "INGRESS", "EGRESS"))
    remarks: list[RenderableType] = []
    for pod in pods:
        verdict = _verdict(pod)
        bad = "✗" in verdict.plain
        if bad:
            remarks.append(Text.assemble((pod.name, STRONG), "  ", verdict))
        table.add_row(
            *((pod.namespace,) if several else ()),
            pod.name,
            pod.node or Text("pending", style="italic"),
            short_rate(pod.requested_bps) if pod.requested_bps else "-",
            _of_limit(pod.ingress_used_bps if readings else None, _limit(pod.ingress_asked, pod.ingress_asked_bps)),
            _of_limit(pod.egress_used_bps if readings else None, _limit(pod.egress_asked, pod.egress_asked_bps)),
            Text("✗", style=BAD) if bad else Text(verdict.plain[:1], style=GOOD),
        )
    return Group(table, *([Text(), *remarks] if remarks else []))


def _of_limit(used_bps: float | None, limit: Text) -> Text:
    return limit if used_bps is None else Text.assemble(f"{short_rate(used_bps)} of ", limit)


def _limit(text: str | None, rate_bps: int | None) -> Text:
    if text is None:
        return Text("-", style=FAINT)
    return Text(short_rate(rate_bps)) if rate_bps is not None else Text(repr(text), style=BAD)


def _verdict(pod: PodBandwidthView) -> Text:
    text = Text()
    verdicts = {_WORDS[direction]: verdict for direction, verdict in pod.verdicts.items()}
    if len(set(verdicts.values())) == 1:
        verdicts = {"": next(iter(verdicts.values()))}
    for direction, verdict in verdicts.items():
        good = verdict in ENFORCED_VERDICTS
        text.append(f"{' ' if text else ''}{'✓' if good else '✗'} ", style=GOOD if good else BAD)
        text.append(f"{direction} {verdict}".strip())
    if pod.problem:
        text.append(f"{'  ' if text else ''}✗ {pod.problem}", style=BAD)
    return text if text else Text("-", style=FAINT)
