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
from controller.cli.simulate import Outcome, empty_group, outcome_of, planned_outcome
from controller.cli.style import BAD, FAINT, STRONG, format_rate, make_table
from controller.cli.traffic_reading import add_traffic_arguments, read_traffic
from controller.cluster.crds import APPGROUPS, FIELD_MANAGER, AppGroup
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.drift import Drift, find_drift
from controller.traffic.graph import OmittedTraffic
from controller.traffic.proposals import Proposal, propose
from kubekit.errors import ConfigError
from kubekit.text import format_command, pluralize
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, split_key

_RESOURCES = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}


class Gain(msgspec.Struct, frozen=True, rename="camel"):
    """The placement of a proposed group's pods: ``now``, and as one plan would place all of them."""

    group: str
    now: Outcome
    planned: Outcome


class ProposalsView(msgspec.Struct, frozen=True, rename="camel"):
    """Proposals for a namespace.

    Attributes:
        namespace: of the workloads.
        source: of the traffic.
        window_s: range of its rates.
        proposals: proposed AppGroups, with patches that label pod templates.
        drift: differences between existing AppGroups and traffic.
        omitted: traffic that is not a dependency, greatest first.
        gains: of each proposal, in the order of ``proposals``.
    """

    namespace: str
    source: str
    window_s: int
    proposals: tuple[Proposal, ...]
    drift: tuple[Drift, ...]
    omitted: tuple[OmittedTraffic, ...]
    gains: tuple[Gain, ...]


class ProposeCommand(Command):
    examples = (
        ("propose -n shop --prometheus http://localhost:9090", "AppGroups from measured traffic"),
        ("propose -n shop --prometheus http://localhost:9090 --manifests", "the same as YAML, for kubectl apply -f -"),
    )
    description = (
        "Reads call metrics from Prometheus (meshes, or our own agents) and proposes AppGroups for a namespace: workloads, directed "
        "dependencies, minBandwidth from the 95th percentile, maxNetworkCost from the highest cost between zones that exchange "
        "traffic today, and the patches that label pod templates. Needs --prometheus. DNS, scrapes and external addresses are not "
        "dependencies. Fields that a user wrote into an existing AppGroup are kept."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_traffic_arguments(parser)
        parser.add_argument("--manifests", action="store_true", help="print AppGroups as YAML, and labels as commands")
        parser.add_argument("--apply", action="store_true", help="write the AppGroups and labels")

    async def run(self, session: Session, options: argparse.Namespace) -> ProposalsView:
        if session.namespace is None:
            raise ConfigError("--all-namespaces", "an AppGroup belongs to one namespace", "name it with -n")
        traffic, namespace = await read_traffic(session, options.source, options.window), session.namespace
        graph, groups = traffic.graph, traffic.snapshot.groups
        proposals = propose(graph, traffic.workloads, groups, namespace, traffic.costs)
        gains = [await gain_of(session, proposal, traffic.snapshot) for proposal in proposals]
        if options.apply:
            await _write(session, proposals)
            session.notes.append("AppGroups and labels were written; pods get the labels when they are created again")
        return ProposalsView(
            namespace=namespace,
            source=traffic.source.name,
            window_s=traffic.window_s,
            proposals=tuple(proposals),
            drift=tuple(d for g in groups if g.metadata.namespace == namespace for d in find_drift(g, graph)),
            omitted=tuple(o for o in graph.omitted if namespace in {split_key(o.client)[0], split_key(o.server)[0]}),
            gains=tuple(gains),
        )

    def render(self, answer: ProposalsView, options: argparse.Namespace, width: int) -> RenderableType:
        """A table per group, then drift, then traffic that is not a dependency; or YAML for kubectl."""
        if options.manifests:
            return _manifests(answer.proposals)
        parts: list[RenderableType] = []
        for proposal, gain in zip(answer.proposals, answer.gains, strict=True):
            parts += [*_proposal_parts(proposal), _gain_text(gain), Text()]
        if not answer.proposals:
            parts.append(Text(f"no two workloads of namespace {answer.namespace} talk to each other", style=FAINT))
        if answer.drift:
            table = make_table("DRIFT", "FROM", "TO", "RATE", "WHAT", numeric=["RATE"])
            for drift in answer.drift:
                rate = format_rate(drift.bytes_per_s * 8)
                table.add_row(Text(drift.kind, style=BAD), drift.client, drift.server, rate, drift.detail)
            parts += [table, Text()]
        if answer.omitted:
            parts.append(Text(_omitted_text(answer.omitted), style=FAINT))
        return Group(*parts)


async def gain_of(session: Session, proposal: Proposal, snapshot: ClusterSnapshot) -> Gain:
    """Plan the proposed group for the present cluster, and compare with the present placement.

    Raises:
        KubekitError: the API server does not answer.
    """
    group, namespace = msgspec.convert(proposal.manifest, AppGroup), proposal.namespace
    for existing in snapshot.groups:
        if existing.metadata.key == group.metadata.key:
            # Applying keeps annotations, such as netaware.io/spread.
            group = msgspec.structs.replace(group, metadata=existing.metadata)
    selectors = {
        f"{namespace}/{w.workload.kind}/{w.workload.name}": w.workload.selector for w in group.spec.workloads or ()
    }
    controllers = {
        f"{namespace}/{c.kind}/{c.metadata.name}": c for c in await session.list_workload_controllers(namespace)
    }
    templates = {selector: controllers[key] for key, selector in selectors.items() if key in controllers}
    inputs, _ = await read_inputs(session, snapshot)
    nodes_now = defaultdict[str, list[str]](list)
    for pod in inputs.node_cache.pods.values():
        if pod.workload in selectors:
            nodes_now[selectors[pod.workload]].append(pod.node)
    inputs.node_cache.remove_pods(lambda pod: pod.workload in selectors)
    group_snapshot = empty_group(inputs, group, templates)
    now = [nodes_now[pod.workload].pop() if nodes_now[pod.workload] else "" for pod in group_snapshot.pods]
    planned = await asyncio.to_thread(planned_outcome, inputs, group_snapshot)
    return Gain(proposal.name, outcome_of(group_snapshot, now), planned)


def _manifests(proposals: Sequence[Proposal]) -> str:
    text = yaml.safe_dump_all([p.manifest for p in proposals], sort_keys=False, allow_unicode=True, width=120)
    for proposal in proposals:
        for kind, name, patch in proposal.patches:
            text += f"# {format_command('kubectl patch -n {} {} {} -p {}', proposal.namespace, kind.lower(), name, patch)}\n"
    return text


def _proposal_parts(proposal: Proposal) -> list[RenderableType]:
    head = Text(f"AppGroup {proposal.namespace}/{proposal.name}", style=STRONG)
    head.append("  exists" if proposal.exists else "  new", style=FAINT)
    table = make_table("FROM", "TO", "RATE", "MINBANDWIDTH", "MAXCOST", "", numeric=["RATE", "MINBANDWIDTH", "MAXCOST"])
    for dependency in proposal.dependencies:
        limits = (format_rate(dependency.min_bandwidth_bps), str(dependency.max_network_cost), "")
        if dependency.is_user_defined:
            limits = ("", "", "as written")
        table.add_row(dependency.client, dependency.server, format_rate(dependency.bytes_per_s * 8), *limits)
    parts: list[RenderableType] = [head, table]
    if proposal.patches:
        names = ", ".join(f"{kind} {name}" for kind, name, _ in proposal.patches)
        parts.append(Text(f"pod templates to label: {names}", style=FAINT))
    if proposal.external:
        parts.append(Text(f"external dependencies, not placed: {', '.join(proposal.external)}", style=FAINT))
    return parts


def _gain_text(gain: Gain) -> Text:
    now, planned = gain.now, gain.planned
    text = Text(f"planned: {now.latency_us:.0f} → {planned.latency_us:.0f} µs per call")
    text.append(f", {now.violations} → {pluralize(planned.violations, 'violated pair')}")
    if planned.unplaced:
        text.append(f"; {pluralize(planned.unplaced, 'pod')} without a place", style=BAD)
    return text


def _omitted_text(omitted: Sequence[OmittedTraffic]) -> str:
    by_reason = defaultdict[str, float](float)
    for item in omitted:
        by_reason[item.reason] += item.bytes_per_s
    parts = (f"{reason} {format_rate(total * 8)}" for reason, total in sorted(by_reason.items()))
    return f"not dependencies: {', '.join(parts)}"


async def _write(session: Session, proposals: Sequence[Proposal]) -> None:
    """Write AppGroups, then labels, because upstream's scheduler crashes on a pod without its group."""
    manager = f"{FIELD_MANAGER}-propose"
    for proposal in proposals:
        await session.client.apply(
            APPGROUPS, proposal.name, proposal.manifest, Object, field_manager=manager, namespace=proposal.namespace
        )
    for proposal in proposals:
        for kind, name, patch in proposal.patches:
            await session.client.patch(_RESOURCES[kind], name, patch, Object, namespace=proposal.namespace)
