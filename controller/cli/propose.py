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
from kubekit.text import command, counted
from kubekit.wire import DEPLOYMENTS, STATEFUL_SETS, Object, split_key

_KINDS = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}


class Gain(msgspec.Struct, frozen=True):
    """The pods of one proposal as they are placed, and as one plan would place all of them."""

    group: str
    now: Outcome
    planned: Outcome


class Proposed(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        namespace: whose workloads.
        source: where traffic is known from; ``window_s``: over how long.
        proposals: AppGroups to be, with the patches that label pods.
        drift: where AppGroups that exist differ from real traffic.
        left_out: traffic that is no dependency, greatest first.
        gains: what one plan of each proposal would gain, in their order.
    """

    namespace: str
    source: str
    window_s: int
    proposals: tuple[Proposal, ...]
    drift: tuple[Drift, ...]
    left_out: tuple[LeftOut, ...]
    gains: tuple[Gain, ...]


class ProposeCommand(Command):
    """See `controller.cli.command.Command`."""

    examples = (("propose", "an AppGroup from the traffic there is"),)
    description = (
        "Reads who talks to whom from Prometheus (meshes, or our own agents) and proposes AppGroups for a "
        "namespace: workloads, dependencies with direction, minBandwidth from the 95th percentile, maxNetworkCost from the "
        "highest cost between zones that exchange traffic today, and the patches that label pod templates. DNS, scrapes and external ends are no dependency. What a "
        "person wrote in an existing AppGroup is kept. --manifests prints what kubectl apply takes, as in: "
        "kubectl netaware propose -n shop --manifests | kubectl apply -f -"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        add_traffic_arguments(parser)
        parser.add_argument(
            "--manifests", action="store_true", help="print the AppGroups as YAML, and the labels as commands"
        )
        parser.add_argument("--apply", action="store_true", help="write what --manifests shows")

    async def run(self, session: Session, options: argparse.Namespace) -> Proposed:
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
        return Proposed(
            namespace=namespace,
            source=traffic.source.name,
            window_s=traffic.window_s,
            proposals=tuple(found),
            drift=tuple(d for g in groups if g.metadata.namespace == namespace for d in drift_of(g, graph)),
            left_out=tuple(o for o in graph.left_out if namespace in {split_key(o.client)[0], split_key(o.server)[0]}),
            gains=tuple(gains),
        )

    def render(self, answer: Proposed, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """A table per group, then drift, then what is no dependency; or YAML for kubectl."""
        if options.manifests:
            return _manifests(answer.proposals)
        parts: list[RenderableType] = []
        for proposal, gain in zip(answer.proposals, answer.gains, strict=True):
            parts += [*_described(proposal), _gained(gain), Text()]
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
    """Plan the group for the cluster as it is.

    Raises:
        KubekitError: no answer.
    """
    group, namespace = msgspec.convert(proposal.manifest, AppGroup), proposal.namespace
    for existing in snapshot.groups:
        if existing.metadata.key == group.metadata.key:
            # Applying leaves the annotations, which say how its pods are spread.
            group = msgspec.structs.replace(group, metadata=existing.metadata)
    selectors = {
        f"{namespace}/{w.workload.kind}/{w.workload.name}": w.workload.selector for w in group.spec.workloads or ()
    }
    made = {f"{namespace}/{c.kind}/{c.metadata.name}": c for c in await session.controllers(namespace)}
    templates = {selector: made[key] for key, selector in selectors.items() if key in made}
    inputs, _ = await read_inputs(session, snapshot)
    nodes_now = defaultdict(list)
    for pod in inputs.node_cache.bound:
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
            text += f"# {command('kubectl patch -n {} {} {} -p {}', proposal.namespace, kind.lower(), name, patch)}\n"
    return text


def _described(proposal: Proposal) -> list[RenderableType]:
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
        parts.append(Text(f"also talks to, and is not placed by: {', '.join(proposal.external)}", style=FAINT))
    return parts


def _gained(gain: Gain) -> Text:
    now, then = gain.now, gain.planned
    text = Text(f"planned: {now.latency_us:.0f} → {then.latency_us:.0f} µs a call")
    text.append(f", {now.violations} → {counted(then.violations, 'violated pair')}")
    if then.unplaced:
        text.append(f"; no room for {counted(then.unplaced, 'pod')}", style=BAD)
    return text


def _left_out(left_out: Sequence[LeftOut]) -> str:
    by_reason: dict[str, float] = {}
    for item in left_out:
        by_reason[item.reason] = by_reason.get(item.reason, 0.0) + item.bytes_per_s
    return "no dependency: " + ", ".join(f"{reason} {rate(total * 8)}" for reason, total in sorted(by_reason.items()))


async def _write(session: Session, proposals: Sequence[Proposal]) -> None:
    """Write AppGroups first, because upstream's scheduler crashes on a pod without its group."""
    for found in proposals:
        manager = f"{FIELD_MANAGER}-propose"
        await session.client.apply(
            APPGROUPS, found.name, found.manifest, Object, field_manager=manager, namespace=found.namespace
        )
    for found in proposals:
        for kind, name, patch in found.patches:
            await session.client.patch(_KINDS[kind], name, patch, Object, namespace=found.namespace)
