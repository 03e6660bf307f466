"""`simulate -f appgroup.yaml`: where the default scheduler and netaware would place an AppGroup, and at what cost."""

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

from controller.cli.cluster_file import normalize, read_cluster, read_documents
from controller.cli.command import Command
from controller.cli.offline import OfflinePlan, list_cost_problems, plan_offline, render_offline
from controller.cli.plan_inputs import make_group_filter, read_inputs
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, format_counts, make_table
from controller.cli.workload_controller import WorkloadController
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.dependency_graph import DependencyGraph, build_graph
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Pod
from controller.convert.spellings import convert_documents
from controller.diagnosis.cluster_views import View
from controller.scheduler.default_scheduler import simulate_scheduling
from controller.scheduler.gating.group_plans import MAX_PODS
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from kubekit.errors import ConfigError
from kubekit.text import join_first, pluralize

DEFAULT_SCHEDULER_RUNS = 25
"""Several runs, because the default scheduler picks at random between equal nodes."""
MAX_WORKLOADS_SHOWN = 8


class PlacementOutcome(View, frozen=True):
    """A placement of a group's replicas, and what follows from it.

    Attributes:
        nodes_by_workload: workload selector -> node of each replica; an empty text for a replica that fits nowhere.
        zones_by_workload: workload selector -> zone of each of these nodes; an empty text without a node or zone.
        cost: networkCost, summed over all pairs of a calling and a called pod.
        latency_us: expected network time of a call, in microseconds.
        violations: pairs of a caller and a replica that may answer it, with a cost above maxNetworkCost; in parity mode any may.
        unplaced: number of replicas that fit nowhere.
    """

    nodes_by_workload: dict[str, list[str]]
    zones_by_workload: dict[str, list[str]]
    cost: int
    latency_us: float
    violations: int
    unplaced: int


class Simulation(View, frozen=True):
    """A group as the default scheduler and as netaware would place it.

    Attributes:
        group: ``namespace/name``.
        topology, weight_name: the NetworkTopology and the weight in use; null if the scheduler uses none.
        replicas: number of pods to place.
        default_scheduler: the default scheduler's median run, by unplaced pods and then by cost.
        network_aware: netaware's plan.
        default_scheduler_costs: cost of each of its runs, ascending; a run that places fewer pods costs less.
    """

    group: str
    topology: str | None
    weight_name: str | None
    replicas: int
    default_scheduler: PlacementOutcome
    network_aware: PlacementOutcome
    default_scheduler_costs: tuple[int, ...]


class SimulateCommand(Command):
    examples = (
        ("simulate -f appgroup.yaml", "where a group would be placed"),
        ("simulate --offline cluster.json -o json", "plans of a cluster in a file"),
    )
    description = (
        "Places an AppGroup of a file on the cluster as it is now, by our planner and by a model of the default scheduler (resources, "
        f"spreading; {DEFAULT_SCHEDULER_RUNS} runs, because it picks at random between equal nodes). Creates nothing. Pod templates "
        "come from Deployments and StatefulSets in the file or else in the cluster; a workload without one counts as one pod without "
        "requests. With --offline the whole cluster comes from a file, as `kubectl get ns,nodes,pods,services,pv,pvc,storageclasses,"
        "appgroups,networktopologies -A -o json` prints it, and the answer is the controller's plan for its pending pods."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_argument = partial(parser.add_argument, metavar="FILE")
        add_argument("-f", "--filename", action="append", default=[], help="an AppGroup; - is standard input")
        add_argument("--offline", default="", help="a v1 List (JSON or YAML) of a cluster; - is standard input")

    def reads_cluster(self, options: argparse.Namespace) -> bool:
        """Whether ``--filename`` is given without ``--offline``."""
        return bool(options.filename) and not options.offline

    async def run(self, session: Session, options: argparse.Namespace) -> Simulation | OfflinePlan:
        if options.offline:
            return await self._plan_offline(session, options)
        if not options.filename:
            raise ConfigError("--filename", "is missing", "give it an AppGroup, or give --offline FILE")
        documents, _ = convert_documents(await asyncio.to_thread(read_documents, options.filename, "--filename"))
        group, file_controllers = _decode_group(documents)
        namespace = group.metadata.namespace or session.namespace or "default"
        # The group's namespace decides which Services its pods use.
        group = msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, namespace=namespace))
        snapshot = await session.read_snapshot(groups=True)
        # Controllers of the file replace those of the cluster.
        controllers = {
            controller.pod_labels.get(WORKLOAD_LABEL, ""): controller
            for controller in (*await session.list_workload_controllers(namespace), *file_controllers)
            if controller.pod_labels.get(APPGROUP_LABEL) == group.metadata.name
        }
        inputs, _ = await read_inputs(session, snapshot)
        session.notes += list_cost_problems(inputs.state, namespace)
        without_template = [selector for selector in build_graph(group.spec).selectors if selector not in controllers]
        if without_template:
            names = join_first(without_template, MAX_WORKLOADS_SHOWN)
            session.notes.append(f"no template found for {names}: each counts as one pod without requests")
        return await asyncio.to_thread(simulate, inputs, group, controllers)

    async def _plan_offline(self, session: Session, options: argparse.Namespace) -> OfflinePlan:
        if options.filename:
            raise ConfigError("--offline", "and --filename exclude each other", "give one of them")
        cluster = await asyncio.to_thread(read_cluster, options.offline)
        offline_plan, notes = await asyncio.to_thread(plan_offline, cluster)
        session.notes += notes
        return offline_plan

    def render(self, answer: Simulation | OfflinePlan, options: argparse.Namespace, width: int) -> RenderableType:
        """Both placements side by side, then their sums; with ``--offline`` see `render_offline`."""
        if isinstance(answer, OfflinePlan):
            return render_offline(answer)
        costs = f"costs: {answer.topology or 'no NetworkTopology'} {answer.weight_name or ''}"
        pods = pluralize(answer.replicas, "pod")
        headline = Text.assemble((answer.group, STRONG), f"  {pods}", (f"  {costs}", FAINT))
        return Group(headline, Text(), _make_placement_table(answer), Text(), _make_summary_table(answer))


def simulate(inputs: PlanInputs, group: AppGroup, controllers: Mapping[str, WorkloadController]) -> Simulation:
    """Place a group with both schedulers, as if it had no pods yet. For arguments and errors see `reset_group`."""
    snapshot = reset_group(inputs, group, controllers)
    hosts, requested = inputs.node_cache.hosts, inputs.node_cache.requested
    reader = PodReader()
    pods = [(pod.workload, reader.read(pod)) for pod in snapshot.pods]
    outcomes = [
        evaluate_placement(snapshot, simulate_scheduling(pods, hosts, requested, random.Random(seed), snapshot.volumes))
        for seed in range(DEFAULT_SCHEDULER_RUNS)
    ]
    outcomes.sort(key=lambda outcome: (outcome.unplaced, outcome.cost))
    costs = inputs.state.costs(group.metadata.namespace)
    return Simulation(
        group=group.metadata.key,
        topology=costs.network_topology or None,
        weight_name=costs.weight_name or None,
        replicas=len(snapshot.pods),
        default_scheduler=outcomes[len(outcomes) // 2],
        network_aware=plan_placement(inputs, snapshot),
        default_scheduler_costs=tuple(sorted(outcome.cost for outcome in outcomes)),
    )


def reset_group(inputs: PlanInputs, group: AppGroup, controllers: Mapping[str, WorkloadController]) -> GroupSnapshot:
    """Change ``inputs`` as if a group had no pods, and return the planner's input for its declared replicas, all pending.

    Args:
        inputs: the cluster; the group is replaced in it, and its pods are removed.
        group: the AppGroup.
        controllers: workload selector -> Deployment or StatefulSet; a workload without one counts as one pod without requests.

    Raises:
        ConfigError: the group has more than `MAX_PODS` replicas.
    """
    state, key = inputs.state, group.metadata.key
    state.on_group_change(key, state.groups.get(key), group)
    inputs.node_cache.remove_pods(make_group_filter(state, key))
    return inputs.build_snapshot(key, _make_pending_pods(group, state.graph(key), controllers))


def plan_placement(inputs: PlanInputs, snapshot: GroupSnapshot) -> PlacementOutcome:
    """Plan a group as the leader does."""
    targets = inputs.plan_with_preemption(snapshot).targets
    keys = [pod.metadata.key for pod in snapshot.pods]
    return evaluate_placement(snapshot, [targets[key].node if key in targets else "" for key in keys])


def evaluate_placement(snapshot: GroupSnapshot, nodes: Sequence[str]) -> PlacementOutcome:
    """The outcome of placing each of ``snapshot.pods`` on its node in ``nodes``; an empty node for a pod that fits nowhere."""
    replace = msgspec.structs.replace
    assignments = list(zip(snapshot.pods, nodes, strict=True))
    bound_pods = [replace(pod, spec=replace(pod.spec, node_name=node)) for pod, node in assignments if node]
    # All pods are bound, so that the planner only evaluates.
    plan = plan_group(replace(snapshot, pods=bound_pods))
    nodes_by_workload: dict[str, list[str]] = defaultdict(list)
    zones_by_workload: dict[str, list[str]] = defaultdict(list)
    for pod, node in assignments:
        nodes_by_workload[pod.workload].append(node)
        zones_by_workload[pod.workload].append(snapshot.hosts[node].location.zone if node else "")
    return PlacementOutcome(
        nodes_by_workload=dict(nodes_by_workload),
        zones_by_workload=dict(zones_by_workload),
        cost=plan.cost,
        latency_us=round(plan.latency_us, 1),
        violations=plan.violations,
        unplaced=len(assignments) - len(bound_pods),
    )


def _decode_group(documents: Iterable[dict[str, Any]]) -> tuple[AppGroup, list[WorkloadController]]:
    """The one AppGroup of the files, and their Deployments and StatefulSets; raises ConfigError for none, several or an invalid object."""
    groups: list[AppGroup] = []
    controllers: list[WorkloadController] = []
    for document in documents:
        kind = str(document.get("kind") or "")
        try:
            if kind == "AppGroup":
                groups.append(msgspec.convert(normalize(document), AppGroup))
            elif kind in {"Deployment", "StatefulSet"}:
                controllers.append(msgspec.convert(normalize(document), WorkloadController))
        except msgspec.ValidationError as error:
            metadata = document.get("metadata")
            name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
            raise ConfigError("--filename", f"{kind} {name}: {error}") from error
    if len(groups) != 1:
        raise ConfigError("--filename", f"holds {pluralize(len(groups), 'AppGroup')}", "give exactly one")
    return groups[0], controllers


def _make_pending_pods(
    group: AppGroup, graph: DependencyGraph, controllers: Mapping[str, WorkloadController]
) -> list[Pod]:
    """The declared replicas as pending pods. For the errors see `reset_group`."""
    all_controllers = {selector: controllers.get(selector, WorkloadController()) for selector in graph.selectors}
    replicas = sum(max(0, controller.spec.replicas) for controller in all_controllers.values())
    if replicas > MAX_PODS:
        raise ConfigError(group.metadata.key, f"has {replicas} replicas", f"at most {MAX_PODS} are planned together")
    pods: list[Pod] = []
    for selector, controller in all_controllers.items():
        labels = {**controller.pod_labels, APPGROUP_LABEL: group.metadata.name, WORKLOAD_LABEL: selector}
        template = controller.spec.template
        for _ in range(controller.spec.replicas):
            metadata = msgspec.structs.replace(
                template.metadata, namespace=group.metadata.namespace, name=f"replica-{len(pods):05d}", labels=labels
            )
            pods.append(Pod(metadata=metadata, spec=template.spec))
    return pods


def _make_placement_table(answer: Simulation) -> RenderableType:
    table = make_table("WORKLOAD", "PODS", "DEFAULT SCHEDULER", "NETWORK-AWARE", numeric=("PODS",))
    outcomes = answer.default_scheduler, answer.network_aware
    for workload, nodes in answer.network_aware.nodes_by_workload.items():
        table.add_row(workload, str(len(nodes)), *(_format_placement(outcome, workload) for outcome in outcomes))
    return table


def _format_placement(outcome: PlacementOutcome, workload: str) -> str:
    """The zones of a workload's replicas, with counts; the node for one without a zone."""
    nodes, zones = outcome.nodes_by_workload[workload], outcome.zones_by_workload[workload]
    zones_or_nodes = sorted(zone or node for node, zone in zip(nodes, zones, strict=True) if node)
    return format_counts(Counter([*zones_or_nodes, *["does not fit"] * nodes.count("")]))


def _make_summary_table(answer: Simulation) -> RenderableType:
    """The sums of both placements, and the range of costs over the default scheduler's runs."""
    numeric_headers = ("COST", "TIME PER CALL", "VIOLATED POD PAIRS", "UNPLACED")
    table = make_table("", *numeric_headers, "", numeric=numeric_headers)
    costs = answer.default_scheduler_costs
    cost_range = f"{costs[0]} to {costs[-1]} over {len(costs)} runs"
    rows = (("default scheduler", answer.default_scheduler, cost_range), ("network-aware", answer.network_aware, ""))
    for scheduler, outcome, note in rows:
        violated = Text(str(outcome.violations), style=BAD if outcome.violations else GOOD)
        unplaced = Text(str(outcome.unplaced), style=BAD if outcome.unplaced else "")
        table.add_row(scheduler, str(outcome.cost), f"{outcome.latency_us:.0f} µs", violated, unplaced, note)
    return table
