"""Computes the status of an AppGroup: order, running pods, and whether dependencies keep their maxNetworkCost.

A dependency is met (NetworkOverhead's rule, docs/contracts, section 4) if each caller is within maxNetworkCost of each replica that may
answer it; in upstream parity, of every replica.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from controller.appgroups.order import ALGORITHMS, FALLBACK, Order, order
from controller.cluster.costs import NO_LOCATION, SAME_HOST_COST, CostTable, Location
from controller.cluster.graph import Edge, Graph, build_graph
from controller.cluster.membership import CONSENT_LABEL, Membership
from controller.cluster.pods import Pod
from controller.cluster.resources import AppGroup, AppGroupStatus, OrderedWorkload
from controller.cluster.services import Endpoints, Routing, ServiceIndex
from kubekit.conditions import find_condition, make_condition, merge_conditions
from kubekit.text import format_command, join_first
from kubekit.wire import Condition, format_time, parse_time

COMPLETE, COSTS_MET, SPEC_VALID, ADMITTED = "Complete", "CostsMet", "SpecValid", "Admitted"
ROUTED_NEAR, BALANCED = "RoutedNear", "Balanced"
"""Computed by `controller.scheduler.advice`."""
MAX_SHOWN = 3
"""Number of items that a condition's message lists."""

Hosts = Mapping[Location, frozenset[str]]
"""The nodes of a workload's placed pods, by location."""
DependencyState = Literal["met", "violated", "unknown", "idle"]
"""``unknown``: no cost between its locations is known; ``idle``: no pod is placed at one of its ends."""


class DependencyCheck(msgspec.Struct, frozen=True, gc=False):
    """Verdict on one dependency: that of its worst pair of locations, with the cost from origin to destination."""

    edge: Edge
    verdict: DependencyState
    cost: int = 0
    origin: Location = NO_LOCATION
    destination: Location = NO_LOCATION


class GroupFacts(msgspec.Struct, frozen=True):
    """The state of a group.

    Attributes:
        graph: its dependencies.
        order: of its workloads.
        members: per workload of the graph, node -> number of placed pods.
        checks: one entry per edge of the graph.
        running: number of pods in phase Running.
        started: RFC 3339 time at which the first of its pods was created, None without pods.
    """

    graph: Graph
    order: Order
    members: tuple[Mapping[str, int], ...]
    checks: tuple[DependencyCheck, ...]
    running: int
    started: str | None


def gather_facts(
    group: AppGroup,
    pods: Iterable[Pod],
    locations: Mapping[str, Location],
    costs: CostTable,
    membership: Membership,
    *,
    services: ServiceIndex | None = None,
) -> GroupFacts:
    """Compute the state of a group.

    Args:
        group: the AppGroup.
        pods: all pods with the AppGroup label.
        locations: node name -> location; pods on other, deleted nodes do not count.
        costs: the costs that dependencies are checked against.
        membership: which pods belong to the group.
        services: routing of calls to replicas; None if every replica may answer, as in upstream parity.
    """
    graph = build_graph(group.spec)
    positions = {selector: i for i, selector in enumerate(graph.selectors)}
    members: list[Counter[str]] = [Counter() for _ in graph.workloads]
    group_pods = [pod for pod in pods if membership.group_of(pod.metadata.namespace, pod.group) == group.metadata.key]
    active = [pod for pod in group_pods if pod.is_active]
    placed = [pod for pod in active if pod.workload in positions and pod.spec.node_name in locations]
    for pod in placed:
        members[positions[pod.workload]][pod.spec.node_name] += 1
    routings = services.routings_of(placed) if services is not None else {}
    hosts = [_hosts_by_location(nodes, locations) for nodes in members]
    routing_to = [routings.get(selector, Routing.ANY) for selector in graph.selectors]
    checks = tuple(
        _check_dependency(edge, hosts[edge.dependent], hosts[edge.dependency], costs, routing_to[edge.dependency])
        for edge in graph.edges
    )
    ordered = order(graph.children, group.spec.topology_sorting_algorithm)
    started = min((c for pod in group_pods if (c := pod.metadata.creation_timestamp)), key=parse_time, default=None)
    running = sum(pod.status.phase == "Running" for pod in active)
    return GroupFacts(graph, ordered, tuple(members), checks, running, started)


def _hosts_by_location(nodes: Iterable[str], locations: Mapping[str, Location]) -> Hosts:
    hosts: dict[Location, set[str]] = defaultdict(set)
    for node in nodes:
        hosts[locations[node]].add(node)
    return {location: frozenset(names) for location, names in hosts.items()}


def _check_dependency(
    edge: Edge, callers: Hosts, callees: Hosts, costs: CostTable, routing: Routing
) -> DependencyCheck:
    """Check one dependency by its worst pair of a caller and a replica that may answer (see `_severity`)."""
    worst = DependencyCheck(edge, "idle")
    location_of_callee = {node: location for location, nodes in callees.items() for node in nodes}
    endpoints = Endpoints(routing, location_of_callee, lambda location: location.zone)
    for origin, nodes in sorted(callers.items()):
        callers_by_routing: dict[Routing, set[str]] = defaultdict(set)
        for node in nodes:
            callers_by_routing[endpoints.routing_from(node, origin)].add(node)
        for actual_routing, caller_nodes in callers_by_routing.items():
            for destination in sorted(callees) if actual_routing is Routing.ANY else (origin,):
                is_same_host = actual_routing is Routing.NODE or len(caller_nodes | callees[destination]) == 1
                check = DependencyCheck(edge, "met", SAME_HOST_COST, origin, destination)
                if not is_same_host:
                    limit_check, cost = costs.check_limit(origin, destination, edge.max_network_cost)
                    verdict = "met" if limit_check == "satisfied" else limit_check
                    check = DependencyCheck(edge, verdict, cost, origin, destination)
                worst = max(worst, check, key=_severity)
    return worst


def _severity(check: DependencyCheck) -> tuple[int, int]:
    """Order by verdict, idle being the least severe, and then by the excess over maxNetworkCost."""
    return ("idle", "met", "unknown", "violated").index(check.verdict), check.cost - check.edge.max_network_cost


def plan_status(
    group: AppGroup, facts: GroupFacts, now: float, *, extra_conditions: Sequence[Condition] = ()
) -> AppGroupStatus:
    """The status to write; equal to the current one if nothing changed.

    Args:
        group: the AppGroup, whose status is the old one.
        facts: from `gather_facts`.
        now: wall clock, seconds since 1970.
        extra_conditions: `admission_condition`, and the scheduler's.
    """
    before, generation = group.status, group.metadata.generation
    rank = {position: number for number, position in enumerate(facts.order.sequence, start=1)}
    ordered_workloads = [OrderedWorkload(workload, rank[i]) for i, workload in enumerate(facts.graph.workloads)]
    # Upstream's plugin finds a workload in this list by binary search on the selector.
    ordered_workloads.sort(key=lambda entry: entry.workload.selector)
    calculated_at = before.topology_calculation_time
    if (before.topology_order or []) != ordered_workloads or before.observed_generation != generation:
        calculated_at = None
    return AppGroupStatus(
        running_workloads=facts.running,
        schedule_start_time=before.schedule_start_time or facts.started,
        topology_calculation_time=calculated_at or format_time(now),
        topology_order=ordered_workloads,
        observed_generation=generation,
        conditions=merge_conditions(before.conditions, [*conditions_of(group, facts), *extra_conditions], now),
    )


def consent_command(namespace: str, group_namespace: str) -> str:
    """The command by which a namespace consents to groups of ``group_namespace``."""
    return format_command(f"kubectl label namespace {{}} {CONSENT_LABEL}={{}}", namespace, group_namespace)


def admission_condition(group: AppGroup, refused_by: Sequence[str]) -> Condition | None:
    """The condition Admitted: whether other namespaces consent to the group; None if it names none and has no such condition.

    Args:
        group: the AppGroup.
        refused_by: the namespaces that it names and that do not consent.
    """
    group_namespace, generation = group.metadata.namespace, group.metadata.generation
    named = {w.workload.namespace for w in group.spec.workloads or ()} - {"", group_namespace}
    if refused_by:
        message = (
            f"pods of {join_first(refused_by, MAX_SHOWN)} are not the group's: these namespaces do not consent to groups of "
            f"{group_namespace}; their owners can consent, for example: {consent_command(refused_by[0], group_namespace)}"
        )
        return make_condition(ADMITTED, holds=False, reason="NoConsent", message=message, generation=generation)
    if not named and find_condition(group.status.conditions, ADMITTED) is None:
        return None
    message = "every namespace that its workloads name consents"
    return make_condition(ADMITTED, holds=True, reason="Consented", message=message, generation=generation)


_Statement = tuple[bool | None, str, str]
"""Status of a condition (None: Unknown), its reason and its message."""


def conditions_of(group: AppGroup, facts: GroupFacts) -> list[Condition]:
    """Complete, CostsMet and SpecValid, without times."""
    statements: dict[str, _Statement] = {
        COMPLETE: _complete(group, facts),
        COSTS_MET: _costs_met(facts),
        SPEC_VALID: _spec_valid(group, facts),
    }
    return [
        make_condition(type_, holds=holds, reason=reason, message=message, generation=group.metadata.generation)
        for type_, (holds, reason, message) in statements.items()
    ]


def _complete(group: AppGroup, facts: GroupFacts) -> _Statement:
    wanted = group.spec.num_members
    holds = facts.running >= wanted
    return holds, "AllRunning" if holds else "PodsMissing", f"{facts.running} of {wanted} pods run"


def _costs_met(facts: GroupFacts) -> _Statement:
    counts = Counter(check.verdict for check in facts.checks)
    placed = len(facts.checks) - counts["idle"]
    if not placed:
        return None, "NothingPlaced", f"{len(facts.checks)} dependencies, none with pods placed at both ends"
    head = f"{counts['met']} of {placed} placed dependencies within their maxNetworkCost"
    in_spec_order = sorted(facts.checks, key=lambda check: (check.edge.dependent, check.edge.dependency))
    worst_first = sorted(in_spec_order, key=_severity, reverse=True)
    unmet = [check for check in worst_first if check.verdict in {"violated", "unknown"}]
    if not unmet:
        return True, "AllWithin", head
    worst = join_first([_describe(check, facts.graph) for check in unmet], MAX_SHOWN, "; ")
    holds, reason = (False, "CostsExceeded") if counts["violated"] else (None, "CostsUnknown")
    return holds, reason, f"{head}; worst: {worst}"


def _describe(check: DependencyCheck, graph: Graph) -> str:
    names = graph.selectors
    arrow = f"{names[check.edge.dependent]} to {names[check.edge.dependency]}"
    path = f"{_format_location(check.origin)} to {_format_location(check.destination)}"
    if check.verdict == "unknown":
        return f"{arrow} cost unknown ({path})"
    return f"{arrow} costs {check.cost}, at most {check.edge.max_network_cost} ({path})"


def _format_location(location: Location) -> str:
    return location.zone or location.region or "a node without zone"


def _spec_valid(group: AppGroup, facts: GroupFacts) -> _Statement:
    problems = spec_problems(group, facts.graph, facts.order)
    if not problems:
        algorithm = group.spec.topology_sorting_algorithm
        return True, "Valid", f"{len(facts.graph.workloads)} workloads ordered by {algorithm}"
    return False, problems[0][0], join_first([detail for _, detail in problems], MAX_SHOWN, "; ")


def spec_problems(group: AppGroup, graph: Graph, ordered: Order) -> list[tuple[str, str]]:
    """Errors in a spec, each as a reason and a message."""
    problems: list[tuple[str, str]] = [(fault.problem, fault.detail) for fault in graph.faults]
    if ordered.cycle:
        path = " -> ".join(graph.selectors[i] for i in ordered.cycle)
        problems.append(("Cycle", f"dependencies form a cycle ({path}), so their order is arbitrary"))
    algorithm = group.spec.topology_sorting_algorithm
    if algorithm not in ALGORITHMS:
        message = f"algorithm {algorithm!r} is not known, {FALLBACK} is used; write one of {', '.join(ALGORITHMS)}"
        problems.append(("UnknownAlgorithm", message))
    return problems
