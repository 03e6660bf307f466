"""`simulate -f appgroup.yaml`: where the default scheduler and ours would place this group, at what cost."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.offline import OfflinePlan, plan_offline, render_offline
from controller.cli.offline_objects import read_cluster, read_documents
from controller.cli.plan_inputs import belongs_to, read_inputs
from controller.cli.session import Session, WorkloadController
from controller.cli.style import BAD, FAINT, GOOD, STRONG, format_counts, make_table
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.dependency_graph import DependencyGraph, build_graph
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Pod
from controller.convert.spellings import convert
from controller.diagnosis.cluster_views import View
from controller.scheduler.default_scheduler import simulate_scheduling
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
        nodes: workload selector -> the nodes of its replicas; an empty text for a replica that fits nowhere.
        zones: workload selector -> the zones of these nodes.
        cost: networkCost, summed over all pairs of caller and callee.
        latency_us: network time of a call, expected over all calls.
        violations: pairs of caller and callee over maxNetworkCost, of callees that may answer the caller (in parity, of all).
        unplaced: number of replicas that fit nowhere.
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
        group: ``namespace/name``.
        topology, weights: in use; null if the scheduler uses none.
        replicas: number of pods to place.
        default: the median run of the default scheduler, ordered by unplaced pods and then by cost.
        network_aware: our planner's placement.
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
        ("simulate --offline cluster.json -o json", "plans of a cluster in a file"),
    )
    description = (
        "Places an AppGroup of a file on the cluster as it is now, by our planner and by a model of the default scheduler "
        "(resources, spreading; 25 runs, because it picks at random between equal nodes). Creates nothing. Pod templates come "
        "from Deployments and StatefulSets in the file or else in the cluster; a workload without one counts as one pod "
        "without requests. With --offline the whole cluster comes from a file, as `kubectl get ns,nodes,pods,services,pv,pvc,"
        "storageclasses,appgroups,networktopologies -A -o json` prints it: shows the controller's plan for pending pods."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_argument = partial(parser.add_argument, metavar="FILE")
        add_argument("-f", "--filename", action="append", default=[], help="an AppGroup; - is standard input")
        add_argument("--offline", default="", help="a v1 List (JSON or YAML) of a cluster; - is standard input")

    def needs_cluster(self, options: argparse.Namespace) -> bool:
        """Whether ``--filename`` is given, and not ``--offline``."""
        return bool(options.filename) and not options.offline

    async def run(self, session: Session, options: argparse.Namespace) -> Simulation | OfflinePlan:
        if options.offline:
            return await self._plan_offline(session, options)
        if not options.filename:
            raise ConfigError("--filename", "is missing", "give it an AppGroup, or give --offline FILE")
        documents, _ = convert(await asyncio.to_thread(read_documents, options.filename, "--filename"))
        group, in_file = _decode_group(documents)
        namespace = group.metadata.namespace or session.namespace or "default"
        # The group's namespace decides which Services its pods use.
        group = msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, namespace=namespace))
        snapshot = await session.read_snapshot(groups=True)
        templates = {
            controller.labels.get(WORKLOAD_LABEL, ""): controller
            for controller in (*await session.list_workload_controllers(namespace), *in_file)
            if controller.labels.get(APPGROUP_LABEL) == group.metadata.name
        }
        inputs, _ = await read_inputs(session, snapshot)
        if not inputs.state.costs(namespace).weight:
            session.notes.append("costs: the scheduler uses none, so all zones are equally near")
        without_template = [selector for selector in build_graph(group.spec).selectors if selector not in templates]
        if without_template:
            names = join_first(without_template, MAX_NAMED_WORKLOADS)
            session.notes.append(f"no template found for {names}: each counts as one pod without requests")
        return await asyncio.to_thread(simulate, inputs, group, templates)

    async def _plan_offline(self, session: Session, options: argparse.Namespace) -> OfflinePlan:
        if options.filename:
            raise ConfigError("--offline", "and --filename exclude each other", "give one of them")
        cluster = await asyncio.to_thread(read_cluster, options.offline)
        answer, notes = await asyncio.to_thread(plan_offline, cluster)
        session.notes += notes
        return answer

    def render(self, answer: Simulation | OfflinePlan, options: argparse.Namespace, width: int) -> RenderableType:
        """Both placements side by side, then their sums."""
        if isinstance(answer, OfflinePlan):
            return render_offline(answer)
        costs = f"costs: {answer.topology or 'no NetworkTopology'} {answer.weights or ''}"
        head = Text.assemble((answer.group, STRONG), f"  {pluralize(answer.replicas, 'pod')}", (f"  {costs}", FAINT))
        return Group(head, Text(), _placement_table(answer), Text(), _sum_table(answer))


def simulate(inputs: PlanInputs, group: AppGroup, templates: Mapping[str, WorkloadController]) -> Simulation:
    """Place a group with both schedulers, as if it had no pods yet. The default scheduler's random seeds are fixed."""
    snapshot = empty_group(inputs, group, templates)
    hosts, used = inputs.node_cache.hosts, inputs.node_cache.requested
    reader = PodReader()
    pods = [(pod.workload, reader.read(pod)) for pod in snapshot.pods]
    runs = [
        outcome_of(snapshot, simulate_scheduling(pods, hosts, used, random.Random(seed), snapshot.volumes))
        for seed in range(RUNS)
    ]
    runs.sort(key=lambda run: (run.unplaced, run.cost))
    costs = inputs.state.costs(group.metadata.namespace)
    return Simulation(
        group=group.metadata.key,
        topology=costs.topology or None,
        weights=costs.weight or None,
        replicas=len(snapshot.pods),
        default=runs[len(runs) // 2],
        network_aware=planned_outcome(inputs, snapshot),
        default_costs=tuple(sorted(run.cost for run in runs)),
    )


def empty_group(inputs: PlanInputs, group: AppGroup, templates: Mapping[str, WorkloadController]) -> GroupSnapshot:
    """The planner's input for a group that has no pods yet.

    Args:
        inputs: the cluster; the group and its pods in it are replaced.
        group: the AppGroup.
        templates: workload selector -> Deployment or StatefulSet; a workload without one counts as one pod without requests.
    """
    state, key = inputs.state, group.metadata.key
    state.on_group_change(key, state.groups.get(key), group)
    inputs.node_cache.remove_pods(belongs_to(state, key))
    return inputs.snapshot(key, _pending_pods(group, state.graph(key), templates))


def planned_outcome(inputs: PlanInputs, snapshot: GroupSnapshot) -> Outcome:
    """The outcome of the leader's plan of a group."""
    targets, keys = inputs.plan_with_preemption(snapshot).targets, [pod.metadata.key for pod in snapshot.pods]
    return outcome_of(snapshot, [targets[key].node if key in targets else "" for key in keys])


def outcome_of(snapshot: GroupSnapshot, nodes: Sequence[str]) -> Outcome:
    """The outcome of one placement; ``nodes`` are those of ``snapshot.pods``, empty for a pod that fits nowhere."""
    replace, placed = msgspec.structs.replace, list(zip(snapshot.pods, nodes, strict=True))
    bound = [replace(pod, spec=replace(pod.spec, node_name=node)) for pod, node in placed if node]
    plan = plan_group(replace(snapshot, pods=bound))
    by_workload: dict[str, list[str]] = defaultdict(list)
    for pod, node in placed:
        by_workload[pod.workload].append(node)
    zone_of = {"": "", **{node: snapshot.hosts[node].location.zone for node in nodes if node}}
    return Outcome(
        nodes=dict(by_workload),
        zones={workload: [zone_of[node] for node in of_replicas] for workload, of_replicas in by_workload.items()},
        cost=plan.cost,
        latency_us=round(plan.latency_us, 1),
        violations=plan.violations,
        unplaced=len(placed) - len(bound),
    )


def _decode_group(documents: Iterable[dict[str, Any]]) -> tuple[AppGroup, list[WorkloadController]]:
    """The one AppGroup of a file, and its Deployments and StatefulSets."""
    groups: list[AppGroup] = []
    controllers: list[WorkloadController] = []
    for document in documents:
        kind = str(document.get("kind") or "")
        try:
            if kind == "AppGroup":
                groups.append(msgspec.convert(document, AppGroup))
            elif kind in {"Deployment", "StatefulSet"}:
                controllers.append(msgspec.convert(document, WorkloadController))
        except msgspec.ValidationError as error:
            metadata = document.get("metadata")
            name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
            raise ConfigError("--filename", f"{kind} {name}: {error}") from error
    if len(groups) != 1:
        raise ConfigError("--filename", f"holds {pluralize(len(groups), 'AppGroup')}", "give exactly one")
    return groups[0], controllers


def _pending_pods(group: AppGroup, graph: DependencyGraph, templates: Mapping[str, WorkloadController]) -> list[Pod]:
    """The declared replicas as pending pods. Raises ConfigError if there are more than `MAX_PODS`."""
    replicas = sum(max(0, templates.get(selector, WorkloadController()).replicas) for selector in graph.selectors)
    if replicas > MAX_PODS:
        raise ConfigError(group.metadata.key, f"has {replicas} replicas", f"at most {MAX_PODS} are planned together")
    pods: list[Pod] = []
    for selector in graph.selectors:
        controller = templates.get(selector, WorkloadController())
        labels = {**controller.labels, APPGROUP_LABEL: group.metadata.name, WORKLOAD_LABEL: selector}
        template = controller.spec.template
        for _ in range(controller.replicas):
            metadata = msgspec.structs.replace(
                template.metadata, namespace=group.metadata.namespace, name=f"replica-{len(pods):05d}", labels=labels
            )
            pods.append(Pod(metadata=metadata, spec=template.spec))
    return pods


def _zones_text(zones: Sequence[str]) -> str:
    placed, unplaced = sorted(filter(None, zones)), zones.count("")
    return format_counts(Counter([*placed, *["does not fit"] * unplaced]))


def _placement_table(answer: Simulation) -> RenderableType:
    table = make_table("WORKLOAD", "PODS", "DEFAULT SCHEDULER", "NETWORK-AWARE", numeric=("PODS",))
    for workload, zones in answer.default.zones.items():
        table.add_row(workload, str(len(zones)), _zones_text(zones), _zones_text(answer.network_aware.zones[workload]))
    return table


def _sum_table(answer: Simulation) -> RenderableType:
    """Sums of both placements; for the default scheduler of the median run, and the range of all runs' costs."""
    numbers = ("COST", "TIME PER CALL", "VIOLATED PAIRS", "UNPLACED")
    table = make_table("", *numbers, "", numeric=numbers)
    costs = answer.default_costs
    cost_range = f"{costs[0]} to {costs[-1]} over {len(costs)} runs"
    rows = (("default scheduler", answer.default, cost_range), ("network-aware", answer.network_aware, ""))
    for name, outcome, remark in rows:
        violated = Text(str(outcome.violations), style=BAD if outcome.violations else GOOD)
        unplaced = Text(str(outcome.unplaced), style=BAD if outcome.unplaced else "")
        table.add_row(name, str(outcome.cost), f"{outcome.latency_us:.0f} µs", violated, unplaced, remark)
    return table
