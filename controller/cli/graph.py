"""`graph APPGROUP`: the order and placement of workloads, and the cost of each dependency."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import MissingInputError, Session
from controller.cli.style import (
    BAD,
    FAINT,
    GOOD,
    SIGN_AND_STYLE_BY_VERDICT,
    STRONG,
    format_counts,
    format_milliseconds,
    make_table,
)
from controller.cluster.crds import APPGROUPS
from controller.diagnosis.zones import build_network
from controller.views.group_views import DependencyView, GroupView, PodView, build_group_views
from kubekit.text import join_first

MAX_STOPPED_SHOWN = 5


class GraphCommand(Command):
    examples = (
        ("graph", "the AppGroups of the namespace"),
        ("graph online-boutique -n shop", "one AppGroup"),
    )
    description = (
        "The workloads of an AppGroup, each with its dependencies. COST is that of the worst pair of a placed caller and a pod "
        "that may answer it, P50 the median round trip between their zones, MAX the dependency's maxNetworkCost: ✓ within it, "
        "✗ over it, ? cost unknown, · not placed yet. Below the table: mistakes in the spec, conditions that do not hold, and "
        "workloads that the loss of a zone would stop."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("appgroup", nargs="?", default="", metavar="APPGROUP", help="its name (default: all)")

    async def run(self, session: Session, options: argparse.Namespace) -> list[GroupView]:
        snapshot = await session.read_snapshot(groups=True)
        session.require_readable(APPGROUPS)
        views = [
            view
            for view in build_group_views(snapshot, build_network(snapshot))
            if session.namespace in {None, view.namespace} and options.appgroup in {"", view.name}
        ]
        if options.appgroup and not views:
            namespace = f"namespace {session.namespace}" if session.namespace else "any namespace"
            raise MissingInputError(f"there is no AppGroup {options.appgroup!r} in {namespace}")
        return views

    def render(self, answer: list[GroupView], options: argparse.Namespace, width: int) -> RenderableType:
        """A headline, a table and problems of each group."""
        if not answer:
            return Text("no AppGroups", style=FAINT)
        parts: list[RenderableType] = []
        for group in answer:
            parts += [Text()] if parts else []
            parts += [_make_headline(group), Text(), _make_workload_table(group), *_list_problems(group)]
        return Group(*parts)


def _make_headline(group: GroupView) -> Text:
    text = Text.assemble((f"{group.namespace}/{group.name}", STRONG), (f"  {group.algorithm}", FAINT))
    text.append(f"  {group.running_pods} of {group.num_members} members running")
    for count, state in ((group.gated_pods, "gated"), (group.pending_pods, "pending")):
        if count:
            text.append(f"  {count} {state}")
    text.append(f"  total cost {group.total_cost}")
    if group.violated_dependencies:
        text.append(f"  {group.violated_dependencies} of {len(group.dependencies)} dependencies violated", style=BAD)
    elif any(dependency.verdict == "met" for dependency in group.dependencies):
        text.append("  no dependency violated", style=GOOD)
    return text


def _make_workload_table(group: GroupView) -> RenderableType:
    """Each workload, and below it its dependencies."""
    numeric_headers = ("ORDER", "PODS", "COST", "MAX", "P50")
    table = make_table("WORKLOAD", "ORDER", "PODS", "WHERE", "COST", "MAX", "", "P50", numeric=numeric_headers)
    dependencies_by_caller: dict[str, list[DependencyView]] = defaultdict(list)
    for dependency in group.dependencies:
        dependencies_by_caller[dependency.caller].append(dependency)
    for workload in group.workloads:
        name = Text.assemble((workload.selector, STRONG))
        if workload.name != workload.selector:
            name.append(f" {workload.name}", style=FAINT)
        order = str(workload.index) if workload.index is not None else "-"
        table.add_row(name, order, str(len(workload.pods)), _format_placement(workload.pods))
        for dependency in dependencies_by_caller[workload.selector]:
            table.add_row(f"  → {dependency.callee}", "", "", "", *_make_dependency_cells(dependency))
    return table


def _make_dependency_cells(dependency: DependencyView) -> tuple[Text | str, ...]:
    sign, style = SIGN_AND_STYLE_BY_VERDICT[dependency.verdict]
    cost_text = "-" if dependency.cost is None else str(dependency.cost)
    cost = Text(cost_text, style=style if dependency.verdict == "violated" else "")
    p50 = format_milliseconds(dependency.p50_us) if dependency.p50_us is not None else ""
    return cost, str(dependency.max_cost), Text(sign, style=style), p50


def _format_placement(pods: Sequence[PodView]) -> Text:
    """Zones (nodes without a zone by name) with the numbers of their pods, then the numbers of gated and pending pods."""
    text = Text(format_counts(Counter(sorted(pod.zone or pod.node for pod in pods if pod.node))))
    gated_count = sum(pod.has_gates for pod in pods)
    pending_count = sum(not pod.node for pod in pods) - gated_count
    for count, state in ((gated_count, "gated"), (pending_count, "pending")):
        if count:
            text.append(f"{', ' if text else ''}{count} {state}", style="italic")
    return text


def _list_problems(group: GroupView) -> list[RenderableType]:
    """Lines on faults, on conditions that do not hold, and on workloads that the loss of a zone would stop."""
    lines: list[RenderableType] = [Text(f"✗ {fault}", style=BAD) for fault in group.faults]
    failed = [condition for condition in group.conditions if condition.status != "True"]
    lines += [Text.assemble((f"{c.type} {c.status}", STRONG), f"  {c.message or c.reason}") for c in failed]
    lines += [
        Text(f"without {loss.zone}: {join_first(loss.stopped_workloads, MAX_STOPPED_SHOWN)} would stop", style=FAINT)
        for loss in group.zone_losses
        if loss.stopped_workloads
    ]
    return [Text(), *lines] if lines else []
