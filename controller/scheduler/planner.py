"""The whole group at once: a host for every replica that waits, so that all dependencies together cost least.

Judged pod by pod, a first replica sees no cost at all and its placement is no better than chance (docs/adr, plan the group).
So the plan takes what is bound as given, and everything else, replicas that do not exist yet included, as one problem:
lowest total cost, no dependency beyond its maxNetworkCost where that can be, within what the hosts have room for.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.appgroup.graph import Graph
from controller.scheduler.affinity import as_asked
from controller.scheduler.eligibility import is_choosy, may_run_on, tolerated
from controller.scheduler.fleet import Host, Room
from controller.scheduler.placement import Problem
from controller.scheduler.pods import GroupPod, GroupPodSpec, Target
from controller.scheduler.requests import PODS_RESOURCE, Amounts, requests_of
from controller.scheduler.rules import SAME_HOST_COST, CostTable, Location
from controller.scheduler.search import Solution, solve
from controller.scheduler.spreading import Spreading
from controller.scheduler.spreading_rules import spreading_of
from controller.scheduler.tables import CostTables

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_WHOLE_GROUPS = 1 << 40
"""Replicas that fit into a host where none asks for anything."""


class GroupSnapshot(msgspec.Struct, frozen=True):
    """All that a plan depends on.

    Attributes:
        graph: the group's workloads and dependencies.
        pods: the group's pods, finished and terminating ones included.
        replicas: workload selector -> how many replicas it declares; absent where that is not known.
        costs: the weight in use.
        hosts: every node by name.
        used: node -> requests of the pods on it.
        released: pod key -> target of pods that the scheduler may be placing right now; these stay.
        previous: pod key -> target of an earlier plan, which wins over equally good ones.
        seats: pod key -> node of the group's pods that ``used`` counts. Pods and what they use are two watches, of which
            either may be ahead; None when they agree.
        room: hosts and used as a table, for whoever keeps one; None to have it made.
    """

    graph: Graph
    pods: Sequence[GroupPod]
    replicas: Mapping[str, int]
    costs: CostTable
    hosts: Mapping[str, Host]
    used: Mapping[str, Amounts]
    released: Mapping[str, Target] = {}
    previous: Mapping[str, Target] = {}
    seats: Mapping[str, str] | None = None
    room: Room | None = None


class Plan(msgspec.Struct, frozen=True):
    """Where everything should go.

    Attributes:
        targets: pod key -> target, for pods that wait and fit somewhere; released ones included.
        unplaced: keys of waiting pods for which no host has room.
        cost: of all dependencies together once everything is placed, replicas to come included.
        violations: pairs of pods beyond their maxNetworkCost.
    """

    targets: Mapping[str, Target] = {}
    unplaced: tuple[str, ...] = ()
    cost: int = 0
    violations: int = 0


def plan_group(snapshot: GroupSnapshot, *, most_sites: int = 20) -> Plan:
    """Plan a group. The same snapshot gives the same plan.

    Args:
        snapshot: the group and the cluster.
        most_sites: how many hosts of one zone are considered at most.
    """
    draft = _Draft(snapshot, most_sites)
    if not draft.slots:
        return Plan(draft.kept)
    solution = draft.solve()
    return draft.plan(solution)


class _Slot(msgspec.Struct, frozen=True):
    """A replica to place: a waiting pod, or one that its workload declares and that does not exist yet (no key)."""

    workload: int
    key: str
    order: tuple[str, str]


class _Draft:
    """A snapshot made into numbers, and the way back."""

    def __init__(self, snapshot: GroupSnapshot, most_sites: int) -> None:
        self.snapshot = snapshot
        self.graph = snapshot.graph
        self._position = {selector: i for i, selector in enumerate(self.graph.selectors)}
        self._models: list[GroupPod | None] = [None] * len(self.graph.workloads)
        self._fixed: list[Counter[str]] = [Counter() for _ in self.graph.workloads]
        self.kept: dict[str, Target] = {}
        self._taken: dict[str, Amounts] = defaultdict(dict)
        self.slots = self._read_pods()
        self._wanted = [_requests(model) for model in self._models]
        self._resources = sorted({name for wanted in self._wanted for name, value in wanted.items() if value})
        self._room = snapshot.room or Room(snapshot.hosts, snapshot.used)
        self._free = self._free_table()
        self._eligible = self._eligible_hosts()
        self._chosen = self._choose_sites(most_sites)
        self._sites = [snapshot.hosts[self._room.names[number]] for number in self._chosen.tolist()]
        self._tables = CostTables(self.graph, snapshot.costs, [host.location for host in self._sites])

    def _read_pods(self) -> list[_Slot]:
        """Sort pods into what stays and what is to be placed."""
        slots: list[_Slot] = []
        live: Counter[int] = Counter()
        for pod in sorted(self.snapshot.pods, key=lambda p: p.metadata.key):
            position = self._position.get(pod.workload)
            if position is None or pod.over:
                continue
            live[position] += 1
            key = pod.metadata.key
            self._models[position] = self._models[position] or as_asked(pod)
            seats = self.snapshot.seats
            node = pod.spec.node_name or (seats or {}).get(key, "")
            if node:
                self._fixed[position][node] += 1
                if seats is not None and key not in seats:
                    self._take(node, pod)
                continue
            target = self.snapshot.released.get(key)
            if target is not None and target.node in self.snapshot.hosts:
                self._hold(pod, position, target)
            else:
                slots.append(_Slot(position, key, (pod.metadata.creation_timestamp or "", key)))
        for position, selector in enumerate(self.graph.selectors):
            missing = self.snapshot.replicas.get(selector, 0) - live[position]
            slots += [_Slot(position, "", ("~", str(i))) for i in range(missing)]
        return slots

    def _hold(self, pod: GroupPod, position: int, target: Target) -> None:
        """A pod that may be bound at any moment: its target is as good as taken."""
        self.kept[pod.metadata.key] = target
        self._fixed[position][target.node] += 1
        self._take(target.node, pod)

    def _take(self, node: str, pod: GroupPod) -> None:
        taken = self._taken[node]
        for name, value in _requests(pod).items():
            taken[name] = taken.get(name, 0) + value

    def _free_table(self) -> Ints:
        """[host, resource] what is free once everything that stays is there."""
        free = self._room.free(self._resources)
        for node, taken in self._taken.items():
            number = self._room.number_of.get(node)
            if number is not None:
                free[number] -= [taken.get(resource, 0) for resource in self._resources]
        return free

    def _eligible_hosts(self) -> list[Bools]:
        """Per workload, [host] whether it may go there at all; workloads that ask for the same share one answer."""
        known: dict[bytes, Bools] = {}
        found = []
        for model in self._models:
            spec = model.spec if model is not None else GroupPodSpec()
            asked = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))
            if asked not in known:
                known[asked] = self._eligible_for(spec)
            found.append(known[asked])
        return found

    def _eligible_for(self, spec: GroupPodSpec) -> Bools:
        hosts, names = self.snapshot.hosts, self._room.names
        if is_choosy(spec):
            may: Bools = np.array([may_run_on(spec, name, hosts[name].labels) for name in names], np.bool_)
        else:
            may = np.ones(len(names), np.bool_)
        for number in self._room.tainted:
            may[number] &= tolerated(hosts[names[number]].taints, spec.tolerations)
        return may

    def _choose_sites(self, most_sites: int) -> Ints:
        """Numbers of the hosts to choose from: of each zone the roomiest, until the zone could hold the whole group.

        Hosts with pods of the group come first, then those of earlier plans, then by room, then by name.
        """
        ours = np.zeros(len(self._room.names), np.bool_)
        for node in {node for fixed in self._fixed for node in fixed} | {
            target.node for target in self.snapshot.previous.values()
        }:
            number = self._room.number_of.get(node)
            if number is not None:
                ours[number] = True
        rooms: Ints = (self._free // np.array(self._mean_request(), np.int64)).min(axis=1, initial=_WHOLE_GROUPS)
        candidates = np.logical_or.reduce(self._eligible) & ((rooms > 0) | ours)
        numbers = np.flatnonzero(candidates)
        location_of = self._room.location_of[numbers]
        ranked = numbers[np.lexsort((-rooms[numbers], ~ours[numbers], location_of))]
        fewest = max(Counter(s.workload for s in self.slots).values(), default=1)
        chosen: list[int] = []
        ends = np.cumsum(np.bincount(location_of, minlength=len(self._room.locations))).tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            wanted = len(self.slots)
            for turn, number in enumerate(ranked[begin : min(end, begin + most_sites)].tolist()):
                # Enough is when the zone could hold everything, one workload's replicas on a host each: more hosts cannot
                # lower the cost.
                if wanted <= 0 and turn >= fewest:
                    break
                wanted -= int(rooms[number])
                chosen.append(number)
        return np.array(chosen, np.int64)

    def _mean_request(self) -> list[int]:
        """Per resource, the mean over the replicas to place, at least 1."""
        count = max(len(self.slots), 1)
        return [max(sum(self._wanted[s.workload].get(r, 0) for s in self.slots) // count, 1) for r in self._resources]

    def solve(self) -> Solution:
        """Search; where wishes to spread leave somebody out, once more without the wishes."""
        rules = spreading_of(self._models, self._sites, self._fixed, self.snapshot.hosts)
        strict = Spreading(rules.all) if rules.all else None
        problem = self._problem(strict)
        hints = self._hints()
        seed = zlib.crc32("/".join(self.graph.selectors).encode())
        solution = solve(problem, hints, seed=seed)
        if len(rules.demands) < len(rules.all) and problem.sites in solution.site_of:
            demanded = Spreading(rules.demands) if rules.demands else None
            solution = solve(msgspec.structs.replace(problem, spreading=demanded), hints, seed=seed)
        return solution

    def _problem(self, spreading: Spreading | None) -> Problem:
        allowed = np.array([may[self._chosen] for may in self._eligible], np.bool_)
        return Problem(
            workload_of=np.array([slot.workload for slot in self.slots], np.int64),
            links=self._tables.links,
            tables=self._tables.tables,
            zone_of=np.array(self._tables.zone_of, np.int64),
            free=self._free[self._chosen],
            requests=np.array([[w.get(r, 0) for r in self._resources] for w in self._wanted], np.int64).reshape(
                len(self._wanted), len(self._resources)
            ),
            allowed=allowed.reshape(len(self._wanted), len(self._sites)),
            standing=self._standing(),
            spreading=spreading,
        )

    def _standing(self) -> Ints:
        """[workload, site] what a replica pays towards pods that stay."""
        standing = np.zeros((len(self.graph.workloads), len(self._sites)), np.int64)
        index = {host.name: i for i, host in enumerate(self._sites)}
        for link, edge in zip(self._tables.links, self.graph.edges, strict=True):
            for one, other, outward in (
                (edge.dependant, edge.dependency, True),
                (edge.dependency, edge.dependant, False),
            ):
                for node, count in self._fixed[other].items():
                    host = self.snapshot.hosts.get(node)
                    if host is None:
                        continue
                    standing[one] += count * self._tables.towards(link.table, host.location, outward=outward)
                    if node in index:
                        site = index[node]
                        own = self._tables.towards(link.table, host.location, outward=outward)[site]
                        standing[one, site] += count * (SAME_HOST_COST - own)
        return standing

    def _hints(self) -> list[int] | None:
        if not self.snapshot.previous:
            return None
        index = {host.name: i for i, host in enumerate(self._sites)}
        nowhere = len(self._sites)
        targets = (self.snapshot.previous.get(slot.key) for slot in self.slots)
        return [index.get(target.node, nowhere) if target is not None else nowhere for target in targets]

    def plan(self, solution: Solution) -> Plan:
        """Give the places found to the pods: those created first get those of the zones with most of them first."""
        by_workload: dict[int, list[int]] = defaultdict(list)
        for slot, site in zip(self.slots, solution.site_of, strict=True):
            by_workload[slot.workload].append(site)
        targets, unplaced = dict(self.kept), []
        where: list[Counter[str]] = [Counter(fixed) for fixed in self._fixed]
        for workload, sites in by_workload.items():
            slots = sorted((s for s in self.slots if s.workload == workload), key=lambda s: s.order)
            for slot, site in zip(slots, self._in_turns(slots, sites), strict=True):
                if site < len(self._sites):
                    host = self._sites[site]
                    where[workload][host.name] += 1
                    if slot.key:
                        targets[slot.key] = Target(host.location.zone, host.location.region, host.name)
                elif slot.key:
                    unplaced.append(slot.key)
        cost, violations = self._judge(where)
        return Plan(targets, tuple(unplaced), cost, violations)

    def _in_turns(self, slots: Sequence[_Slot], sites: Sequence[int]) -> list[int]:
        """The sites of one workload, in an order that suits its pods: each keeps its previous one where that is among them;
        the rest take zones in turn, so that a spread is even at every moment.
        """
        left = Counter(sites)
        index = {host.name: i for i, host in enumerate(self._sites)}
        given: dict[int, int] = {}
        for turn, slot in enumerate(slots):
            target = self.snapshot.previous.get(slot.key)
            site = index.get(target.node, -1) if target is not None else -1
            if left[site] > 0:
                left[site] -= 1
                given[turn] = site
        rounds: Counter[object] = Counter()
        queue = []
        for site in sorted(left.elements()):
            zone = self._sites[site].location if site < len(self._sites) else None
            queue.append((site == len(self._sites), rounds[zone], site))
            rounds[zone] += 1
        rest = iter(site for _, _, site in sorted(queue))
        return [given[turn] if turn in given else next(rest) for turn in range(len(slots))]

    def _judge(self, where: Sequence[Mapping[str, int]]) -> tuple[int, int]:
        """Total cost and violations over all pairs of pods, by the contract's table."""
        total = violations = 0
        for edge in self.graph.edges:
            for origin, callers in where[edge.dependant].items():
                for destination, called in where[edge.dependency].items():
                    cost, violated = self._pair(origin, destination, edge.max_network_cost)
                    total += callers * called * cost
                    violations += callers * called * violated
        return total, violations

    def _pair(self, origin: str, destination: str, max_cost: int) -> tuple[int, bool]:
        if origin == destination:
            return SAME_HOST_COST, False
        hosts = self.snapshot.hosts
        if origin not in hosts or destination not in hosts:
            return 0, False
        verdict, cost = self.snapshot.costs.judge(hosts[origin].location, hosts[destination].location, max_cost)
        return cost, verdict == "violated"


def _requests(pod: GroupPod | None) -> Amounts:
    if pod is None:
        return {PODS_RESOURCE: 1}
    return requests_of(pod.spec.containers, pod.spec.init_containers, pod.spec.overhead)


def total_cost(graph: Graph, places: Iterable[tuple[str, Location, str]], costs: CostTable) -> tuple[int, int]:
    """Cost and violations of a placement, over all pairs of pods.

    Args:
        graph: the group.
        places: workload selector, location and node of each placed pod.
        costs: the weight in use.
    """
    by_workload: dict[str, list[tuple[Location, str]]] = defaultdict(list)
    for selector, location, node in places:
        by_workload[selector].append((location, node))
    total = violations = 0
    for edge in graph.edges:
        for origin, caller in by_workload[graph.selectors[edge.dependant]]:
            for destination, called in by_workload[graph.selectors[edge.dependency]]:
                if caller == called:
                    continue
                verdict, cost = costs.judge(origin, destination, edge.max_network_cost)
                total += cost
                violations += verdict == "violated"
    return total, violations
