"""`propose`: AppGroups from measured traffic."""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.plan_inputs import read_inputs
from controller.cli.session import Session
from controller.cli.simulate import PlacementOutcome, evaluate_placement, plan_placement, reset_group
from controller.cli.style import BAD, FAINT, STRONG, format_rate, make_table
from controller.cli.traffic import add_traffic_arguments, read_traffic
from controller.cluster.crds import APPGROUPS, FIELD_MANAGER, AppGroup
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.drift import Drift, find_drift
from controller.traffic.graph import OmittedTraffic
from controller.traffic.proposals import Proposal, propose
from kubekit.errors import ConfigError
from kubekit.text import format_command, join_first, pluralize
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, split_key

MAX_EXTERNAL_SHOWN = 8
_RESOURCE_BY_KIND = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}


class PlacementComparison(msgspec.Struct, frozen=True, rename="camel"):
    """The current placement of a proposed group's pods, and the placement that one plan would give them."""

    group: str
    current: PlacementOutcome
    planned: PlacementOutcome


class ProposalsView(msgspec.Struct, frozen=True, rename="camel"):
    """Proposed AppGroups of a namespace, and the traffic that led to them.

    Attributes:
        source: name of the metrics from which the traffic was read.
        window_s: range of the traffic's rates.
        drift: differences between the namespace's existing AppGroups and traffic.
        omitted: the namespace's traffic that is not a dependency, greatest first.
        comparisons: one for each proposal, in the order of ``proposals``.
    """

    namespace: str
    source: str
    window_s: int
    proposals: tuple[Proposal, ...]
    drift: tuple[Drift, ...]
    omitted: tuple[OmittedTraffic, ...]
    comparisons: tuple[PlacementComparison, ...]


class ProposeCommand(Command):
    examples = (
        ("propose -n shop --prometheus http://localhost:9090", "AppGroups from measured traffic"),
        ("propose -n shop --prometheus http://localhost:9090 --manifests", "the same as YAML, for kubectl apply -f -"),
    )
    description = (
        "Reads call metrics from Prometheus (meshes, or our own agents) and proposes AppGroups for a namespace: workloads, directed "
        "dependencies, minBandwidth from the 95th percentile, maxNetworkCost from the highest cost between zones that exchange "
        "traffic today, and the patches that label pod templates. Needs --prometheus. DNS, scrapes and external addresses are not "
        "dependencies. An existing AppGroup keeps its entries and gets missing ones; its numMembers may rise."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_traffic_arguments(parser)
        parser.add_argument(
            "--manifests", action="store_true", help="print AppGroups as YAML, and commands for labels in comments"
        )
        parser.add_argument("--apply", action="store_true", help="write the AppGroups and labels")

    async def run(self, session: Session, options: argparse.Namespace) -> ProposalsView:
        if session.namespace is None:
            raise ConfigError("--all-namespaces", "an AppGroup belongs to one namespace", "name it with -n")
        namespace = session.namespace
        traffic = await read_traffic(session, options.source, options.window)
        graph, groups = traffic.graph, traffic.snapshot.groups
        costs = traffic.snapshot.build_cost_index().for_namespace(namespace).table
        proposals = propose(graph, traffic.workloads, groups, namespace, costs)
        own_groups = [group for group in groups if group.metadata.namespace == namespace]
        comparisons = [await compare_placements(session, proposal, traffic.snapshot) for proposal in proposals]
        if options.apply:
            await _apply_proposals(session, proposals)
            session.notes.append("AppGroups and labels were written; pods get the labels when they are recreated")
        return ProposalsView(
            namespace=namespace,
            source=traffic.source.name,
            window_s=traffic.window_s,
            proposals=tuple(proposals),
            drift=tuple(drift for group in own_groups for drift in find_drift(group, graph)),
            omitted=tuple(o for o in graph.omitted if namespace in {split_key(o.client)[0], split_key(o.server)[0]}),
            comparisons=tuple(comparisons),
        )

    def render(self, answer: ProposalsView, options: argparse.Namespace, width: int) -> RenderableType:
        """A table per group, then drift, then traffic that is not a dependency; or YAML for kubectl."""
        if options.manifests:
            return _format_manifests(answer.proposals)
        parts: list[RenderableType] = []
        for proposal, comparison in zip(answer.proposals, answer.comparisons, strict=True):
            parts += [*_make_proposal_parts(proposal), _format_comparison(comparison), Text()]
        if not answer.proposals:
            note = f"no Deployments and StatefulSets in {answer.namespace} have traffic between them"
            parts.append(Text(note, style=FAINT))
        if answer.drift:
            table = make_table("DRIFT", "FROM", "TO", "RATE", "DETAIL", numeric=["RATE"])
            for drift in answer.drift:
                rate = format_rate(drift.bytes_per_s * 8)
                table.add_row(Text(drift.kind, style=BAD), drift.client, drift.server, rate, drift.detail)
            parts += [table, Text()]
        if answer.omitted:
            parts.append(Text(_format_omitted(answer.omitted), style=FAINT))
        return Group(*parts)


async def compare_placements(session: Session, proposal: Proposal, snapshot: ClusterSnapshot) -> PlacementComparison:
    """Plan the proposed group on the cluster as it is, and compare the plan with the current placement.

    Raises:
        ConfigError: the group has more replicas than are planned together.
        KubekitError: the API server does not answer.
    """
    group, namespace = msgspec.convert(proposal.manifest, AppGroup), proposal.namespace
    for existing in snapshot.groups:
        if existing.metadata.key == group.metadata.key:
            # --apply keeps annotations, such as netaware.io/spread.
            group = msgspec.structs.replace(group, metadata=existing.metadata)
    selector_by_workload = {
        f"{namespace}/{w.workload.kind}/{w.workload.name}": w.workload.selector for w in group.spec.workloads or ()
    }
    controllers = {
        selector_by_workload[workload]: controller
        for controller in await session.list_workload_controllers(namespace)
        if (workload := f"{namespace}/{controller.kind}/{controller.metadata.name}") in selector_by_workload
    }
    inputs, _ = await read_inputs(session, snapshot)
    nodes_by_selector = defaultdict[str, list[str]](list)
    for pod in inputs.node_cache.pods.values():
        if pod.workload in selector_by_workload:
            nodes_by_selector[selector_by_workload[pod.workload]].append(pod.node)
    inputs.node_cache.remove_pods(lambda pod: pod.workload in selector_by_workload)
    group_snapshot = reset_group(inputs, group, controllers)
    # Replicas are interchangeable. Nodes of more pods than are declared, as in a rollout, are left out.
    current_nodes: list[str] = []
    for pending_pod in group_snapshot.pods:
        nodes = nodes_by_selector[pending_pod.workload]
        current_nodes.append(nodes.pop() if nodes else "")
    current = await asyncio.to_thread(evaluate_placement, group_snapshot, current_nodes)
    planned = await asyncio.to_thread(plan_placement, inputs, group_snapshot)
    return PlacementComparison(proposal.name, current, planned)


def _format_manifests(proposals: Sequence[Proposal]) -> str:
    """The AppGroups as YAML documents, then the commands that label pod templates, as comments."""
    text = yaml.safe_dump_all([p.manifest for p in proposals], sort_keys=False, allow_unicode=True, width=120)
    for proposal in proposals:
        for kind, name, patch in proposal.patches:
            text += f"# {format_command('kubectl patch -n {} {} {} -p {}', proposal.namespace, kind.lower(), name, patch)}\n"
    return text


def _make_proposal_parts(proposal: Proposal) -> list[RenderableType]:
    headline = Text(f"AppGroup {proposal.namespace}/{proposal.name}", style=STRONG)
    headline.append("  exists" if proposal.exists else "  new", style=FAINT)
    numeric_headers = ("RATE", "MINBANDWIDTH", "MAXCOST")
    table = make_table("FROM", "TO", *numeric_headers, "", numeric=numeric_headers)
    for dependency in proposal.dependencies:
        limits = (format_rate(dependency.min_bandwidth_bps), str(dependency.max_network_cost), "")
        if dependency.is_user_defined:
            limits = ("", "", "as written")
        table.add_row(dependency.client, dependency.server, format_rate(dependency.bytes_per_s * 8), *limits)
    parts: list[RenderableType] = [headline, table]
    if proposal.patches:
        names = ", ".join(f"{kind} {name}" for kind, name, _ in proposal.patches)
        parts.append(Text(f"pod templates to label: {names}", style=FAINT))
    if proposal.external:
        names = join_first(proposal.external, MAX_EXTERNAL_SHOWN)
        parts.append(Text(f"external dependencies, not placed: {names}", style=FAINT))
    return parts


def _format_comparison(comparison: PlacementComparison) -> Text:
    current, planned = comparison.current, comparison.planned
    text = Text(f"planned: {current.latency_us:.0f} → {planned.latency_us:.0f} µs per call")
    text.append(f", {current.violations} → {pluralize(planned.violations, 'violated pod pair')}")
    if planned.unplaced:
        text.append(f"; {pluralize(planned.unplaced, 'pod')} unplaced", style=BAD)
    return text


def _format_omitted(omitted: Sequence[OmittedTraffic]) -> str:
    by_reason = defaultdict[str, float](float)
    for item in omitted:
        by_reason[item.reason] += item.bytes_per_s
    parts = (f"{reason} {format_rate(total * 8)}" for reason, total in sorted(by_reason.items()))
    return f"not dependencies: {', '.join(parts)}"


async def _apply_proposals(session: Session, proposals: Sequence[Proposal]) -> None:
    """Write AppGroups first and labels second, because upstream's scheduler crashes on a pod whose group does not exist."""
    manager = f"{FIELD_MANAGER}-propose"
    for proposal in proposals:
        await session.client.apply(
            APPGROUPS, proposal.name, proposal.manifest, Object, field_manager=manager, namespace=proposal.namespace
        )
    for proposal in proposals:
        for kind, name, patch in proposal.patches:
            await session.client.patch(_RESOURCE_BY_KIND[kind], name, patch, Object, namespace=proposal.namespace)
