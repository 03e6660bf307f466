"""`simulate -f appgroup.yaml`: where the default scheduler and ours would place this group, at what cost."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.offline import OfflinePlan, plan_offline, show_offline
from controller.cli.offline_objects import read_cluster, read_documents
from controller.cli.plan_inputs import belongs_to, read_inputs
from controller.cli.session import Controller, Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, grid
from controller.cluster.graph import Graph, build_graph
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.convert.spellings import convert
from controller.diagnosis.model import View
from controller.scheduler.default_scheduler import place
from controller.scheduler.gating.group_plans import MAX_PODS
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from kubekit.errors import ConfigError
from kubekit.text import join_first, pluralize

MAX_NAMED_WORKLOADS = 8
RUNS = 25
"""Runs of the default scheduler, which picks at random between equal nodes."""


class Outcome(View, frozen=True):
    """One way to place the group.

    Attributes:
        nodes: per workload selector, the nodes of its replicas; an empty text for one that fits nowhere.
        zones: the same as zones.
        cost: of all pairs of dependent pods together.
        latency_us: expected time of a call on the network.
        violations: callers and replicas that may answer them which are farther apart than maxNetworkCost; all pairs in parity.
        unplaced: replicas that fit nowhere.
    """

    nodes: dict[str, list[str]]
    zones: dict[str, list[str]]
    cost: int
    latency_us: float
    violations: int
    unplaced: int


class Simulation(View, frozen=True):
    """A group as the default scheduler and as our planner would place it.

    Attributes:
        default: the median of the runs, ordered by unplaced pods and then by cost.
        default_costs: the cost of every run, ascending; a run that places fewer pods costs less.
    """

    group: str
    topology: str | None
    weights: str | None
    replicas: int
    default: Outcome
    network_aware: Outcome
    default_costs: tuple[int, ...]


class SimulateCommand(Command):
    examples = (
        ("simulate -f appgroup.yaml", "where a group would be placed"),
        ("simulate --offline cluster.json -o json", "a whole cluster in a file, without a cluster"),
    )
    description = (
        "Reads an AppGroup from a file, with its Deployments and StatefulSets if they are in it, and plans it for the cluster "
        "as it is now: our planner, and a model of the default scheduler (resources, spreading; 25 runs, since it picks at random "
        "between equal nodes). Workloads whose template is neither in the file nor in the cluster count as one pod without "
        "requests. Nothing is created. With --offline everything is read from a file instead, as `kubectl get ns,nodes,pods,services,pv,pvc,storageclasses,"
        "appgroups,networktopologies -A -o json` prints it: the plan is the one that the controller would make of the pods in it that wait, "
        "and no cluster is asked."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-f",
            "--filename",
            action="append",
            default=[],
            metavar="FILE",
            help="AppGroup to plan; - is standard input",
        )
        parser.add_argument(
            "--offline",
            default="",
            metavar="FILE",
            help="a v1 List (JSON or YAML) of a whole cluster; - is standard input",
        )

    def needs_cluster(self, options: argparse.Namespace) -> bool:
        """Not with ``--offline``, and not without a file."""
        return bool(options.filename) and not options.offline

    async def run(self, session: Session, options: argparse.Namespace) -> Simulation | OfflinePlan:
        """Read the file, then the cluster, then plan."""
        if options.offline:
            return await self._plan_offline(session, options)
        if not options.filename:
            raise ConfigError(
                "--filename", "is missing", "name a file with an AppGroup, or a whole cluster by --offline FILE"
            )
        documents, _ = convert(await asyncio.to_thread(read_documents, options.filename, "--filename"))
        group, given = _read(documents)
        namespace = group.metadata.namespace or session.namespace or "default"
        # Services are looked for where its pods will be.
        group = msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, namespace=namespace))
        snapshot = await session.snapshot(groups=True)
        templates = {c.workload: c for c in (*await session.controllers(namespace), *given)}
        inputs, _ = await read_inputs(session, snapshot)
        if not inputs.state.costs(namespace).weight:
            session.notes["costs"] = "the scheduler uses none, so all zones are equally near"
        mine = {selector: c for (name, selector), c in templates.items() if name == group.metadata.name}
        unknown = [selector for selector in build_graph(group.spec).selectors if selector not in mine]
        if unknown:
            names = join_first(unknown, MAX_NAMED_WORKLOADS)
            session.notes["workloads"] = f"no template found for {names}: each counts as one pod without requests"
        return await asyncio.to_thread(simulate, inputs, group, mine)

    async def _plan_offline(self, session: Session, options: argparse.Namespace) -> OfflinePlan:
        if options.filename:
            raise ConfigError("--offline", "holds everything, --filename included; give one of them")
        cluster = await asyncio.to_thread(read_cluster, options.offline)
        answer, remarks = await asyncio.to_thread(plan_offline, cluster)
        session.remarks += remarks
        return answer

    def render(self, answer: Simulation | OfflinePlan, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """Placements side by side, then what they cost."""
        if isinstance(answer, OfflinePlan):
            return show_offline(answer)
        costs = f"costs: {answer.topology or 'no NetworkTopology'} {answer.weights or ''}"
        head = Text.assemble((answer.group, STRONG), f"  {pluralize(answer.replicas, 'pod')}", (f"  {costs}", FAINT))
        return Group(head, Text(), _placements(answer), Text(), _sums(answer))


def simulate(inputs: PlanInputs, group: AppGroup, templates: Mapping[str, Controller]) -> Simulation:
    """Place a group with both schedulers, as if it had no pods yet. Random choices of the default scheduler have fixed seeds."""
    snapshot = empty_group(inputs, group, templates)
    hosts, used = inputs.node_cache.hosts, inputs.node_cache.used
    reader = PodReader()
    pods = [(pod.workload, reader.read(pod)) for pod in snapshot.pods]
    runs = [
        outcome_of(snapshot, place(pods, hosts, used, random.Random(seed), snapshot.volumes)) for seed in range(RUNS)
    ]
    runs.sort(key=lambda run: (run.unplaced, run.cost))
    default, ours = runs[len(runs) // 2], planned_outcome(inputs, snapshot)
    costs = inputs.state.costs(group.metadata.namespace)
    return Simulation(
        group=group.metadata.key,
        topology=costs.topology or None,
        weights=costs.weight or None,
        replicas=len(snapshot.pods),
        default=default,
        network_aware=ours,
        default_costs=tuple(sorted(run.cost for run in runs)),
    )


def empty_group(inputs: PlanInputs, group: AppGroup, templates: Mapping[str, Controller]) -> GroupSnapshot:
    """The planner's input for a group that has no pods yet.

    Args:
        inputs: the cluster; the group and its pods in it are replaced.
        group: the AppGroup.
        templates: workload selector -> Deployment or StatefulSet; a workload without one counts as one pod without requests.
    """
    state, key = inputs.state, group.metadata.key
    state.on_group_change(key, state.groups.get(key), group)
    inputs.node_cache.drop(belongs_to(state, key))
    pods = _pods(group, state.graph(key), templates)
    return inputs.snapshot(key, pods)


def planned_outcome(inputs: PlanInputs, snapshot: GroupSnapshot) -> Outcome:
    """The leader's plan of a group."""
    targets = inputs.plan(snapshot).targets
    return outcome_of(
        snapshot, [targets[p.metadata.key].node if p.metadata.key in targets else "" for p in snapshot.pods]
    )


def outcome_of(snapshot: GroupSnapshot, nodes: Sequence[str]) -> Outcome:
    """The outcome of one placement; ``nodes`` are those of ``snapshot.pods``, empty for a pod that fits nowhere."""
    replace, placed = msgspec.structs.replace, list(zip(snapshot.pods, nodes, strict=True))
    bound = [replace(pod, spec=replace(pod.spec, node_name=node)) for pod, node in placed if node]
    plan = plan_group(replace(snapshot, pods=bound))
    by_workload: dict[str, list[str]] = defaultdict(list)
    for pod, node in placed:
        by_workload[pod.workload].append(node)
    zones = {w: [snapshot.hosts[n].location.zone if n else "" for n in on] for w, on in by_workload.items()}
    return Outcome(
        nodes=dict(by_workload),
        zones=zones,
        cost=plan.cost,
        latency_us=round(plan.latency_us, 1),
        violations=plan.violations,
        unplaced=len(placed) - len(bound),
    )


def _read(documents: Iterable[dict[str, Any]]) -> tuple[AppGroup, list[Controller]]:
    """The one AppGroup of a file, and its Deployments and StatefulSets."""
    groups: list[AppGroup] = []
    controllers: list[Controller] = []
    for document in documents:
        kind = str(document.get("kind") or "")
        try:
            if kind == "AppGroup":
                groups.append(msgspec.convert(document, AppGroup))
            elif kind in {"Deployment", "StatefulSet"}:
                controllers.append(msgspec.convert(document, Controller))
        except msgspec.ValidationError as error:
            metadata = document.get("metadata")
            name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
            raise ConfigError("--filename", f"{kind} {name}: {error}") from error
    if len(groups) != 1:
        raise ConfigError("--filename", f"holds {pluralize(len(groups), 'AppGroup')}", "give exactly one")
    return groups[0], controllers


def _pods(group: AppGroup, graph: Graph, templates: Mapping[str, Controller]) -> list[GroupPod]:
    """The declared replicas as pending pods. Raises ConfigError if a plan cannot have as many."""
    replicas = sum(max(0, templates.get(selector, Controller()).replicas) for selector in graph.selectors)
    if replicas > MAX_PODS:
        raise ConfigError(group.metadata.key, f"has {replicas} replicas", f"at most {MAX_PODS} are planned together")
    pods: list[GroupPod] = []
    for selector in graph.selectors:
        controller = templates.get(selector, Controller())
        labels = {**controller.labels, APPGROUP_LABEL: group.metadata.name, WORKLOAD_LABEL: selector}
        template = controller.spec.template
        meta = msgspec.structs.replace(template.metadata, namespace=group.metadata.namespace, labels=labels)
        for _ in range(controller.replicas):
            named = msgspec.structs.replace(meta, name=f"replica-{len(pods):05d}")
            pods.append(GroupPod(metadata=named, spec=template.spec))
    return pods


def _where(zones: Sequence[str]) -> str:
    counts = sorted(Counter(zones).items(), key=lambda item: (not item[0], item[0]))
    return ", ".join((zone or "does not fit") + (f" ×{count}" if count > 1 else "") for zone, count in counts)


def _placements(answer: Simulation) -> RenderableType:
    table = grid("WORKLOAD", "PODS", "DEFAULT SCHEDULER", "NETWORK-AWARE", right=("PODS",))
    for workload, zones in answer.default.zones.items():
        table.add_row(workload, str(len(zones)), _where(zones), _where(answer.network_aware.zones[workload]))
    return table


def _sums(answer: Simulation) -> RenderableType:
    """Sums of both placements; for the default scheduler the median, cheapest and dearest run."""
    numbers = ("COST", "A CALL", "VIOLATED PAIRS", "UNPLACED")
    table = grid("", *numbers, "", right=numbers)
    costs = answer.default_costs
    for name, outcome in (("default scheduler", answer.default), ("network-aware", answer.network_aware)):
        span = f"{costs[0]} to {costs[-1]} over {len(costs)} runs" if outcome is answer.default else ""
        violated = Text(str(outcome.violations), style=BAD if outcome.violations else GOOD)
        unplaced = Text(str(outcome.unplaced), style=BAD if outcome.unplaced else "")
        table.add_row(name, str(outcome.cost), f"{outcome.latency_us:.0f} µs", violated, unplaced, span)
    return table
