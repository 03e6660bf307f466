"""Compares placements of whole groups by the real kube-scheduler with the brute-force optimum.

Run by hand (minutes): ``python tests/bench/decision_quality.py --cases 200``. Each random group has 5 to 9 workloads
with 1 to 3 replicas, and its own 3 to 6 zones of one node; a node selector ties its pods to them. All groups are scheduled at once by
the default scheduler, by upstream's rule in each of the six orders, and by ours in both modes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.appgroups.order import ALGORITHMS
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import APPGROUPS
from controller.cluster.pods import GATE, PlacementMode, Pod
from controller.scheduler.config import GatesConfig, SchedulerConfig
from controller.scheduler.placement.planner import plan_group
from kubekit.client import Client
from kubekit.wire import PODS, SERVICE_ACCOUNTS, Object
from lab.controlplane import ControlPlane
from netperf.contract import REGION_LABEL
from netperf.histogram import nearest_rank
from tests.bench.control_plane import bench_control_plane, create_ready_node, delete_pods_and_groups, gather_limited
from tests.integration.scheduler.harness import PROFILE, PodNamespace
from tests.support.scheduling import run_gating_controller, serve_extender
from tests.unit.controller import groups

NAMESPACE = "quality"
QUIET_S = 12.0  # Placement ends after this time without a binding,
TIMEOUT_S = 600.0  # and after this time in any case.
ANNOTATIONS = {"objective": "parity", "spread": "none"}  # Plans minimize what is compared: upstream's sum of costs.
VIOLATION_COST = 10**6
"""Cost of a violation in the search of the optimum, so that fewer violations are always cheaper."""


class Mode(msgspec.Struct, frozen=True):
    name: str
    algorithm: str = "KahnSort"
    config: SchedulerConfig | None = None  # None: the default scheduler alone, without extender and gates


def list_modes() -> list[Mode]:
    """The default scheduler, upstream's rule in six orders, and ours by extender and by affinity."""
    rules = NetworkOverheadArgs(namespaces=(NAMESPACE,))
    # A pod that upstream's rule finds no node for holds up the rest of its group for this long only.
    gates = GatesConfig(missing_workload_timeout_s=3.0)
    parity = SchedulerConfig(parity="upstream", network_overhead=rules, gates=gates)
    modes = [Mode("default scheduler")]
    modes += [Mode(f"upstream's rule, {algorithm}", algorithm, parity) for algorithm in ALGORITHMS]
    placements: tuple[PlacementMode, ...] = ("extender", "affinity")
    for placement in placements:
        config = SchedulerConfig(placement=placement, network_overhead=rules, gates=gates)
        modes.append(Mode(f"ours, by {placement}", "KahnSort", config))
    return modes


class Outcome(msgspec.Struct, frozen=True):
    """Results of a mode, for the groups that can be placed without a violation.

    Attributes:
        cost_ratios: cost of each placed group over the optimum.
        violating_groups: number of groups with violations.
        pending_groups: number of groups with pending pods.
        duration_s: time to place all groups, also the others.
    """

    cost_ratios: list[float]
    violating_groups: int
    pending_groups: int
    duration_s: float


def price_placement(case: groups.GroupCase, counts_by_workload: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Violations and cost of a placement, given as pods per zone of each workload."""
    violations = cost = 0
    for caller, callee, limit in case.edges:
        for caller_zone, caller_count in enumerate(counts_by_workload[caller]):
            for callee_zone, callee_count in enumerate(counts_by_workload[callee]):
                pair_count, pair_cost = caller_count * callee_count, case.cost[caller_zone][callee_zone]
                cost += pair_count * pair_cost
                violations += pair_count * (pair_cost > limit)
    return violations, cost


def find_optimum(case: groups.GroupCase, upper_bound: tuple[int, int]) -> tuple[int, int]:
    """Fewest violations, then the lowest cost, over all placements that fit.

    ``upper_bound`` has the violations and the cost of one of these placements. Callers must have lower numbers than
    their callees, so that placed workloads have all callers of the next one.
    """
    zones = range(len(case.slots))
    # By number of replicas: all ways to spread them, as pods per zone.
    spreads = [
        [
            tuple(Counter(chosen)[zone] for zone in zones)
            for chosen in itertools.combinations_with_replacement(zones, replicas)
        ]
        for replicas in range(4)
    ]
    best = upper_bound[0] * VIOLATION_COST + upper_bound[1]

    def place_next(placed: tuple[tuple[int, ...], ...], free_slots: tuple[int, ...], placed_cost: int) -> None:
        """Try all spreads of the next workload, the cheapest first."""
        nonlocal best
        if len(placed) == len(case.replicas):
            best = min(best, placed_cost)
            return
        pod_cost_by_zone = _cost_of_next_pod(case, placed)
        options = [
            (placed_cost + sum(count * cost for count, cost in zip(spread, pod_cost_by_zone, strict=True)), spread)
            for spread in spreads[case.replicas[len(placed)]]
            if all(count <= free for count, free in zip(spread, free_slots, strict=True))
        ]
        for cost, spread in sorted(options):
            if cost >= best:
                break
            remaining_slots = tuple(free - count for free, count in zip(free_slots, spread, strict=True))
            place_next((*placed, spread), remaining_slots, cost)

    place_next((), case.slots, 0)
    return divmod(best, VIOLATION_COST)


def _cost_of_next_pod(case: groups.GroupCase, placed: Sequence[Sequence[int]]) -> list[int]:
    """By zone, the cost of a pod of the next workload, which placed workloads call."""
    cost_by_zone = [0] * len(case.slots)
    edges_to_next = [(caller, limit) for caller, callee, limit in case.edges if callee == len(placed)]
    for caller, limit in edges_to_next:
        for caller_zone, count in enumerate(placed[caller]):
            for zone, cost in enumerate(case.cost[caller_zone]):
                cost_by_zone[zone] += count * (cost + VIOLATION_COST * (cost > limit))
    return cost_by_zone


@asynccontextmanager
async def start_cluster(cases: list[groups.GroupCase]) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """A control plane with the nodes and costs of all groups; each group has a region."""
    async with bench_control_plane(NAMESPACE, components=()) as (plane, client):
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, Object, namespace=NAMESPACE)
        await gather_limited([create_nodes(client, f"g{number}", case) for number, case in enumerate(cases)])
        await set_costs_of(client, cases)
        yield plane, client


async def create_nodes(client: Client, region: str, case: groups.GroupCase) -> None:
    for zone, slots in enumerate(case.slots):
        name = f"{region}-z{zone}"
        await create_ready_node(client, name, name, region, {"cpu": str(slots), "pods": "110"})


async def set_costs_of(client: Client, cases: list[groups.GroupCase]) -> None:
    costs = {
        (f"g{number}-z{origin}", f"g{number}-z{destination}"): cost
        for number, case in enumerate(cases)
        for origin, row in enumerate(case.cost)
        for destination, cost in enumerate(row)
        if origin != destination
    }
    await PodNamespace(client, NAMESPACE).set_costs(costs)


async def create_group(client: Client, mode: Mode, number: int, case: groups.GroupCase) -> None:
    group = groups.make_group(case, f"g{number}", NAMESPACE, algorithm=mode.algorithm, **ANNOTATIONS)
    await client.create(APPGROUPS, {**APPGROUPS.type_meta, **msgspec.to_builtins(group)}, Object, namespace=NAMESPACE)
    scheduler, gates = ("default-scheduler", None) if mode.config is None else (PROFILE, [{"name": GATE}])
    for workload, count in enumerate(case.replicas):
        for replica in range(count):
            await PodNamespace(client, NAMESPACE).create_pod(
                f"g{number}-w{workload}-{replica}",
                group=f"g{number}",
                workload=f"w{workload}",
                scheduler=scheduler,
                requests={"cpu": "1"},
                nodeSelector={REGION_LABEL: f"g{number}"},
                schedulingGates=gates,
            )


async def run_mode(
    plane: ControlPlane, client: Client, mode: Mode, cases: list[groups.GroupCase]
) -> dict[int, list[Pod]]:
    """Place every group; returns their pods at the end."""
    async with AsyncExitStack() as stack:
        url = None
        if mode.config is not None:
            url = await stack.enter_async_context(serve_extender(client, mode.config, namespace=NAMESPACE))
            await stack.enter_async_context(run_gating_controller(client, mode.config, namespace=NAMESPACE))
        scheduler = await plane.start_scheduler(name=f"scheduler-{time.time_ns()}", extender_url=url)
        try:
            await gather_limited([create_group(client, mode, number, case) for number, case in enumerate(cases)])
            return await wait_until_placed(client)
        finally:
            await plane.programs.stop(scheduler)


async def wait_until_placed(client: Client) -> dict[int, list[Pod]]:
    """Wait until all pods are bound, or none has been bound for a while."""
    started_s = last_bound_s = time.monotonic()
    previous_count = 0
    while True:
        pods = await client.list(PODS, Pod, namespace=NAMESPACE)
        bound_count = sum(bool(pod.spec.node_name) for pod in pods)
        now_s = time.monotonic()
        if bound_count != previous_count:
            previous_count, last_bound_s = bound_count, now_s
        if bound_count == len(pods) or now_s - last_bound_s > QUIET_S or now_s - started_s > TIMEOUT_S:
            break
        await asyncio.sleep(0.5)
    pods_by_case: dict[int, list[Pod]] = defaultdict(list)
    for pod in pods:
        pods_by_case[int(pod.group.removeprefix("g"))].append(pod)
    return pods_by_case


def compare_with_optimum(
    cases: list[groups.GroupCase], optima: list[tuple[int, int]], pods_by_case: dict[int, list[Pod]], duration_s: float
) -> Outcome:
    """Compare placements with the optima, each the numbers of violations and the cost of a case."""
    cost_ratios: list[float] = []
    violating_groups = pending_groups = 0
    for number, (case, (optimal_violations, optimal_cost)) in enumerate(zip(cases, optima, strict=True)):
        if optimal_violations:
            continue
        pods = pods_by_case.get(number, [])
        if len(pods) < sum(case.replicas) or not all(pod.spec.node_name for pod in pods):
            pending_groups += 1
            continue
        counts_by_workload = []
        for workload in range(len(case.replicas)):
            replicas_by_node = Counter(p.spec.node_name for p in pods if p.workload == f"w{workload}")
            counts_by_workload.append(tuple(replicas_by_node[f"g{number}-z{zone}"] for zone in range(len(case.slots))))
        violations, cost = price_placement(case, counts_by_workload)
        violating_groups += violations > 0
        cost_ratios.append(cost / max(optimal_cost, 1))
    return Outcome(cost_ratios, violating_groups, pending_groups, duration_s)


def format_table(cases: int, clean_cases: int, outcomes: dict[str, Outcome]) -> str:
    lines = [
        f"{cases} random groups; {clean_cases} of them can be placed without a violation, and figures are for those.",
        "",
        "| placed by | cost / optimum, median | p95 | groups with a violation | groups left with pending pods | seconds |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(format_row(name, outcome) for name, outcome in outcomes.items())])


def format_row(name: str, outcome: Outcome) -> str:
    ratios = sorted(outcome.cost_ratios) or [float("nan")]
    p95 = ratios[nearest_rank(95, len(ratios)) - 1]
    placed = f"{statistics.median(ratios):.2f} | {p95:.2f} | {outcome.violating_groups} | {outcome.pending_groups}"
    return f"| {name} | {placed} | {outcome.duration_s:.0f} |"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", help="only modes whose name contains this")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    cases, optima = [], []
    for number in range(args.cases):
        case = groups.draw_case(rng)
        plan = plan_group(groups.make_snapshot(case))
        cases.append(case)
        optima.append(find_optimum(case, (plan.violations, plan.cost)))
        print(f"\roptimum {number + 1} of {args.cases}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    outcomes: dict[str, Outcome] = {}
    async with start_cluster(cases) as (plane, client):
        for mode in list_modes():
            if args.only in mode.name:
                started_s = time.monotonic()
                pods_by_case = await run_mode(plane, client, mode, cases)
                outcome = compare_with_optimum(cases, optima, pods_by_case, time.monotonic() - started_s)
                outcomes[mode.name] = outcome
                print(format_row(mode.name, outcome), file=sys.stderr, flush=True)
                await delete_pods_and_groups(client, NAMESPACE)
    print(format_table(len(cases), sum(violations == 0 for violations, _ in optima), outcomes))


if __name__ == "__main__":
    asyncio.run(main())
