"""Plans a whole group: a host for every waiting replica, so that calls spend as little time on the network as possible.

Judged pod by pod, a first replica sees no cost at all and its placement is no better than chance (docs/adr/0006). So the plan takes
what is bound as given, and everything else, replicas that do not exist yet included, as one problem: everything placed that can
be, no dependency beyond its maxNetworkCost where that can be, then the time of calls (docs/adr/0006), within what hosts have room
for and pods ask for.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from controller.cluster.costs import CostTable
from controller.cluster.graph import Graph
from controller.cluster.hosts import Host
from controller.cluster.pods import GroupPod, NodeSelector, Target
from controller.cluster.requests import Amounts, add, asks_of
from controller.cluster.resources import AppGroup
from controller.cluster.services import Routing
from controller.scheduler.affinity import as_asked
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.placement.evaluation import count_hosts, evaluate
from controller.scheduler.placement.foreign import ForeignPods
from controller.scheduler.placement.preferences import dependencies_of, objective_of, spread_of
from controller.scheduler.placement.problem import Ints
from controller.scheduler.placement.problem_builder import (
    BoundReplica,
    CompiledProblem,
    PlacementRequest,
    WaitingReplica,
    compile_problem,
    timed,
    total_cost,
)
from controller.scheduler.placement.solve import solve
from controller.scheduler.placement.unplaced import why_unplaced
from controller.traffic.prices import PriceTable
from kubekit.errors import KubekitError
from kubekit.owners import outdated

DEADLINE_S = 20.0


class PlanningError(KubekitError):
    """A plan could not be made; ``reason`` is fit for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class GroupSnapshot(msgspec.Struct, frozen=True):
    """All inputs of a plan.

    Attributes:
        graph: the group's workloads and dependencies.
        pods: the group's pods, finished and terminating ones included.
        replicas: workload selector -> how many replicas it declares; absent where that is not known.
        costs: the weight in use.
        hosts: every node by name.
        used: node -> requests of the pods on it.
        released: pod key -> target of pods that the scheduler may be placing right now; these stay.
        previous: pod key -> target of an earlier plan, which wins over equally good ones.
        assigned_nodes: pod key -> node of the group's pods that ``used`` counts. Pods and what they use are two watches, of which
            either may be ahead; None when they agree.
        group: for its annotations.
        routings: workload selector -> who answers calls to it; any replica where that is not told.
        measured: whether there is a NetworkTopology.
        promised: node -> requests of pods of other groups that are expected there, beyond ``used``.
        refused: pod key -> hosts that the scheduler refused to its like, and that have not changed since.
        volumes: pod key, or workload selector for replicas to come -> what volumes demand of a node; every one must hold.
        hot: hosts above what the descheduler lets them be loaded with; they are taken only where nothing else will do.
        foreign: bound pods of others that rules about sharing domains count, see `foreign_pods`.
        turn: varies the random seed between plans for the same request.
        prices: of bytes between zones, for groups whose objective weighs money.
        allocatable: how much nodes are preferred by their size.
    """

    graph: Graph
    pods: Sequence[GroupPod]
    replicas: Mapping[str, int]
    costs: CostTable
    hosts: Mapping[str, Host]
    used: Mapping[str, Amounts]
    released: Mapping[str, Target] = {}
    previous: Mapping[str, Target] = {}
    assigned_nodes: Mapping[str, str] | None = None
    group: AppGroup = AppGroup()
    routings: Mapping[str, Routing] = {}
    measured: bool = True
    promised: Mapping[str, Amounts] = {}
    refused: Mapping[str, frozenset[str]] = {}
    volumes: Mapping[str, tuple[NodeSelector, ...]] = {}
    hot: frozenset[str] = frozenset()
    foreign: Sequence[ForeignPods] = ()
    turn: int = 0
    prices: PriceTable | None = None
    allocatable: AllocatableArgs = AllocatableArgs()


class Plan(msgspec.Struct, frozen=True):
    """A target for each pod, and what could not be placed.

    Attributes:
        targets: pod key -> target, for pods that wait and fit somewhere; released ones included.
        unplaced: keys of waiting pods for which no place was found.
        cost: networkCost over all pairs once everything is placed, replicas to come included.
        violations: pairs of a caller and a replica that may answer it beyond their maxNetworkCost; all pairs in parity.
        latency_us: expected time of a call on the network.
        traffic: weight of the dependencies that have replicas at both ends.
        why: unplaced pod -> what every node lacks.
        problems: annotations that could not be read.
    """

    targets: Mapping[str, Target] = {}
    unplaced: tuple[str, ...] = ()
    cost: int = 0
    violations: int = 0
    latency_us: float = 0.0
    traffic: float = 0.0
    why: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()


def plan_group(snapshot: GroupSnapshot, *, deadline_s: float = DEADLINE_S) -> Plan:
    """Plan a group. The same snapshot gives the same plan, unless the deadline cuts the search short.

    Args:
        snapshot: the group and the cluster.
        deadline_s: what is found by then is the plan, seconds.
    """
    return _Reading(snapshot).plan(deadline_s)


def without(snapshot: GroupSnapshot, key: str) -> GroupSnapshot:
    """The snapshot in which one bound pod is gone and its replacement waits under its name."""
    pod = next(pod for pod in snapshot.pods if pod.metadata.key == key)
    node, replace = pod.spec.node_name, msgspec.structs.replace
    waiting = replace(pod, spec=replace(pod.spec, node_name=""), status=replace(pod.status, phase="Pending"))
    promised = dict(snapshot.promised)
    if snapshot.assigned_nodes is None or key in snapshot.assigned_nodes:
        left = dict(promised.get(node, {}))
        add(left, asks_of(pod.spec, pod.status), -1)
        promised[node] = left
    return replace(
        snapshot,
        pods=[waiting if other is pod else other for other in snapshot.pods],
        assigned_nodes=None
        if snapshot.assigned_nodes is None
        else {k: node for k, node in snapshot.assigned_nodes.items() if k != key},
        promised=promised,
    )


class _Slot(msgspec.Struct, frozen=True):
    """A replica to place, and what it comes after: pods by age, then those that do not exist yet."""

    waiting: WaitingReplica
    order: tuple[str, str]


class _Reading:
    """A snapshot made into a demand, and the way back."""

    def __init__(self, snapshot: GroupSnapshot) -> None:
        self.snapshot = snapshot
        self.graph = snapshot.graph
        self.problems: list[str] = []
        self.kept: dict[str, Target] = {}
        self._position = {selector: i for i, selector in enumerate(self.graph.selectors)}
        self._models: list[GroupPod | None] = [None] * len(self.graph.workloads)
        self._bound: list[BoundReplica] = []
        self._left_by: list[list[str]] = [[] for _ in self.graph.workloads]
        self._taken: dict[str, Amounts] = defaultdict(dict, {n: dict(a) for n, a in snapshot.promised.items()})
        self.slots = self._read_pods()

    def _read_pods(self) -> list[_Slot]:
        """Sort pods into what stays and what is to be placed."""
        slots: list[_Slot] = []
        live: Counter[int] = Counter()
        self._outdated = outdated(pod.metadata for pod in self.snapshot.pods if pod.is_active)
        # Those of the present template first: replicas to come are like them.
        for pod in sorted(self.snapshot.pods, key=lambda p: (p.metadata.key in self._outdated, p.metadata.key)):
            position = self._position.get(pod.workload)
            if position is None or not pod.is_active:
                continue
            asked = as_asked(pod)
            self._models[position] = self._models[position] or asked
            if self._leaves(pod, position):
                continue
            live[position] += 1
            if not self._stays(pod, position) and not pod.other_gates:
                key, snapshot = pod.metadata.key, self.snapshot
                refused = snapshot.refused.get(key, frozenset())
                waiting = WaitingReplica(key, position, asked, snapshot.volumes.get(key, ()), refused)
                slots.append(_Slot(waiting, (pod.metadata.creation_timestamp or "", key)))
        for position, selector in enumerate(self.graph.selectors):
            model = self._models[position] or GroupPod()
            missing = self.snapshot.replicas.get(selector, len(self._left_by[position])) - live[position]
            to_come = WaitingReplica("", position, model, self.snapshot.volumes.get(selector, ()))
            slots += [_Slot(to_come, ("~", str(i))) for i in range(missing)]
        return slots

    def _leaves(self, pod: GroupPod, position: int) -> bool:
        """Whether a rollout is about to replace a bound pod: its successor has its room, and until then it keeps others away."""
        node, counted = self._assigned_node(pod)
        if not node or pod.metadata.key not in self._outdated:
            return False
        self._bound.append(BoundReplica(node, -1, pod))
        self._left_by[position].append(node)
        if counted:
            add(self._taken[node], asks_of(pod.spec, pod.status), -1)
        return True

    def _assigned_node(self, pod: GroupPod) -> tuple[str, bool]:
        """The node that a pod is bound to, and whether its requests are counted there."""
        key, assigned_nodes = pod.metadata.key, self.snapshot.assigned_nodes
        return pod.spec.node_name or (assigned_nodes or {}).get(
            key, ""
        ), assigned_nodes is None or key in assigned_nodes

    def _stays(self, pod: GroupPod, position: int) -> bool:
        """Whether a pod is bound, or may be at any moment: its target is as good as taken."""
        key = pod.metadata.key
        node, counted = self._assigned_node(pod)
        if not node:
            target = self.snapshot.released.get(key)
            if target is None or target.node not in self.snapshot.hosts:
                return False
            self.kept[key], node, counted = target, target.node, False
        self._bound.append(BoundReplica(node, position, pod))
        if not counted:
            add(self._taken[node], asks_of(pod.spec, pod.status))
        return True

    def _request(self) -> PlacementRequest:
        snapshot, group = self.snapshot, self.snapshot.group
        default = spread_of(group.metadata.annotations, "soft", self.problems)
        counts = [0] * len(self.graph.workloads)
        for position in (*(slot.waiting.workload for slot in self.slots), *(s.workload for s in self._bound)):
            if position >= 0:
                counts[position] += 1
        routings = [snapshot.routings.get(selector, Routing.ANY) for selector in self.graph.selectors]
        return PlacementRequest(
            hosts=snapshot.hosts,
            used=snapshot.used,
            waiting=[slot.waiting for slot in self.slots],
            bound=[
                *self._bound,
                *(
                    BoundReplica(node, -1, others.pod)
                    for others in snapshot.foreign
                    for node, count in others.nodes.items()
                    for _ in range(count)
                ),
            ],
            spreads=[
                spread_of(model.metadata.annotations, default, self.problems) if model is not None else default
                for model in self._models
            ],
            dependencies=dependencies_of(group, self.graph, counts, routings, self.problems),
            costs=snapshot.costs,
            taken=self._taken,
            objective=objective_of(group, self.problems, priced=snapshot.prices is not None),
            measured=snapshot.measured,
            prices=snapshot.prices,
            allocatable=snapshot.allocatable,
        )

    def plan(self, deadline_s: float) -> Plan:
        """Search, and give the places found to the pods."""
        request = self._request()
        ends_at = time.monotonic() + deadline_s
        seed = zlib.crc32("/".join(self.graph.selectors).encode()) + self.snapshot.turn

        def search(wanted: PlacementRequest) -> tuple[PlacementRequest, CompiledProblem, Ints | None, Ints]:
            compiled = compile_problem(wanted)
            hints = self._hints(compiled.number_of)
            left_s = ends_at - time.monotonic()
            return wanted, compiled, hints, solve(compiled.problem, hints, seed=seed, deadline_s=left_s)

        wanted, compiled, hints, at = search(self._avoiding(request))
        if self.snapshot.hot and _lacks(compiled, at) > (0, 0):
            # Rather a hot host than none, and rather than one that calls must not come from.
            anywhere = search(request)
            if _lacks(anywhere[1], anywhere[3]) < _lacks(compiled, at):
                wanted, compiled, hints, at = anywhere
        targets, unplaced, why = dict(self.kept), [], {}
        reasons: dict[int, str] = {}
        for replica, host in enumerate(self._in_turns(compiled.problem.class_of, at, hints, compiled.problem.zone_of)):
            key = self.slots[replica].waiting.key
            if not key:
                continue
            if host >= 0:
                found = self.snapshot.hosts[compiled.names[host]]
                targets[key] = Target(found.location.zone, found.location.region, found.name)
                continue
            class_ = int(compiled.problem.class_of[replica])
            if class_ not in reasons:
                reasons[class_] = why_unplaced(wanted, compiled, at, replica)
            unplaced.append(key)
            why[key] = reasons[class_]
        unplaced += self._whole_pod_groups(targets, why)
        evaluated, by_time = evaluate(compiled.problem, at), timed(request, compiled.problem)
        timing = evaluated if by_time is compiled.problem else evaluate(by_time, at)
        return Plan(
            targets=targets,
            unplaced=tuple(unplaced),
            cost=total_cost(request, count_hosts(compiled.problem, at), compiled.names),
            violations=evaluated.violations,
            latency_us=timing.latency,
            traffic=timing.traffic,
            why=why,
            problems=tuple(dict.fromkeys(self.problems)),
        )

    def _whole_pod_groups(self, targets: dict[str, Target], why: dict[str, str]) -> list[str]:
        """Take the places from pods that kube-scheduler will not bind, because others of their PodGroup have none; their keys."""
        waiting = [pod for pod in self.snapshot.pods if pod.pod_group and pod.waiting]
        reasons = {p.pod_group: why[p.metadata.key] for p in waiting if p.metadata.key in why}
        left = {p.metadata.key: reasons[p.pod_group] for p in waiting if p.pod_group in reasons}
        taken = [key for key in left if targets.pop(key, None) is not None]
        why.update((key, f"not all of its PodGroup have a place: {left[key]}") for key in taken)
        return taken

    def _avoiding(self, request: PlacementRequest) -> PlacementRequest:
        """The demand without hot hosts."""
        hot = self.snapshot.hot
        if not hot:
            return request
        waiting = [msgspec.structs.replace(w, refused=w.refused | hot) for w in request.waiting]
        return msgspec.structs.replace(request, waiting=waiting)

    def _hints(self, number_of: Mapping[str, int]) -> Ints | None:
        """[replica] host of the earlier plan, else of a pod that the replica is to replace, or -1."""
        if not self.snapshot.previous and not any(self._left_by):
            return None
        targets = (self.snapshot.previous.get(slot.waiting.key) for slot in self.slots)
        nodes = ["" if target is None else target.node for target in targets]
        left = [Counter(found) for found in self._left_by]
        for slot, node in zip(self.slots, nodes, strict=True):
            left[slot.waiting.workload][node] -= 1
        heirs = [(+counts).elements() for counts in left]
        nodes = [node or next(heirs[slot.waiting.workload], "") for slot, node in zip(self.slots, nodes, strict=True)]
        return np.array([number_of.get(node, -1) for node in nodes], np.int64)

    def _in_turns(self, class_of: Ints, at: Ints, hints: Ints | None, zone_of: Ints) -> list[int]:
        """[replica] host: the places of one class, in an order that suits its pods. Each keeps its previous one where that is
        among them; the rest, by age, take zones in turn, so that a spread is even at every moment.
        """
        members: dict[int, list[int]] = defaultdict(list)
        for replica, class_ in enumerate(class_of.tolist()):
            members[class_].append(replica)
        given: list[int] = at.tolist()
        for replicas in members.values():
            left = Counter(int(at[replica]) for replica in replicas)
            waiting = []
            for replica in sorted(replicas, key=lambda r: self.slots[r].order):
                hint = -1 if hints is None else int(hints[replica])
                if hint >= 0 and left[hint] > 0:
                    left[hint] -= 1
                    given[replica] = hint
                else:
                    waiting.append(replica)
            rounds: Counter[int] = Counter()
            queue = []
            for host in sorted(left.elements()):
                zone = int(zone_of[host]) if host >= 0 else -1
                queue.append((host < 0, rounds[zone], host))
                rounds[zone] += 1
            for replica, (_, _, host) in zip(waiting, sorted(queue), strict=True):
                given[replica] = host
        return given


def _lacks(compiled: CompiledProblem, at: Ints) -> tuple[int, int]:
    """Replicas without a place, and limits that are broken."""
    return int((at < 0).sum()), evaluate(compiled.problem, at).violations
