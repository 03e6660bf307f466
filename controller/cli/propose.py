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
from controller.cli.style import BAD, FAINT, STRONG, grid, rate
from controller.cli.traffic_reading import add_traffic_arguments, read_traffic
from controller.cluster.resources import APPGROUPS, FIELD_MANAGER, AppGroup
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.drift import Drift, drift_of
from controller.traffic.graph import LeftOut
from controller.traffic.proposals import Proposal, propose
from kubekit.errors import ConfigError
from kubekit.text import format_command, pluralize
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, split_key

_KINDS = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}


class Gain(msgspec.Struct, frozen=True):
    """The pods of one proposal as they are placed, and as one plan would place all of them."""

    group: str
    now: Outcome
    planned: Outcome


class ProposalsView(msgspec.Struct, frozen=True):
    """Proposals for a namespace.

    Attributes:
        namespace: of the workloads.
        source: of the traffic.
        window_s: range of its rates.
        proposals: proposed AppGroups, with patches that label pod templates.
        drift: differences between existing AppGroups and traffic.
        left_out: traffic that is not a dependency, greatest first.
        gains: of one plan of each proposal, in their order.
    """

    namespace: str
    source: str
    window_s: int
    proposals: tuple[Proposal, ...]
    drift: tuple[Drift, ...]
    left_out: tuple[LeftOut, ...]
    gains: tuple[Gain, ...]


class ProposeCommand(Command):
    examples = (("propose", "AppGroups from measured traffic"),)
    description = (
        "Reads call metrics from Prometheus (meshes, or our own agents) and proposes AppGroups for a "
        "namespace: workloads, dependencies with direction, minBandwidth from the 95th percentile, maxNetworkCost from the "
        "highest cost between zones that exchange traffic today, and the patches that label pod templates. DNS, scrapes and external addresses are not dependencies. "
        "Fields that a user wrote into an existing AppGroup are kept. --manifests prints what kubectl apply takes, as in: "
        "kubectl netaware propose -n shop --manifests | kubectl apply -f -"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_traffic_arguments(parser)
        parser.add_argument(
            "--manifests", action="store_true", help="print the AppGroups as YAML, and the labels as commands"
        )
        parser.add_argument("--apply", action="store_true", help="write what --manifests shows")

    async def run(self, session: Session, options: argparse.Namespace) -> ProposalsView:
        """Read, propose, and with --apply write."""
        if session.namespace is None:
            raise ConfigError("--all-namespaces", "an AppGroup belongs to one namespace", "name it with -n")
        traffic, namespace = await read_traffic(session, options.source, options.window), session.namespace
        graph, groups = traffic.graph, traffic.snapshot.groups
        found = propose(graph, traffic.workloads, groups, namespace, traffic.costs)
        gains = [await gain_of(session, proposal, traffic.snapshot) for proposal in found]
        if options.apply:
            await _write(session, found)
            session.remarks.append("AppGroups and labels were written; pods follow them when they are next created")
        return ProposalsView(
            namespace=namespace,
            source=traffic.source.name,
            window_s=traffic.window_s,
            proposals=tuple(found),
            drift=tuple(d for g in groups if g.metadata.namespace == namespace for d in drift_of(g, graph)),
            left_out=tuple(o for o in graph.left_out if namespace in {split_key(o.client)[0], split_key(o.server)[0]}),
            gains=tuple(gains),
        )

    def render(self, answer: ProposalsView, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """A table per group, then drift, then traffic that is not a dependency; or YAML for kubectl."""
        if options.manifests:
            return _manifests(answer.proposals)
        parts: list[RenderableType] = []
        for proposal, gain in zip(answer.proposals, answer.gains, strict=True):
            parts += [*_proposal_parts(proposal), _gain_text(gain), Text()]
        if not answer.proposals:
            parts.append(Text(f"no two workloads of namespace {answer.namespace} talk to each other", style=FAINT))
        if answer.drift:
            table = grid("DRIFT", "FROM", "TO", "RATE", "WHAT", right=["RATE"])
            for drift in answer.drift:
                table.add_row(
                    Text(drift.kind, style=BAD), drift.client, drift.server, rate(drift.bytes_per_s * 8), drift.detail
                )
            parts += [table, Text()]
        if answer.left_out:
            parts.append(Text(_left_out(answer.left_out), style=FAINT))
        return Group(*parts)


async def gain_of(session: Session, proposal: Proposal, snapshot: ClusterSnapshot) -> Gain:
    """Plan the proposed group for the present cluster, and compare with the present placement.

    Raises:
        KubekitError: no answer.
    """
    group, namespace = msgspec.convert(proposal.manifest, AppGroup), proposal.namespace
    for existing in snapshot.groups:
        if existing.metadata.key == group.metadata.key:
            # Applying keeps the annotations, such as the one for the spread of its pods.
            group = msgspec.structs.replace(group, metadata=existing.metadata)
    selectors = {
        f"{namespace}/{w.workload.kind}/{w.workload.name}": w.workload.selector for w in group.spec.workloads or ()
    }
    controllers = {f"{namespace}/{c.kind}/{c.metadata.name}": c for c in await session.controllers(namespace)}
    templates = {selector: controllers[key] for key, selector in selectors.items() if key in controllers}
    inputs, _ = await read_inputs(session, snapshot)
    nodes_now = defaultdict(list)
    for pod in inputs.node_cache.bound_pods:
        if pod.workload in selectors:
            nodes_now[selectors[pod.workload]].append(pod.node)
    inputs.node_cache.drop(lambda pod: pod.workload in selectors)
    start = empty_group(inputs, group, templates)
    now = [nodes_now[pod.workload].pop() if nodes_now[pod.workload] else "" for pod in start.pods]
    planned = await asyncio.to_thread(planned_outcome, inputs, start)
    return Gain(proposal.name, outcome_of(start, now), planned)


def _manifests(proposals: Sequence[Proposal]) -> str:
    text = yaml.safe_dump_all([p.manifest for p in proposals], sort_keys=False, allow_unicode=True, width=120)
    for proposal in proposals:
        for kind, name, patch in proposal.patches:
            text += f"# {format_command('kubectl patch -n {} {} {} -p {}', proposal.namespace, kind.lower(), name, patch)}\n"
    return text


def _proposal_parts(proposal: Proposal) -> list[RenderableType]:
    head = Text(f"AppGroup {proposal.namespace}/{proposal.name}", style=STRONG)
    head.append("  exists" if proposal.exists else "  new", style=FAINT)
    table = grid("FROM", "TO", "RATE", "MINBANDWIDTH", "MAXCOST", "", right=["RATE", "MINBANDWIDTH", "MAXCOST"])
    for d in proposal.dependencies:
        note = "as written" if d.is_user_defined else ""
        shown = ("", "") if d.is_user_defined else (rate(d.min_bandwidth_bps), str(d.max_network_cost))
        table.add_row(d.client, d.server, rate(d.bytes_per_s * 8), *shown, Text(note, style=FAINT))
    parts: list[RenderableType] = [head, table]
    if proposal.patches:
        names = ", ".join(f"{kind} {name}" for kind, name, _ in proposal.patches)
        parts.append(Text(f"pod templates to label: {names}", style=FAINT))
    if proposal.external:
        parts.append(Text(f"external dependencies, not placed: {', '.join(proposal.external)}", style=FAINT))
    return parts


def _gain_text(gain: Gain) -> Text:
    now, planned = gain.now, gain.planned
    text = Text(f"planned: {now.latency_us:.0f} → {planned.latency_us:.0f} µs a call")
    text.append(f", {now.violations} → {pluralize(planned.violations, 'violated pair')}")
    if planned.unplaced:
        text.append(f"; {pluralize(planned.unplaced, 'pod')} without a place", style=BAD)
    return text


def _left_out(left_out: Sequence[LeftOut]) -> str:
    by_reason: dict[str, float] = {}
    for item in left_out:
        by_reason[item.reason] = by_reason.get(item.reason, 0.0) + item.bytes_per_s
    return "not dependencies: " + ", ".join(
        f"{reason} {rate(total * 8)}" for reason, total in sorted(by_reason.items())
    )


async def _write(session: Session, proposals: Sequence[Proposal]) -> None:
    """Write AppGroups, then labels, because upstream's scheduler crashes on a pod without its group."""
    manager = f"{FIELD_MANAGER}-propose"
    for each in proposals:
        await session.client.apply(
            APPGROUPS, each.name, each.manifest, Object, field_manager=manager, namespace=each.namespace
        )
    for each in proposals:
        for kind, name, patch in each.patches:
            await session.client.patch(_KINDS[kind], name, patch, Object, namespace=each.namespace)
