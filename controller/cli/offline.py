"""`simulate --offline FILE`: the plan that the controller would make of a cluster in a file, without a cluster."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.offline_objects import ClusterFile
from controller.cli.style import BAD, FAINT, GOOD, counted, grid
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostIndex, Costs, is_one_zone
from controller.cluster.eligibility import required_terms
from controller.cluster.graph import Graph
from controller.cluster.hosts import Fleet, Room, hosts_of
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.services import routing_to_all
from controller.cluster.volumes import Volumes
from controller.scheduler.affinity import as_asked
from controller.scheduler.plan.judge import count_hosts, judge
from controller.scheduler.plan.problem import Ints
from controller.scheduler.plan.solve import Effort, solve
from controller.scheduler.planner import why_unplaced
from controller.scheduler.preferences import dependencies_of, objective_of, spread_of
from controller.scheduler.problem_builder import (
    Demand,
    DependencyDemand,
    Objective,
    Spread,
    Standing,
    WaitingReplica,
    draft,
    whole_cost,
)
from controller.scheduler.survival import Survival, describe, pays, price_us, survival_of
from kubekit.wire import FINISHED, ObjectMeta
from netperf.contract import HOME_NAMESPACE

EFFORT = Effort(steps_per_replica=6000, most_steps=20_000_000, threads=2)
"""Somebody asked and waits: more than the leader spends on a plan that it may have to make again a minute later."""


Kind = tuple[Objective, str]
"""What groups are planned together: objective, and key of the NetworkTopology that counts for them."""


class OfflinePlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer.

    Attributes:
        placements: waiting pod (namespace/name) -> node.
        unplaced: waiting pod -> why it has no place.
        cost: networkCost summed over all pairs of caller and callee, as upstream counts, placed and planned pods alike.
        violations: callers and replicas that may answer them which are farther apart than maxNetworkCost; all pairs in parity.
        latency_us: time that a call spends on the network, expected over all calls.
        seconds: that planning took.
        survival: per AppGroup (namespace/name), what the loss of a zone would take, and what surviving one costs a call of all
            that is planned with it; left out unless it is asked for.
    """

    placements: dict[str, str]
    unplaced: dict[str, str]
    cost: int
    violations: int
    latency_us: float
    seconds: float
    survival: dict[str, Survival] = {}


class Given(msgspec.Struct, frozen=True):
    """What the command line overrides."""

    spread: Spread | None = None
    objective: Objective | None = None
    topology: str = ""
    weights: str = ""
    survival: bool = False


def plan_offline(cluster: ClusterFile, given: Given, *, deadline_s: float = 50.0) -> tuple[OfflinePlan, list[str]]:
    """Plan every group of a file.

    Args:
        cluster: what the file holds.
        given: overrides.
        deadline_s: what is found by then is the answer.

    Returns:
        The answer, and remarks on what could not be read or was left out.
    """
    began = time.perf_counter()
    reading = _Reading(cluster, given)
    placements: dict[str, str] = {}
    unplaced = dict(reading.held)
    cost = violations = 0
    latency = weight = 0.0
    survival: dict[str, Survival] = {}
    ends_at = time.monotonic() + deadline_s
    for kind, demand in reading.demands():
        drawn = draft(demand)
        seed = zlib.crc32("/".join(reading.names).encode())
        at = solve(drawn.problem, seed=seed, effort=EFFORT, deadline_s=deadline_s)
        reading.settle(demand, drawn.names, at)
        why: dict[int, str] = {}
        for replica, host in enumerate(at.tolist()):
            waiting = demand.waiting[replica]
            if host >= 0:
                placements[waiting.key] = drawn.names[host]
                continue
            class_ = int(drawn.problem.class_of[replica])
            if class_ not in why:
                why[class_] = why_unplaced(demand, drawn, at, replica)
            unplaced[waiting.key] = why[class_]
        hosts_of = count_hosts(drawn.problem, at)
        if given.survival:
            paid_us = None
            if pays(demand):
                left_s = max(ends_at - time.monotonic(), 0.0)
                paid_us = price_us(demand, drawn, at, seed=seed, effort=EFFORT, deadline_s=left_s)
            survival |= reading.survival(kind, hosts_of, drawn.names, paid_us)
        cost += whole_cost(demand, hosts_of, drawn.names)
        violations += judge(drawn.problem, at).beyond
        by_time = draft(msgspec.structs.replace(demand, objective="time")).problem
        judged = judge(by_time, at)
        answered = sum(edge.weight for edge, e in zip(by_time.edges, judged.edges, strict=True) if e.answered)
        latency += judged.latency * answered
        weight += answered
    answer = OfflinePlan(
        placements=dict(sorted(placements.items())),
        unplaced=dict(sorted(unplaced.items())),
        cost=cost,
        violations=violations,
        latency_us=round(latency / weight, 3) if weight else 0.0,
        seconds=round(time.perf_counter() - began, 3),
        survival=dict(sorted(survival.items())),
    )
    return answer, reading.remarks


class _Reading:
    """A file as demands: one per objective and NetworkTopology, each with all its groups, so that groups do not take each other's room."""

    def __init__(self, cluster: ClusterFile, given: Given) -> None:
        self._cluster, self._given = cluster, given
        self.remarks = list(cluster.problems)
        self.held: dict[str, str] = {}
        self._hosts = hosts_of(cluster.nodes)
        self._fleet, self._reader = Fleet(), PodReader()
        self._rules = NetworkOverheadArgs()
        self._members = Membership.among(cluster.groups, cluster.namespaces, self._rules)
        for key in self._members.groups:
            if refused := self._members.refused_by(key):
                self.remarks.append(f"AppGroup {key} has no pods of {', '.join(refused)}: no such Namespace lets it in")
        self._costs = CostIndex.among(
            cluster.topologies,
            self._rules,
            HOME_NAMESPACE,
            one_zone=is_one_zone(host.location for host in self._hosts.values()),
            topology=given.topology,
            weights=given.weights,
        )
        self._volumes = Volumes.among(cluster.volumes, cluster.claims, cluster.classes)
        self._standing: list[Standing] = []
        self._waiting: dict[str, list[GroupPod]] = {}
        self._placed: dict[str, list[GroupPod]] = {}
        self._firsts: dict[Kind, dict[str, int]] = {}
        for pod in cluster.pods:
            self._sort(pod)
        self.names = sorted({*self._waiting, *self._placed})

    def _sort(self, pod: GroupPod) -> None:
        """A pod stays where it is, waits, or is none of ours."""
        if pod.status.phase in FINISHED:
            return
        group = self._members.group_of(pod.metadata.namespace, pod.group) if pod.group else ""
        node = pod.spec.node_name or ("" if group else _pinned_node(pod))
        if node:
            self._take(node, pod)
            if group and not pod.over:
                self._placed.setdefault(group, []).append(pod)
            else:
                self._standing.append(Standing(node, -1, pod))
        elif group and not pod.over:
            if pod.other_gates:
                self.held[pod.metadata.key] = f"held by another scheduling gate: {', '.join(pod.other_gates)}"
            else:
                self._waiting.setdefault(group, []).append(pod)

    def _take(self, node: str, pod: GroupPod) -> None:
        info = msgspec.structs.replace(self._reader.read(pod), node=node)
        self._fleet.take_pod(info.key, None, info)

    def demands(self) -> Iterator[tuple[Kind, Demand]]:
        """What is to be planned, group after group by namespace and name within one demand."""
        kinds: dict[Kind, list[str]] = {}
        for key in self.names:
            said = self._given.objective or objective_of(self._members.groups[key], "time", self.remarks, priced=False)
            kinds.setdefault((said, self._costs_of(key).topology), []).append(key)
        for kind, keys in sorted(kinds.items()):
            yield kind, self._demand(kind, keys)  # each when the one before is settled

    def _costs_of(self, key: str) -> Costs:
        """Those that count for a group, with remarks on what is wrong with them."""
        costs = self._costs.of(key.partition("/")[0])
        remark = costs.problem
        if not costs.topology:
            remark = "there is no NetworkTopology that counts: zones count as equally far from each other"
        elif not costs.weight:
            remark = f"NetworkTopology {costs.topology} has no weight that counts: its costs are unknown"
        if remark and remark not in self.remarks:
            self.remarks.append(remark)
        return costs

    def _demand(self, kind: Kind, keys: Sequence[str]) -> Demand:
        ours, costs = _Numbering(), self._costs_of(keys[0])
        dependencies: list[DependencyDemand] = []
        waiting: list[WaitingReplica] = []
        standing = list(self._standing)
        spreads: list[Spread] = []
        firsts = self._firsts[kind] = {}
        for key in keys:
            group, graph = self._members.groups[key], self._members.graph(key)
            pods, placed = self._waiting.get(key, []), self._placed.get(key, [])
            first = firsts[key] = ours.begin(graph, [*pods, *placed])
            models = _models(ours, [*pods, *placed])
            routings = [
                routing_to_all(self._cluster.services, (model.metadata for model in found.values())) for found in models
            ]
            counts = [0] * len(models)
            for pod in (*pods, *placed):
                counts[ours.position(pod)] += 1
            default = self._given.spread or spread_of(group.metadata.annotations, "soft", self.remarks)
            spreads += [
                spread_of(_first(found).annotations, default, self.remarks)
                if found and not self._given.spread
                else default
                for found in models
            ]
            dependencies += [
                msgspec.structs.replace(d, caller=d.caller + first, callee=d.callee + first)
                for d in dependencies_of(group, graph, counts, routings, self.remarks)
            ]
            waiting += [
                WaitingReplica(
                    pod.metadata.key, first + ours.position(pod), as_asked(pod), self._volumes.demands_of(pod)
                )
                for pod in sorted(pods, key=lambda p: p.metadata.key)
            ]
            standing += [Standing(pod.spec.node_name, first + ours.position(pod), pod) for pod in placed]
        return Demand(
            hosts=self._hosts,
            room=Room(self._hosts, self._fleet.used),
            waiting=waiting,
            standing=standing,
            spreads=spreads,
            dependencies=dependencies,
            costs=costs.table,
            objective=kind[0],
            measured=bool(costs.topology),
        )

    def survival(
        self, kind: Kind, hosts_of: Sequence[Mapping[int, int]], names: Sequence[str], paid_us: float | None
    ) -> dict[str, Survival]:
        """Of the groups of one demand, as planned."""
        locations = {name: host.location for name, host in self._hosts.items()}
        found = {}
        for key, first in self._firsts[kind].items():
            graph = self._members.graph(key)
            members = [{names[h]: n for h, n in hosts_of[first + w].items()} for w in range(len(graph.workloads))]
            found[key] = survival_of(graph.selectors, members, locations, graph.edges, paid_us)
        return found

    def settle(self, demand: Demand, names: Sequence[str], at: Ints) -> None:
        """What one demand was given is no longer free for the next."""
        for waiting, host in zip(demand.waiting, at.tolist(), strict=True):
            if host >= 0:
                self._take(names[host], waiting.pod)
                self._standing.append(Standing(names[host], -1, waiting.pod))


class _Numbering:
    """Numbers of the workloads of one group; those that pods name and the group does not have come last, alone."""

    def __init__(self) -> None:
        self._count = 0
        self._positions: dict[str, int] = {}

    def begin(self, graph: Graph, pods: Sequence[GroupPod]) -> int:
        """The next group; the number of its first workload."""
        first, self._positions = self._count, {selector: i for i, selector in enumerate(graph.selectors)}
        for workload in sorted({pod.workload for pod in pods}):
            self._positions.setdefault(workload, len(self._positions))
        self._count += len(self._positions)
        return first

    def position(self, pod: GroupPod) -> int:
        """Of a pod's workload, in its group."""
        return self._positions[pod.workload]

    @property
    def size(self) -> int:
        """Of the group."""
        return len(self._positions)


def _models(ours: _Numbering, pods: Sequence[GroupPod]) -> list[dict[str, GroupPod]]:
    """Per workload, the first of its pods in each of its namespaces, by key."""
    models: list[dict[str, GroupPod]] = [{} for _ in range(ours.size)]
    for pod in sorted(pods, key=lambda p: p.metadata.key):
        models[ours.position(pod)].setdefault(pod.metadata.namespace, pod)
    return models


def _first(models: Mapping[str, GroupPod]) -> ObjectMeta:
    """Of all of them, by key."""
    return next(iter(models.values())).metadata


def _pinned_node(pod: GroupPod) -> str:
    """The one node that a pod is made for, as the DaemonSet controller says it: its room is as good as taken."""
    terms = required_terms(pod.spec.affinity) or ()
    names = {
        value
        for term in terms
        for field in term.match_fields or ()
        if field.key == "metadata.name" and field.operator == "In"
        for value in field.values or ()
    }
    return names.pop() if len(names) == 1 and len(terms) == 1 else ""


OFFLINE_HEADER = ("pod", "node", "why")


def offline_rows(answer: OfflinePlan) -> list[tuple[str, str, str]]:
    """One row per waiting pod."""
    placed = [(pod, node, "") for pod, node in answer.placements.items()]
    return sorted([*placed, *((pod, "", why) for pod, why in answer.unplaced.items())])


def show_offline(answer: OfflinePlan) -> RenderableType:
    """Where every waiting pod would go, then what that costs."""
    table = grid("POD", "NODE")
    for pod, node, why in offline_rows(answer):
        table.add_row(pod, node or Text(why, style=BAD))
    text = Text(f"{answer.latency_us:.0f} µs a call   total cost {answer.cost}   ")
    text.append(counted(answer.violations, "violation"), style=BAD if answer.violations else GOOD)
    if answer.unplaced:
        text.append(f"   {counted(len(answer.unplaced), 'pod')} without a place", style=BAD)
    text.append(f"   planned in {answer.seconds:.1f} s", style=FAINT)
    losses = [
        Text(f"{key} without {loss.zone}: {describe(loss)}", style=FAINT)
        for key, found in answer.survival.items()
        for loss in found.losses
        if loss.stops
    ]
    paid = {found.price_us for found in answer.survival.values() if found.price_us is not None}
    losses += [Text(f"to survive a zone, a call pays {price:.0f} µs") for price in sorted(paid)]
    return (
        Group(table, Text(), text, *losses)
        if answer.placements or answer.unplaced
        else Group(Text("no pod of an AppGroup waits"), text)
    )
