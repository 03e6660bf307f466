"""Simulates days of the descheduler on the real kube-scheduler, and counts evictions and what they gain.

Run by hand (minutes): ``python tests/bench/descheduler_day.py --seeds 1 2 3 --json``. Nodes have no kubelet, and a bound pod counts as
running. A round is a minute of the day, decided by the code of the live loop; an evicted pod is deleted, created again, and scheduled.
Every workload has its own daily usage, and some surge for three hours. Requests are twice the mean usage, or half of it. Some workloads
cannot be helped: they are restricted to a node, or overutilize any node.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.descheduler.evaluation import INEFFECTIVE_OUTCOMES, EvaluatedMove
from kubekit.client import MERGE_PATCH, Client
from kubekit.reflector import Reflector
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Object, Resource
from lab.controlplane import ControlPlane
from lab.scheduler_config import build_scheduler_config
from netperf.contract import HOT_TAINT, REGION_LABEL, ZONE_LABEL
from tests.bench.decision_quality import gather_in_batches
from tests.bench.figures import Figures as BenchFigures
from tests.bench.figures import figure
from tests.support.descheduler_builders import (
    DeschedulerConfig,
    History,
    Node,
    Pod,
    PodReader,
    ReasonDurations,
    ResolvedConfig,
    UsageView,
    World,
    add_moves,
    decide,
    format_time,
    nodes_to_taint,
)

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
NODE_COUNT, ZONES, CORES, GIB = 30, 3, 8, 32
WORKLOADS, LOAD = 45, 0.36
SURGE, SURGE_S, SURGING = 2.5, 3 * 3600.0, 0.6
BEGIN_S, DAY_S, ROUND_S = 1_800_000_000.0, 86_400.0, 60.0
ROUNDS_S = [ROUND_S * i for i in range(int(DAY_S / ROUND_S))]
"""Times of all rounds, seconds of the day."""
HIGH_PERCENT = 70.0
POLICY = {"lowThresholds": {"cpu": 55, "memory": 55}, "highThresholds": {"cpu": HIGH_PERCENT, "memory": HIGH_PERCENT}}
_GI = 1 << 30


class Workload(msgspec.Struct, frozen=True):
    """A ReplicaSet with the mean usage of a replica, and a factor for each replica.

    Times are seconds of the day: ``phase_s`` is the begin of its daily curve, and ``surge_s`` that of a surge, or negative.
    """

    name: str
    cores: float
    gib: float
    factors: tuple[float, ...]
    phase_s: float = 0.0
    surge_s: float = -1.0
    helpable: bool = True
    node: str = ""

    def usage(self, slot: int, at_s: float) -> dict[str, float]:
        """Millicores and bytes that a replica uses at a second of the day."""
        if not self.helpable:
            return {"cpu": 1000 * self.cores, "memory": _GI * self.gib}
        daily = 1 + 0.25 * math.sin(2 * math.pi * (at_s - self.phase_s) / DAY_S)
        surges = 0 <= self.surge_s <= at_s < self.surge_s + SURGE_S
        cores = self.cores * self.factors[slot] * daily * (SURGE if surges else 1.0)
        return {"cpu": 1000 * cores, "memory": _GI * self.gib}


def random_workloads(rng: random.Random) -> list[Workload]:
    """Workloads with a mean usage of 36 % of all cores, two restricted to a node each, and one too large for any."""
    workloads = []
    for i in range(WORKLOADS):
        replicas = rng.randint(2, 6)
        workloads.append(
            Workload(
                f"web{i:02d}",
                rng.lognormvariate(0, 0.4),
                rng.uniform(0.3, 1.5),
                tuple(rng.lognormvariate(0, 0.3) for _ in range(replicas)),
                rng.uniform(0, DAY_S),
                rng.uniform(0, DAY_S - SURGE_S) if rng.random() < SURGING else -1.0,
            )
        )
    total = sum(w.cores * sum(w.factors) for w in workloads)
    scale = LOAD * NODE_COUNT * CORES / total
    workloads = [msgspec.structs.replace(w, cores=w.cores * scale) for w in workloads]
    bound = [Workload(f"bound{i}", 2.9, 1.0, (1.0, 1.0), helpable=False, node=f"n{i:02d}") for i in range(2)]
    return [*workloads, *bound, Workload("large", 5.8, 2.0, (1.0, 1.0), helpable=False)]


class Day:
    """A cluster with a seed and a ratio of requests to usage."""

    def __init__(self, client: Client, seed: int, ratio: float) -> None:
        self._client, self._ratio = client, ratio
        self.seed, self.requests = seed, "twice" if ratio > 1 else "half"
        self.namespace = f"day-{seed}-{self.requests}"
        self.workloads = random_workloads(random.Random(seed))
        self._pods: Reflector[Pod] = Reflector(client, PODS, Pod, namespace=self.namespace)
        self._reader = PodReader()
        self._slots: dict[str, tuple[Workload, int, dict[str, Any], str]] = {}
        self._names = iter(range(10**9))

    @asynccontextmanager
    async def running_pods(self) -> AsyncIterator[None]:
        """Create all pods, and wait until they are bound, during the block."""
        await self._client.create(NAMESPACES, {"metadata": {"name": self.namespace}}, Object)
        await self._client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, Object, namespace=self.namespace)
        store = asyncio.create_task(self._pods.run())
        try:
            await self._pods.synced.wait()
            for workload in self.workloads:
                await self._client.create(REPLICA_SETS, self._replica_set(workload), Object, namespace=self.namespace)
            creations = [
                self._create_pod(w, slot, BEGIN_S - 3600) for w in self.workloads for slot in range(len(w.factors))
            ]
            await gather_in_batches(creations)
            await self._wait_until_bound(list(self._slots))
            yield
        finally:
            store.cancel()
            await asyncio.gather(store, return_exceptions=True)
            body = {"gracePeriodSeconds": 0}
            await self._client.request("DELETE", PODS.path(self.namespace), body=body, timeout_s=60)

    def _replica_set(self, workload: Workload) -> dict[str, Any]:
        """The ReplicaSet by whose selector the scheduler spreads replicas; no controller runs."""
        labels = {"app": workload.name}
        return {
            "metadata": {"name": workload.name},
            "spec": {
                "replicas": len(workload.factors),
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": self._spec(workload)},
            },
        }

    def _spec(self, workload: Workload) -> dict[str, Any]:
        ratio = self._ratio if workload.helpable else 0.2
        requests = {
            "cpu": f"{max(int(1000 * workload.cores * ratio), 1)}m",
            "memory": f"{max(int(1024 * workload.gib * ratio), 1)}Mi",
        }
        return {
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
            **({"nodeSelector": {"kubernetes.io/hostname": workload.node}} if workload.node else {}),
        }

    async def _create_pod(self, workload: Workload, slot: int, now: float) -> str:
        name = f"{workload.name}-{next(self._names)}"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": workload.name, "uid": workload.name}
        body: dict[str, Any] = {
            "metadata": {
                "name": name,
                "labels": {"app": workload.name},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": self._spec(workload),
        }
        created = await self._client.create(PODS, body, Pod, namespace=self.namespace)
        body["metadata"] |= {
            "namespace": self.namespace,
            "uid": created.metadata.uid,
            "creationTimestamp": format_time(now),
        }
        self._slots[name] = workload, slot, body, ""
        return name

    async def _wait_until_bound(self, names: list[str]) -> None:
        evaluated_moves = time.monotonic() + 60
        for name in names:
            while True:
                pod = self._pods.get(f"{self.namespace}/{name}")
                if pod is not None and pod.spec.node_name:
                    self._slots[name] = (*self._slots[name][:3], pod.spec.node_name)
                    break
                if time.monotonic() > evaluated_moves:
                    return  # the pod stays pending
                await asyncio.sleep(0.005)

    async def evict(self, name: str, now: float) -> tuple[str, int]:
        """Delete a pod, and create another that is bound while the first is terminating; returns workload and replica."""
        workload, slot, *_ = self._slots[name]
        await self._client.delete(PODS, name, namespace=self.namespace, grace_period_s=30)
        await self._wait_until_bound([await self._create_pod(workload, slot, now)])
        await self._client.delete(PODS, name, namespace=self.namespace, grace_period_s=0)
        del self._slots[name]
        return workload.name, slot

    async def taint(self, world: World, names: frozenset[str]) -> None:
        """Set the taint on these nodes only, as the controller does before it evicts."""
        for name, host in list(world.nodes.items()):
            if bool(host.prefer_no_schedule_taints) != (name in names):
                taints = [{"key": HOT_TAINT, "effect": "PreferNoSchedule"}] if name in names else None
                body = {"spec": {"taints": taints}}
                world.on_node_change(name, await self._client.patch(NODES, name, body, Node, patch_type=MERGE_PATCH))

    def bound_pods(self) -> Iterator[tuple[str, Workload, int, str]]:
        """Name, workload, replica and node of every bound pod."""
        for name, (workload, slot, _, node) in self._slots.items():
            if node:
                yield name, workload, slot, node

    def usage(self, at_s: float) -> UsageView:
        """Usage at a second of the day."""
        nodes: dict[str, dict[str, float]] = defaultdict(lambda: {"cpu": 200.0, "memory": 0.5 * _GI})
        pods = {}
        for name, workload, slot, node in self.bound_pods():
            used = pods[f"{self.namespace}/{name}"] = workload.usage(slot, at_s)
            for resource, amount in used.items():
                nodes[node][resource] += amount
        return UsageView({f"n{i:02d}": dict(nodes[f"n{i:02d}"]) for i in range(NODE_COUNT)}, pods)

    def update_world(self, world: World) -> None:
        """Update the pods of the rules' world."""
        for name, (workload, slot, body, node) in list(self._slots.items()):
            pod = None if node else self._pods.get(f"{self.namespace}/{name}")
            if pod is not None and pod.spec.node_name:  # it was pending
                self._slots[name] = workload, slot, body, pod.spec.node_name
        known = {f"{self.namespace}/{name}" for name in self._slots}
        for key in [key for key in world.pods if key not in known]:
            world.on_pod_change(key, None)
        for name, (_, _, body, node) in self._slots.items():
            key = f"{self.namespace}/{name}"
            before = world.pods.get(key)
            if before is None or before.node != node:
                status: dict[str, Any] = {"phase": "Pending"}
                if node:
                    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                bound_body = {**body, "spec": {**body["spec"], "nodeName": node}, "status": status}
                world.on_pod_change(key, self._reader.read(msgspec.convert(bound_body, Pod)))


class DayFigures(msgspec.Struct, frozen=True):
    """Figures of a day; hours are with the descheduler and without.

    Attributes:
        overutilized_node_hours: of nodes with pods that could be moved.
        excess_core_hours: cores above the threshold that movable pods use.
    """

    seed: int
    requests: str
    overutilized_node_hours: tuple[float, float]
    excess_core_hours: tuple[float, float]
    evictions: int
    most_of_a_replica_that_can_be_helped: int
    most_of_a_workload_that_cannot: int
    outcomes: dict[str, int]
    decide_ms_p50: float


LIMITS = {"cpu": HIGH_PERCENT / 100 * CORES * 1000, "memory": HIGH_PERCENT / 100 * GIB * _GI}


class Overutilization(NamedTuple):
    """Number of overutilized nodes with movable pods, and cores above the threshold that movable pods use."""

    nodes: int
    cores: float


def overutilization_of(day: Day, at_s: float) -> tuple[Overutilization, UsageView]:
    """Overutilization and usage at a second of the day."""
    view = day.usage(at_s)
    fixed = Counter[str]()
    for name, workload, _, node in day.bound_pods():
        if not workload.helpable:
            fixed[node] += int(view.by_pod[f"{day.namespace}/{name}"]["cpu"])
    overutilized = [name for name, used in view.by_node.items() if any(used[r] > limit for r, limit in LIMITS.items())]
    movable = {node for _, workload, _, node in day.bound_pods() if workload.helpable}
    nodes = sum(name in movable for name in overutilized)
    over = sum(max(used["cpu"] - max(LIMITS["cpu"], fixed[name]), 0.0) for name, used in view.by_node.items())
    return Overutilization(nodes, over / 1000), view


async def run_day(day: Day, nodes: list[Node], settings: ResolvedConfig) -> DayFigures:
    """Simulate a day."""
    async with day.running_pods():
        without = [overutilization_of(day, at_s)[0] for at_s in ROUNDS_S]
        world = World()
        for node in nodes:
            world.on_node_change(node.metadata.name, node)
        history, state = History(), ReasonDurations()
        with_descheduler, moves, durations_s = list[Overutilization](), Counter[str](), list[float]()
        replicas = Counter[tuple[str, int]]()
        evaluated_moves = list[EvaluatedMove]()
        for at_s in ROUNDS_S:
            now = BEGIN_S + at_s
            overutilization, view = overutilization_of(day, at_s)
            with_descheduler.append(overutilization)
            day.update_world(world)
            snapshot = world.snapshot(view)
            began = time.perf_counter()
            decision = decide(snapshot, history, state, settings, now).decision
            durations_s.append(time.perf_counter() - began)
            evaluated_moves += decision.evaluated_moves
            state, history = decision.durations, add_moves(decision.history, decision.pending_moves)
            await day.taint(world, nodes_to_taint(decision.plan.nodes, state.detectors, world.nodes))
            for move in decision.plan.moves:
                name = move.pod.partition("/")[2]
                moves[name.rpartition("-")[0]] += 1
                replicas[await day.evict(name, now)] += 1
        await day.taint(world, frozenset())  # the next day has the same nodes
    helpable = {w.name for w in day.workloads if w.helpable}
    hours = ROUND_S / 3600

    def sum_hours(field: str) -> tuple[float, float]:
        """Hours with the descheduler and without."""
        of_day, of_none = (
            round(hours * sum(getattr(figures, field) for figures in rounds), 2)
            for rounds in (with_descheduler, without)
        )
        return of_day, of_none

    return DayFigures(
        seed=day.seed,
        requests=day.requests,
        overutilized_node_hours=sum_hours("nodes"),
        excess_core_hours=sum_hours("cores"),
        evictions=moves.total(),
        most_of_a_replica_that_can_be_helped=max((n for (w, _), n in replicas.items() if w in helpable), default=0),
        most_of_a_workload_that_cannot=max((n for w, n in moves.items() if w not in helpable), default=0),
        outcomes=dict(sorted(Counter(end.outcome for end in evaluated_moves).items())),
        decide_ms_p50=round(1000 * sorted(durations_s)[len(durations_s) // 2], 2),
    )


async def make_nodes(client: Client) -> list[Node]:
    """Create equal nodes in three zones."""
    nodes = []
    for i in range(NODE_COUNT):
        name = f"n{i:02d}"
        labels = {ZONE_LABEL: f"z{i % ZONES}", REGION_LABEL: "r", "kubernetes.io/hostname": name}
        amounts = {"cpu": str(CORES), "memory": f"{GIB}Gi", "pods": "110"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        await client.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status}, Node)
        # Admission taints every new node, and no node controller runs here.
        nodes.append(await client.patch(NODES, name, {"spec": {"taints": None}}, Node, patch_type=MERGE_PATCH))
    return nodes


async def run_days(seeds: list[int]) -> list[DayFigures]:
    """Simulate all days, one after the other, on one control plane."""
    settings = msgspec.convert({"policy": POLICY}, DeschedulerConfig).resolve()
    days = []
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            start = ControlPlane.start("day", state_dir=Path(folder) / "state", components=())
            plane = await stack.enter_async_context(start)
            client = await stack.enter_async_context(Client(plane.client_config))
            nodes = await make_nodes(client)
            config = build_scheduler_config() | {"clientConnection": {"qps": 500, "burst": 1000}}
            await plane.start_scheduler(config)
            for seed in seeds:
                for ratio in (2.0, 0.5):
                    day = Day(client, seed, ratio)
                    figures = await run_day(day, nodes, settings)
                    print(msgspec.json.encode(figures).decode(), file=sys.stderr, flush=True)
                    days.append(figures)
    return days


def check_budgets(days: list[DayFigures]) -> BenchFigures:
    """Figures of all days with their budgets."""
    ineffective = sum(f.outcomes.get(o, 0) for f in days for o in INEFFECTIVE_OUTCOMES)
    most_unhelpable = max(f.most_of_a_workload_that_cannot for f in days)
    most_helped = max(f.most_of_a_replica_that_can_be_helped for f in days)
    cooler, cores = (
        _reduction_percent(getattr(f, field) for f in days)
        for field in ("overutilized_node_hours", "excess_core_hours")
    )
    return {
        "evictions a day of a workload that cannot be helped": figure(most_unhelpable, "evictions", 6),
        "evictions a day of a replica that can": figure(most_helped, "evictions", 2),
        "overutilized node-hours less than without": figure(cooler, "%", 80, at_least=True),
        "cores above the threshold, hours less than without": figure(cores, "%"),
        "moves that helped": figure(
            100 * _share(days, "helped"), "%", 95, f"without benefit: {ineffective}", at_least=True
        ),
    }


def _reduction_percent(pairs: Iterable[tuple[float, float]]) -> float:
    """Reduction of the first sum compared with the second, in percent."""
    with_us, without = (sum(column) for column in zip(*pairs, strict=True))
    return 100 * (1 - with_us / without) if without else 0.0


def _share(days: list[DayFigures], outcome: str) -> float:
    total = sum(sum(f.outcomes.values()) for f in days)
    return sum(f.outcomes.get(outcome, 0) for f in days) / total if total else 1.0


def main() -> int:
    """Print days and budgets; the exit code is 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    options = parser.parse_args()
    days = asyncio.run(run_days(options.seeds))
    answer = {"days": [msgspec.to_builtins(f) for f in days], "verdicts": check_budgets(days)}
    print(json.dumps(answer, indent=None if options.json else 2))
    return 0 if all(v["ok"] is not False for v in check_budgets(days).values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
