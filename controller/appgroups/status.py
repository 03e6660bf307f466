"""Computes the status of an AppGroup: order, running pods, and conditions.

A dependency is met if the path from each caller to each replica that may answer it costs at most maxNetworkCost (NetworkOverhead's rule,
docs/contracts.md, section 4). In upstream parity every replica may answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from controller.appgroups.order import ALGORITHMS, FALLBACK_ALGORITHM, WorkloadOrder, sort_workloads
from controller.cluster.costs import NO_LOCATION, SAME_HOST_COST, CostTable, Location
from controller.cluster.crds import AppGroup, AppGroupStatus, OrderedWorkload
from controller.cluster.dependency_graph import DependencyEdge, DependencyGraph, Fault, build_graph
from controller.cluster.membership import CONSENT_LABEL, Membership
from controller.cluster.pods import Pod
from controller.cluster.services import Endpoints, Routing, ServiceIndex
from controller.cluster.statuses import ConditionState, make_conditions
from kubekit.conditions import find_condition, make_condition, merge_conditions
from kubekit.text import format_command, join_first
from kubekit.wire import Condition, format_time, parse_time

COMPLETE, COSTS_MET, SPEC_VALID, ADMITTED = "Complete", "CostsMet", "SpecValid", "Admitted"
ROUTED_NEAR, BALANCED = "RoutedNear", "Balanced"
"""Computed by `controller.scheduler.advice`."""
MAX_SHOWN = 3
"""Number of items that a condition's message lists."""

NodesByLocation = Mapping[Location, frozenset[str]]
"""Names of the nodes on which a workload has placed pods."""
DependencyVerdict = Literal["met", "violated", "unknown", "idle"]
"""``unknown``: no cost between its locations is known; ``idle``: its caller or its callee has no placed pod."""


class DependencyCheck(msgspec.Struct, frozen=True, gc=False):
    """Verdict on a dependency, and the locations of its worst pair of a caller (origin) and a replica, with the cost between them."""

    edge: DependencyEdge
    verdict: DependencyVerdict
    cost: int = 0
    origin: Location = NO_LOCATION
    destination: Location = NO_LOCATION


class GroupState(msgspec.Struct, frozen=True):
    """The state of a group.

    Attributes:
        spec_faults: see `spec_faults_of`.
        pods_by_node: for each workload of the graph, node -> number of placed pods.
        checks: one for each edge of the graph.
        running_count: number of pods in phase Running that are not being deleted.
        started_at: RFC 3339 time at which its first pod was created, None without pods.
    """

    graph: DependencyGraph
    order: WorkloadOrder
    spec_faults: tuple[Fault, ...]
    pods_by_node: tuple[Mapping[str, int], ...]
    checks: tuple[DependencyCheck, ...]
    running_count: int
    started_at: str | None


def compute_group_state(
    group: AppGroup,
    pods: Iterable[Pod],
    locations: Mapping[str, Location],
    costs: CostTable,
    membership: Membership,
    *,
    services: ServiceIndex | None = None,
) -> GroupState:
    """Compute the state of a group from its pods; ``pods`` of other groups, by ``membership``, do not count.

    ``locations`` are by node name; pods on other nodes, which are deleted, are not placed. Without ``services``, every replica may
    answer, as in upstream parity.
    """
    graph, key = build_graph(group.spec), group.metadata.key
    positions = {selector: i for i, selector in enumerate(graph.selectors)}
    pods_by_node: list[Counter[str]] = [Counter() for _ in graph.workloads]
    group_pods = [pod for pod in pods if membership.group_key_of(pod.metadata.namespace, pod.group) == key]
    active_pods = [pod for pod in group_pods if pod.is_active]
    placed_pods = [pod for pod in active_pods if pod.workload in positions and pod.spec.node_name in locations]
    for pod in placed_pods:
        pods_by_node[positions[pod.workload]][pod.spec.node_name] += 1
    routing_by_selector = services.routings_of(placed_pods) if services is not None else {}
    node_sets = [_nodes_by_location(counts, locations) for counts in pods_by_node]
    routings = [routing_by_selector.get(selector, Routing.ANY) for selector in graph.selectors]
    checks = [
        _check_dependency(edge, node_sets[edge.caller], node_sets[edge.callee], costs, routings[edge.callee])
        for edge in graph.edges
    ]
    order = sort_workloads(graph.callees_by_caller(), group.spec.topology_sorting_algorithm)
    faults = tuple(spec_faults_of(group, graph, order))
    running_count = sum(pod.status.phase == "Running" for pod in active_pods)
    created_at = filter(None, (pod.metadata.creation_timestamp for pod in group_pods))
    started_at = min(created_at, key=parse_time, default=None)
    return GroupState(graph, order, faults, tuple(pods_by_node), tuple(checks), running_count, started_at)


def _nodes_by_location(nodes: Iterable[str], locations: Mapping[str, Location]) -> NodesByLocation:
    names_by_location: dict[Location, set[str]] = defaultdict(set)
    for node in nodes:
        names_by_location[locations[node]].add(node)
    return {location: frozenset(names) for location, names in names_by_location.items()}


def _check_dependency(
    edge: DependencyEdge, callers: NodesByLocation, callees: NodesByLocation, costs: CostTable, routing: Routing
) -> DependencyCheck:
    """Check a dependency; its worst pair is that of the greatest `_severity`."""
    worst = DependencyCheck(edge, "idle")
    location_of_callee = {node: location for location, nodes in callees.items() for node in nodes}
    endpoints = Endpoints(routing, location_of_callee, lambda location: location.zone)
    for origin, nodes in sorted(callers.items()):
        callers_by_routing: dict[Routing, set[str]] = defaultdict(set)
        for node in nodes:
            callers_by_routing[endpoints.routing_from(node, origin)].add(node)
        for actual_routing, caller_nodes in callers_by_routing.items():
            destinations = sorted(callees) if actual_routing is Routing.ANY else [origin]
            for destination in destinations:
                # If callers and callees have one node in all, every caller is on the replica's host.
                is_same_host = actual_routing is Routing.NODE or len(caller_nodes | callees[destination]) == 1
                check = DependencyCheck(edge, "met", SAME_HOST_COST, origin, destination)
                if not is_same_host:
                    result, cost = costs.compare_with_limit(origin, destination, edge.max_network_cost)
                    verdict = "met" if result == "satisfied" else result
                    check = DependencyCheck(edge, verdict, cost, origin, destination)
                worst = max(worst, check, key=_severity)
    return worst


def _severity(check: DependencyCheck) -> tuple[int, int]:
    """Sort key: verdicts from idle to violated, and then the excess over maxNetworkCost."""
    return ("idle", "met", "unknown", "violated").index(check.verdict), check.cost - check.edge.max_network_cost


def build_status(
    group: AppGroup, state: GroupState, now: float, *, extra_conditions: Sequence[Condition] = ()
) -> AppGroupStatus:
    """The status to write at ``now``, unix seconds; equal to the group's current status if nothing changed.

    ``extra_conditions`` are `consent_condition` and the scheduler's.
    """
    before, generation = group.status, group.metadata.generation
    rank_by_position = {position: rank for rank, position in enumerate(state.order.sequence, start=1)}
    ordered_workloads = [OrderedWorkload(w, rank_by_position[i]) for i, w in enumerate(state.graph.workloads)]
    # Upstream's plugin finds a workload in this list by binary search on the selector.
    ordered_workloads.sort(key=lambda entry: entry.workload.selector)
    is_unchanged = (before.topology_order or []) == ordered_workloads and before.observed_generation == generation
    calculated_at = before.topology_calculation_time if is_unchanged else None
    return AppGroupStatus(
        running_workloads=state.running_count,
        schedule_start_time=before.schedule_start_time or state.started_at,
        topology_calculation_time=calculated_at or format_time(now),
        topology_order=ordered_workloads,
        observed_generation=generation,
        conditions=merge_conditions(before.conditions, [*_conditions_of(group, state), *extra_conditions], now),
    )


def consent_command(namespace: str, group_namespace: str) -> str:
    """The command by which a namespace consents to groups of ``group_namespace``."""
    return format_command(f"kubectl label namespace {{}} {CONSENT_LABEL}={{}}", namespace, group_namespace)


def consent_condition(group: AppGroup, without_consent: Sequence[str]) -> Condition | None:
    """The condition Admitted: whether all other namespaces that a group names consent to it; ``without_consent`` are those that do not.

    None if the group names none and never had the condition.
    """
    group_namespace, generation = group.metadata.namespace, group.metadata.generation
    other_namespaces = {w.workload.namespace for w in group.spec.workloads or ()} - {"", group_namespace}
    if without_consent:
        message = (
            f"pods of {join_first(without_consent, MAX_SHOWN)} are not the group's: these namespaces do not consent to groups of "
            f"{group_namespace}; their owners can consent, for example with: {consent_command(without_consent[0], group_namespace)}"
        )
        return make_condition(ADMITTED, holds=False, reason="NoConsent", message=message, generation=generation)
    if not other_namespaces and find_condition(group.status.conditions, ADMITTED) is None:
        return None
    message = "all namespaces that its workloads name consent"
    return make_condition(ADMITTED, holds=True, reason="Consented", message=message, generation=generation)


def _conditions_of(group: AppGroup, state: GroupState) -> list[Condition]:
    states = {
        COMPLETE: _complete_state(group, state),
        COSTS_MET: _costs_met_state(state),
        SPEC_VALID: _spec_valid_state(group, state),
    }
    return make_conditions(states, group.metadata.generation)


def _complete_state(group: AppGroup, state: GroupState) -> ConditionState:
    wanted_count = group.spec.num_members
    is_complete = state.running_count >= wanted_count
    reason = "AllRunning" if is_complete else "PodsMissing"
    return ConditionState(reason, f"{state.running_count} of {wanted_count} pods run", holds=is_complete)


def _costs_met_state(state: GroupState) -> ConditionState:
    counts = Counter(check.verdict for check in state.checks)
    placed_count = len(state.checks) - counts["idle"]
    if not placed_count:
        message = f"{len(state.checks)} dependencies, none with a placed caller and a placed callee"
        return ConditionState("NothingPlaced", message, holds=None)
    summary = f"{counts['met']} of {placed_count} placed dependencies within their maxNetworkCost"
    in_spec_order = sorted(state.checks, key=lambda check: (check.edge.caller, check.edge.callee))
    worst_first = sorted(in_spec_order, key=_severity, reverse=True)
    unmet = [check for check in worst_first if check.verdict in {"violated", "unknown"}]
    if not unmet:
        return ConditionState("AllWithin", summary, holds=True)
    worst_checks = join_first([_describe_check(check, state.graph) for check in unmet], MAX_SHOWN, "; ")
    message = f"{summary}; worst: {worst_checks}"
    if counts["violated"]:
        return ConditionState("CostsExceeded", message, holds=False)
    return ConditionState("CostsUnknown", message, holds=None)


def _describe_check(check: DependencyCheck, graph: DependencyGraph) -> str:
    names = graph.selectors
    arrow = f"{names[check.edge.caller]} to {names[check.edge.callee]}"
    path = f"{_format_location(check.origin)} to {_format_location(check.destination)}"
    if check.verdict == "unknown":
        return f"{arrow} cost unknown ({path})"
    return f"{arrow} costs {check.cost}, at most {check.edge.max_network_cost} ({path})"


def _format_location(location: Location) -> str:
    return location.zone or location.region or "a node without zone"


def _spec_valid_state(group: AppGroup, state: GroupState) -> ConditionState:
    if faults := state.spec_faults:
        message = join_first([fault.message for fault in faults], MAX_SHOWN, "; ")
        return ConditionState(faults[0].reason, message, holds=False)
    algorithm = group.spec.topology_sorting_algorithm
    return ConditionState("Valid", f"{len(state.graph.workloads)} workloads ordered by {algorithm}", holds=True)


def spec_faults_of(group: AppGroup, graph: DependencyGraph, order: WorkloadOrder) -> list[Fault]:
    """Faults of a group's spec: of its graph, of its order, and an unknown algorithm."""
    faults = list(graph.faults)
    if order.cycle:
        path = " -> ".join(graph.selectors[i] for i in order.cycle)
        faults.append(Fault("Cycle", f"dependencies form a cycle ({path}), so their order is arbitrary"))
    algorithm = group.spec.topology_sorting_algorithm
    if algorithm not in ALGORITHMS:
        choices = ", ".join(ALGORITHMS)
        message = f"unknown algorithm {algorithm!r}, so {FALLBACK_ALGORITHM} is used; choose one of {choices}"
        faults.append(Fault("UnknownAlgorithm", message))
    return faults
