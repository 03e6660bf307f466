"""`simulate -f appgroup.yaml`: where would this group land now, by the default scheduler and by ours, at what cost."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command, Table
from controller.cli.convert import read_files
from controller.cli.looking import belongs_to, state_of
from controller.cli.offline import OFFLINE_HEADER, Given, OfflinePlan, offline_rows, plan_offline, show_offline
from controller.cli.offline_objects import read_cluster
from controller.cli.session import NotFoundError, Session
from controller.cli.style import BAD, FAINT, GOOD, SIGNS, STRONG, counted, grid
from controller.cli.templates import Controller
from controller.cluster.costs import Costs, CostTable
from controller.cluster.graph import Graph, build_graph
from controller.cluster.hosts import Host, hosts_of
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GroupPod, GroupPodSpec
from controller.cluster.requests import Amounts
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, SERVICES, WORKLOAD_LABEL, AppGroup
from controller.cluster.services import Routing, Service, routing_to
from controller.convert.spellings import convert
from controller.groups.status import Verdict, hosts_by_location, judge
from controller.scheduler.planner import GroupSnapshot, Plan, plan_group, total_cost
from controller.scheduler.preferences import OBJECTIVES
from controller.scheduler.problem_builder import PRICED, Spread
from controller.scheduler.stock import place
from controller.traffic.placed import Placed
from controller.traffic.prices import PriceTable
from controller.traffic.workloads import Place
from controller.views.model import View
from kubekit.errors import ConfigError
from kubekit.wire import ObjectMeta

RUNS = 25
"""The default scheduler draws lots between equal nodes, so that one run of it says little."""


class Waiting(NamedTuple):
    """A replica to place."""

    workload: str
    spec: GroupPodSpec


class Outcome(View, frozen=True):
    """One way to place the group.

    Attributes:
        nodes: per workload selector, the nodes of its replicas; an empty text for one that fits nowhere.
        zones: the same as zones.
        cost: of all pairs of dependent pods together.
        violations: callers and replicas that may answer them which are farther apart than maxNetworkCost; all pairs in parity.
        unplaced: replicas that fit nowhere.
    """

    nodes: dict[str, list[str]]
    zones: dict[str, list[str]]
    cost: int
    violations: int
    unplaced: int

    def placed(self, hosts: Mapping[str, Host]) -> Placed:
        """Its replicas by place; those that fit nowhere are none."""
        return {
            workload: Counter[Place](hosts[node].location for node in nodes if node)
            for workload, nodes in self.nodes.items()
        }


class Compared(View, frozen=True):
    """A dependency both ways: the worst pair of a caller and a replica that may answer it, whose cost is null when one side is not placed."""

    dependant: str
    dependency: str
    max_cost: int
    default_cost: int | None
    network_aware_cost: int | None
    default_verdict: Verdict = "idle"
    network_aware_verdict: Verdict = "idle"


class Simulation(View, frozen=True):
    """What would happen. ``default`` is the run of median cost; ``default_costs`` has the cost of every run, ascending."""

    group: str
    topology: str | None
    weights: str | None
    replicas: int
    default: Outcome
    network_aware: Outcome
    default_costs: tuple[int, ...]
    dependencies: tuple[Compared, ...]


class Simulate(Command):
    """See `controller.cli.command.Command`."""

    name = "simulate"
    examples = (
        ("simulate -f appgroup.yaml", "where a group would land"),
        ("simulate --offline cluster.json -o json", "a whole cluster in a file, without a cluster"),
    )
    description = (
        "Reads an AppGroup from a file, with its Deployments and StatefulSets if they are in it, and plans it for the cluster "
        "as it is now: our planner, and a model of the default scheduler (resources, spreading; 25 runs, since it draws lots "
        "between equal nodes). Workloads whose template is neither in the file nor in the cluster count as one pod without "
        "requests. Nothing is created. With --exit-code the command ends with 3 when ours would violate a dependency or not "
        "fit. With --offline everything is read from a file instead, as `kubectl get ns,nodes,pods,services,pv,pvc,storageclasses,"
        "appgroups,networktopologies -A -o json` prints it: the plan is the one that the controller would make of the pods in it that wait, "
        "and no cluster is asked."
    )
    watchable = False

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
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
        parser.add_argument(
            "--spread", choices=get_args(Spread), help="with --offline: instead of what the AppGroups' annotations say"
        )
        parser.add_argument(
            "--objective",
            choices=[name for name, objective in OBJECTIVES.items() if objective not in PRICED],
            help="with --offline: time that calls spend on the network (default), or upstream's sum over all pairs (parity)",
        )
        parser.add_argument(
            "--survival",
            action="store_true",
            help="with --offline: also what the loss of a zone would take, and what surviving one costs a call (a second plan)",
        )
        parser.add_argument("--weights", default="", metavar="NAME", help="set of costs (default: as the scheduler's)")
        parser.add_argument("--topology", default="", metavar="NAME", help="NetworkTopology (default: nt-default)")

    def asks_cluster(self, options: argparse.Namespace) -> bool:
        """Not with ``--offline``, nor to say that there is no file."""
        return bool(options.filename) and not options.offline

    async def ask(self, session: Session, options: argparse.Namespace) -> Simulation | OfflinePlan:
        """Read the file, then the cluster, then plan."""
        if options.offline:
            return await self._ask_offline(session, options)
        if not options.filename:
            raise ConfigError(
                "--filename", "is missing", "name a file with an AppGroup, or a whole cluster by --offline FILE"
            )
        for flag in ("spread", "objective", "survival"):
            if getattr(options, flag):
                raise ConfigError(f"--{flag}", "works with --offline only")
        documents, _ = convert(await asyncio.to_thread(read_files, options.filename))
        group, given = _read(documents)
        namespace = group.metadata.namespace or session.namespace or "default"
        # Services are looked for where its pods will be.
        group = msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, namespace=namespace))
        snapshot = await session.snapshot()
        costs = snapshot.costs(topology=options.topology, weights=options.weights).of(namespace)
        if options.weights and not costs.weight:
            msg = f"there is no weight {options.weights!r}"
            raise NotFoundError(msg)
        if not costs.weight:
            session.notes["costs"] = "there are none that count, so that every place is as good as another"
        known = {controller.workload: controller for controller in (*await session.controllers(namespace), *given)}
        replicas = _replicas(group, known, session)
        groups = {g.metadata.key: g for g in await session.list_all(APPGROUPS, AppGroup)}
        key = f"{namespace}/{group.metadata.name}"
        state = state_of(msgspec.structs.replace(snapshot, groups=tuple(groups.values())), ())
        state.take_group(key, groups.get(key), group)
        used = await session.used_without(belongs_to(state, key))
        hosts = hosts_of(snapshot.nodes)
        services = await session.list_all(SERVICES, Service, namespace)
        labels = {
            selector: known[group.metadata.name, selector].labels
            for selector in replicas
            if (group.metadata.name, selector) in known
        }
        return await asyncio.to_thread(
            simulate,
            group,
            replicas,
            hosts,
            used,
            costs=costs,
            services=services,
            labels=labels,
            by_answer=snapshot.scheduler.by_answer,
        )

    async def _ask_offline(self, session: Session, options: argparse.Namespace) -> OfflinePlan:
        if options.filename:
            raise ConfigError("--offline", "holds everything, --filename included; give one of them")
        objective = OBJECTIVES[options.objective] if options.objective else None
        given = Given(options.spread, objective, options.topology, options.weights, options.survival)
        cluster = await asyncio.to_thread(read_cluster, options.offline)
        answer, remarks = await asyncio.to_thread(plan_offline, cluster, given)
        session.remarks += remarks
        return answer

    def show(self, answer: Simulation | OfflinePlan, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """Placements side by side, then the dependencies."""
        if isinstance(answer, OfflinePlan):
            return show_offline(answer)
        return Group(
            _headline(answer), Text(), _placements(answer), Text(), _dependencies(answer), Text(), *_sums(answer)
        )

    def rows(self, answer: Simulation | OfflinePlan, options: argparse.Namespace) -> Table:  # noqa: ARG002
        """One row per dependency; offline, one per pod."""
        if isinstance(answer, OfflinePlan):
            return OFFLINE_HEADER, offline_rows(answer)
        return Compared.__struct_fields__, [msgspec.structs.astuple(row) for row in answer.dependencies]

    def is_bad(self, answer: Simulation | OfflinePlan) -> bool:
        """Even our placement violates a dependency, or does not fit."""
        if isinstance(answer, OfflinePlan):
            return bool(answer.violations or answer.unplaced)
        return bool(answer.network_aware.violations or answer.network_aware.unplaced)


def simulate(
    group: AppGroup,
    replicas: Mapping[str, Sequence[GroupPodSpec]],
    hosts: Mapping[str, Host],
    used: Mapping[str, Amounts],
    *,
    costs: Costs,
    services: Sequence[Service] = (),
    labels: Mapping[str, Mapping[str, str]] | None = None,
    prices: PriceTable | None = None,
    by_answer: bool = True,
) -> Simulation:
    """Plan a group both ways. Pure; the default scheduler's lots are drawn from fixed seeds.

    Args:
        group: the AppGroup.
        replicas: workload selector -> the specs of its replicas.
        hosts: every node that may be used.
        used: node -> requests of the pods on it.
        costs: by which both are judged.
        services: of the group's namespaces; they say who answers a call.
        labels: workload selector -> labels of its pods, by which Services select them.
        prices: for a group whose objective weighs money.
        by_answer: whether dependencies are judged by the replica that answers; else by every pair.
    """
    graph, table = build_graph(group.spec), costs.table
    waiting = [Waiting(selector, spec) for selector in graph.selectors for spec in replicas.get(selector, ())]
    pods = _pods(group, waiting, labels or {})
    reader = PodReader()
    judging = _Judging(graph, hosts, table, _routings(pods, services) if by_answer else {})
    asked = [(replica.workload, reader.read(pod)) for replica, pod in zip(waiting, pods, strict=True)]
    runs = [judging.outcome(waiting, place(asked, hosts, used, random.Random(seed))) for seed in range(RUNS)]
    runs.sort(key=lambda run: (run.unplaced, run.cost))
    plan = plan_group(
        GroupSnapshot(
            graph=graph,
            pods=pods,
            replicas={},
            costs=table,
            measured=bool(costs.topology),
            hosts=hosts,
            used=used,
            # Without its annotations and Services it would be another plan than the leader's.
            group=group,
            services=services,
            prices=prices,
        )
    )
    ours = judging.outcome(waiting, _targets(waiting, plan))
    default = runs[len(runs) // 2]
    return Simulation(
        group=group.metadata.key,
        topology=costs.topology or None,
        weights=costs.weight or None,
        replicas=len(waiting),
        default=default,
        network_aware=ours,
        default_costs=tuple(sorted(run.cost for run in runs)),
        dependencies=tuple(judging.compared(default, ours)),
    )


class _Judging(NamedTuple):
    """By what placements of a group are judged.

    Attributes:
        graph: the group.
        hosts: every node that may be used.
        costs: the weight in use.
        routings: who answers calls to a workload, by its selector; any replica where that is not told.
    """

    graph: Graph
    hosts: Mapping[str, Host]
    costs: CostTable
    routings: Mapping[str, Routing]

    def outcome(self, waiting: Sequence[Waiting], nodes: Sequence[str]) -> Outcome:
        """One placement; ``nodes`` are those of the replicas, an empty text for one that fits nowhere."""
        hosts = self.hosts
        by_workload: dict[str, list[str]] = defaultdict(list)
        for replica, node in zip(waiting, nodes, strict=True):
            by_workload[replica.workload].append(node)
        placed = [(w, hosts[n].location, n) for w, found in by_workload.items() for n in found if n]
        cost, violations = total_cost(self.graph, placed, self.costs, self.routings)
        zones = {w: [hosts[n].location.zone if n else "" for n in found] for w, found in by_workload.items()}
        unplaced = sum(not node for node in nodes)
        return Outcome(nodes=dict(by_workload), zones=zones, cost=cost, violations=violations, unplaced=unplaced)

    def compared(self, default: Outcome, ours: Outcome) -> Iterator[Compared]:
        """Each dependency by both placements."""
        locations = {name: host.location for name, host in self.hosts.items()}
        placed = [
            {workload: hosts_by_location(filter(None, nodes), locations) for workload, nodes in outcome.nodes.items()}
            for outcome in (default, ours)
        ]
        for edge in self.graph.edges:
            caller, called = self.graph.selectors[edge.dependant], self.graph.selectors[edge.dependency]
            routing = self.routings.get(called, Routing.ANY)
            judged = [judge(edge, at.get(caller, {}), at.get(called, {}), self.costs, routing) for at in placed]
            default_cost, our_cost = (None if found.verdict == "idle" else found.cost for found in judged)
            yield Compared(
                dependant=caller,
                dependency=called,
                max_cost=edge.max_network_cost,
                default_cost=default_cost,
                network_aware_cost=our_cost,
                default_verdict=judged[0].verdict,
                network_aware_verdict=judged[1].verdict,
            )


def _routings(pods: Iterable[GroupPod], services: Sequence[Service]) -> dict[str, Routing]:
    """Who answers calls to a workload, by its selector; all pods of one have one namespace and one template's labels."""
    models = {pod.workload: pod.metadata for pod in pods}
    return {workload: routing_to(services, m.namespace, m.labels or {}) for workload, m in models.items()}


def _read(documents: Iterable[dict[str, Any]]) -> tuple[AppGroup, list[Controller]]:
    """The one AppGroup of a file, and what makes its pods."""
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
        raise ConfigError("--filename", f"holds {counted(len(groups), 'AppGroup')}", "give exactly one")
    return groups[0], controllers


def _replicas(
    group: AppGroup, known: Mapping[tuple[str, str], Controller], session: Session
) -> dict[str, list[GroupPodSpec]]:
    found: dict[str, list[GroupPodSpec]] = {}
    unknown: list[str] = []
    for selector in build_graph(group.spec).selectors:
        controller = known.get((group.metadata.name, selector))
        if controller is None:
            unknown.append(selector)
        found[selector] = [GroupPodSpec()] if controller is None else controller.pods
    if unknown:
        names = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        session.notes["workloads"] = f"no template found for {names}: each counts as one pod without requests"
    return found


def _pods(group: AppGroup, waiting: Sequence[Waiting], labels: Mapping[str, Mapping[str, str]]) -> list[GroupPod]:
    """The replicas as pods that wait; named by their place in the list."""
    return [
        GroupPod(
            metadata=ObjectMeta(
                name=_name(index),
                namespace=group.metadata.namespace,
                labels={
                    **labels.get(replica.workload, {}),
                    APPGROUP_LABEL: group.metadata.name,
                    WORKLOAD_LABEL: replica.workload,
                },
            ),
            spec=replica.spec,
        )
        for index, replica in enumerate(waiting)
    ]


def _name(index: int) -> str:
    return f"replica-{index:05d}"


def _targets(waiting: Sequence[Waiting], plan: Plan) -> list[str]:
    by_name = {key.rpartition("/")[2]: target.node for key, target in plan.targets.items()}
    return [by_name.get(_name(index), "") for index in range(len(waiting))]


def _headline(answer: Simulation) -> Text:
    text = Text.assemble((answer.group, STRONG), f"  {counted(answer.replicas, 'pod')} on the cluster as it is now")
    text.append(f"  costs: {answer.topology or 'no NetworkTopology'} {answer.weights or ''}".rstrip(), style=FAINT)
    return text


def _where(zones: Sequence[str]) -> Text:
    text = Text()
    for zone, count in sorted(Counter(zones).items(), key=lambda item: (not item[0], item[0])):
        text.append(", " if text else "")
        text.append((zone or "does not fit") + (f" ×{count}" if count > 1 else ""), style="" if zone else BAD)
    return text


def _placements(answer: Simulation) -> RenderableType:
    table = grid("WORKLOAD", "PODS", "DEFAULT SCHEDULER", "NETWORK-AWARE", right=("PODS",))
    for workload, zones in answer.default.zones.items():
        table.add_row(workload, str(len(zones)), _where(zones), _where(answer.network_aware.zones[workload]))
    return table


def _dependencies(answer: Simulation) -> RenderableType:
    table = grid("DEPENDENCY", "MAX", "DEFAULT", "", "NETWORK-AWARE", " ", right=("MAX", "DEFAULT", "NETWORK-AWARE"))
    for row in answer.dependencies:
        cells: list[Text | str] = []
        for cost, verdict in (
            (row.default_cost, row.default_verdict),
            (row.network_aware_cost, row.network_aware_verdict),
        ):
            sign, style = SIGNS[verdict]
            cells.append(Text("-" if cost is None else str(cost), style=BAD if verdict == "violated" else ""))
            cells.append(Text(sign if cost is not None else "", style=style))
        table.add_row(f"{row.dependant} to {row.dependency}", str(row.max_cost), *cells)
    return table


def _sums(answer: Simulation) -> Iterable[RenderableType]:
    costs = answer.default_costs
    for name, outcome in (("Default scheduler", answer.default), ("Network-aware", answer.network_aware)):
        text = Text.assemble((f"{name:18}", STRONG), f"total cost {outcome.cost:6}")
        style = BAD if outcome.violations else GOOD
        text.append(f"   {counted(outcome.violations, 'violated pair')}", style=style)
        if outcome.unplaced:
            text.append(f"   {counted(outcome.unplaced, 'pod')} without room", style=BAD)
        if outcome is answer.default and costs[0] != costs[-1]:
            text.append(f"   {costs[0]} to {costs[-1]} over {len(costs)} runs", style=FAINT)
        yield text
    median = statistics.median(costs)
    if median:
        saved = 1 - answer.network_aware.cost / median
        yield Text(
            f"{saved:.0%} less than the default scheduler's median"
            if saved > 0
            else "no gain over the default scheduler"
        )
