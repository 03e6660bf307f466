"""Simulates days of the descheduler on the real kube-scheduler, and counts evictions and what they gain.

Run by hand (minutes): ``python tests/bench/descheduler_day.py --seeds 1 2 3``. Nodes have no kubelet, and a bound pod
counts as running. A round is a minute of the day, decided by the code of the live loop; an evicted pod is deleted,
created again, and scheduled. Every workload has its own daily usage, and some surge for three hours. Requests are twice
the mean usage, or half of it. Some workloads cannot be helped: they are restricted to a node, or overutilize any node.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.descheduler.evaluation import INEFFECTIVE_OUTCOMES
from kubekit.client import MERGE_PATCH, Client
from kubekit.reflector import Reflector
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Object, Resource
from lab.scheduler_config import build_scheduler_config
from netperf.contract import HOT_TAINT
from tests.bench.control_plane import bench_control_plane, create_ready_node, gather_limited
from tests.bench.figures import Figures, make_figure
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
from tests.support.tasks import running_tasks

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
NODE_COUNT, ZONES, CORES, GIB = 30, 3, 8, 32
WORKLOADS, MEAN_UTILIZATION = 45, 0.36
SURGE_FACTOR, SURGE_S, SURGE_PROBABILITY = 2.5, 3 * 3600.0, 0.6
START_S, DAY_S, ROUND_S = 1_800_000_000.0, 86_400.0, 60.0
ROUNDS_S = [ROUND_S * i for i in range(int(DAY_S / ROUND_S))]
"""Times of all rounds, seconds of the day."""
HIGH_PERCENT = 70.0
POLICY = {"lowThresholds": {"cpu": 55, "memory": 55}, "highThresholds": {"cpu": HIGH_PERCENT, "memory": HIGH_PERCENT}}
_GI = 1 << 30
HIGH_THRESHOLDS = {"cpu": HIGH_PERCENT / 100 * CORES * 1000, "memory": HIGH_PERCENT / 100 * GIB * _GI}
NODE_NAMES = [f"n{i:02d}" for i in range(NODE_COUNT)]
SYSTEM_USAGE = {"cpu": 200.0, "memory": 0.5 * _GI}
"""Usage of a node without pods."""
DAILY_AMPLITUDE = 0.25
UNHELPABLE_REQUEST_RATIO = 0.2
RUNNING_STATUS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class Workload(msgspec.Struct, frozen=True):
    """A ReplicaSet, and the usage of its replicas.

    Attributes:
        cores, gib: mean usage of a replica.
        factors: factor of each replica's CPU usage.
        phase_s: second of the day at which its daily curve starts.
        surge_s: second of the day at which a surge starts; negative for none.
        can_be_helped: whether moves can relieve its nodes.
        node: the only node that its pods may run on; empty for any.
    """

    name: str
    cores: float
    gib: float
    factors: tuple[float, ...]
    phase_s: float = 0.0
    surge_s: float = -1.0
    can_be_helped: bool = True
    node: str = ""

    def usage(self, replica: int, at_s: float) -> dict[str, float]:
        """Millicores and bytes that a replica uses at a second of the day."""
        if not self.can_be_helped:
            return {"cpu": 1000 * self.cores, "memory": _GI * self.gib}
        daily_factor = 1 + DAILY_AMPLITUDE * math.sin(2 * math.pi * (at_s - self.phase_s) / DAY_S)
        is_surging = 0 <= self.surge_s <= at_s < self.surge_s + SURGE_S
        cores = self.cores * self.factors[replica] * daily_factor * (SURGE_FACTOR if is_surging else 1.0)
        return {"cpu": 1000 * cores, "memory": _GI * self.gib}


def draw_workloads(rng: random.Random) -> list[Workload]:
    """Workloads with a mean usage of 36 % of all cores, two restricted to a node each, and one too large for any."""
    workloads = []
    for i in range(WORKLOADS):
        replicas = rng.randint(2, 6)
        workloads.append(
            Workload(
                name=f"web{i:02d}",
                cores=rng.lognormvariate(0, 0.4),
                gib=rng.uniform(0.3, 1.5),
                factors=tuple(rng.lognormvariate(0, 0.3) for _ in range(replicas)),
                phase_s=rng.uniform(0, DAY_S),
                surge_s=rng.uniform(0, DAY_S - SURGE_S) if rng.random() < SURGE_PROBABILITY else -1.0,
            )
        )
    total_cores = sum(w.cores * sum(w.factors) for w in workloads)
    scale = MEAN_UTILIZATION * NODE_COUNT * CORES / total_cores
    workloads = [msgspec.structs.replace(w, cores=w.cores * scale) for w in workloads]
    # Two replicas of 2.9 cores are above 70 % of a node's 8 cores, and so is one of 5.8 cores.
    restricted = [Workload(f"bound{i}", 2.9, 1.0, (1.0, 1.0), can_be_helped=False, node=f"n{i:02d}") for i in range(2)]
    return [*workloads, *restricted, Workload("large", 5.8, 2.0, (1.0, 1.0), can_be_helped=False)]


@dataclass
class Replica:
    """A pod of a workload, with its index there and simulated time of creation; ``node`` is empty until it is bound."""

    workload: Workload
    index: int
    created_s: float
    node: str = ""


class Day:
    """The pods of a day; ``request_ratio`` is that of requests to mean usage."""

    def __init__(self, client: Client, seed: int, request_ratio: float) -> None:
        self._client, self._request_ratio = client, request_ratio
        self.seed, self.requests = seed, "twice" if request_ratio > 1 else "half"
        self.namespace = f"day-{seed}-{self.requests}"
        self.workloads = draw_workloads(random.Random(seed))
        self._pods: Reflector[Pod] = Reflector(client, PODS, Pod, namespace=self.namespace)
        self._reader = PodReader()
        self._replica_by_pod: dict[str, Replica] = {}
        self._pod_numbers = itertools.count()

    @asynccontextmanager
    async def running_pods(self) -> AsyncIterator[None]:
        """Create all pods and wait until they are bound; delete them at the end of the block."""
        await self._client.create(NAMESPACES, {"metadata": {"name": self.namespace}}, Object)
        await self._client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, Object, namespace=self.namespace)
        try:
            async with running_tasks(self._pods.run()):
                await self._pods.synced.wait()
                for workload in self.workloads:
                    body = self._make_replica_set(workload)
                    await self._client.create(REPLICA_SETS, body, Object, namespace=self.namespace)
                replicas = [(workload, index) for workload in self.workloads for index in range(len(workload.factors))]
                await gather_limited([self._create_pod(*replica, START_S - 3600) for replica in replicas])
                await self._wait_until_bound(list(self._replica_by_pod))
                yield
        finally:
            body = {"gracePeriodSeconds": 0}
            await self._client.request("DELETE", PODS.path(self.namespace), body=body, timeout_s=60)

    def _make_replica_set(self, workload: Workload) -> dict[str, Any]:
        """The ReplicaSet by whose selector the scheduler spreads replicas; no controller runs."""
        labels = {"app": workload.name}
        template = {"metadata": {"labels": labels}, "spec": self._make_pod_spec(workload)}
        spec = {"replicas": len(workload.factors), "selector": {"matchLabels": labels}, "template": template}
        return {"metadata": {"name": workload.name}, "spec": spec}

    def _make_pod_spec(self, workload: Workload) -> dict[str, Any]:
        ratio = self._request_ratio if workload.can_be_helped else UNHELPABLE_REQUEST_RATIO
        requests = {
            "cpu": f"{max(int(1000 * workload.cores * ratio), 1)}m",
            "memory": f"{max(int(1024 * workload.gib * ratio), 1)}Mi",
        }
        return {
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
            **({"nodeSelector": {"kubernetes.io/hostname": workload.node}} if workload.node else {}),
        }

    async def _create_pod(self, workload: Workload, index: int, now_s: float) -> str:
        name, api_version = f"{workload.name}-{next(self._pod_numbers)}", REPLICA_SETS.api_version
        owner = {"apiVersion": api_version, "kind": "ReplicaSet", "name": workload.name, "uid": workload.name}
        metadata = {"name": name, "labels": {"app": workload.name}, "ownerReferences": [{**owner, "controller": True}]}
        body = {"metadata": metadata, "spec": self._make_pod_spec(workload)}
        await self._client.create(PODS, body, Object, namespace=self.namespace)
        self._replica_by_pod[name] = Replica(workload, index, now_s)
        return name

    async def _wait_until_bound(self, names: list[str]) -> None:
        deadline_s = time.monotonic() + 60
        for name in names:
            while not self._read_node(name):
                if time.monotonic() > deadline_s:
                    return  # the pod stays pending
                await asyncio.sleep(0.005)

    def _read_node(self, name: str) -> str:
        """Store and return the node of a pod; empty while it is pending."""
        pod = self._pods.get(f"{self.namespace}/{name}")
        self._replica_by_pod[name].node = node = "" if pod is None else pod.spec.node_name
        return node

    async def evict(self, name: str, now_s: float) -> tuple[str, int]:
        """Delete a pod, and create another, which is bound while the first terminates; returns workload and replica."""
        replica = self._replica_by_pod[name]
        await self._client.delete(PODS, name, namespace=self.namespace, grace_period_s=30)
        await self._wait_until_bound([await self._create_pod(replica.workload, replica.index, now_s)])
        await self._client.delete(PODS, name, namespace=self.namespace, grace_period_s=0)
        del self._replica_by_pod[name]
        return replica.workload.name, replica.index

    async def set_taints(self, world: World, hot_nodes: frozenset[str]) -> None:
        """Set the taint on these nodes only, as the controller does before it evicts."""
        for name, host in list(world.nodes.items()):
            if bool(host.prefer_no_schedule_taints) != (name in hot_nodes):
                taints = [{"key": HOT_TAINT, "effect": "PreferNoSchedule"}] if name in hot_nodes else None
                patch = {"spec": {"taints": taints}}
                world.on_node_change(name, await self._client.patch(NODES, name, patch, Node, patch_type=MERGE_PATCH))

    def list_bound_replicas(self) -> dict[str, Replica]:
        """Replicas with a node, by the key of their pod."""
        return {f"{self.namespace}/{name}": r for name, r in self._replica_by_pod.items() if r.node}

    def compute_usage(self, at_s: float) -> UsageView:
        usage_by_node = {name: dict(SYSTEM_USAGE) for name in NODE_NAMES}
        usage_by_pod = {}
        for key, replica in self.list_bound_replicas().items():
            usage_by_pod[key] = replica.workload.usage(replica.index, at_s)
            for resource, amount in usage_by_pod[key].items():
                usage_by_node[replica.node][resource] += amount
        return UsageView(usage_by_node, usage_by_pod)

    def update_world(self, world: World) -> None:
        """Update the pods of the descheduler's world: a bound pod counts as running."""
        for key in world.pods.keys() - {f"{self.namespace}/{name}" for name in self._replica_by_pod}:
            world.on_pod_change(key, None)
        for name, replica in self._replica_by_pod.items():
            node, key = self._read_node(name), f"{self.namespace}/{name}"
            pod = self._pods.get(key)
            if pod is not None and (key not in world.pods or world.pods[key].node != node):
                metadata = msgspec.structs.replace(pod.metadata, creation_timestamp=format_time(replica.created_s))
                status = msgspec.convert(RUNNING_STATUS if node else {"phase": "Pending"}, type(pod.status))
                running_pod = msgspec.structs.replace(pod, metadata=metadata, status=status)
                world.on_pod_change(key, self._reader.read(running_pod))


class DayFigures(msgspec.Struct, frozen=True):
    """Figures of a day; hours are with the descheduler, and without.

    Attributes:
        overutilized_node_hours: hours of overutilized nodes with pods that can be helped.
        excess_core_hours: hours of cores that these pods use above the threshold.
        max_evictions_of_helped_replica, max_evictions_of_other_workload: of the one that was evicted most often.
    """

    seed: int
    requests: str
    overutilized_node_hours: tuple[float, float]
    excess_core_hours: tuple[float, float]
    evictions: int
    max_evictions_of_helped_replica: int
    max_evictions_of_other_workload: int
    outcomes: dict[str, int]


class Overutilization(NamedTuple):
    """Number of overutilized nodes with pods that can be helped, and cores that these pods use above the threshold."""

    nodes: int
    cores: float


def compute_overutilization(day: Day, at_s: float) -> tuple[Overutilization, UsageView]:
    """Overutilization and usage at a second of the day."""
    view, replicas = day.compute_usage(at_s), day.list_bound_replicas()
    other_millicores = Counter[str]()
    for key, replica in replicas.items():
        if not replica.workload.can_be_helped:
            other_millicores[replica.node] += int(view.by_pod[key]["cpu"])
    node_count = 0
    for node in {replica.node for replica in replicas.values() if replica.workload.can_be_helped}:
        node_count += any(view.by_node[node][resource] > high for resource, high in HIGH_THRESHOLDS.items())
    excess_millicores = 0.0
    for node, usage in view.by_node.items():
        excess_millicores += max(0.0, usage["cpu"] - max(HIGH_THRESHOLDS["cpu"], other_millicores[node]))
    return Overutilization(node_count, excess_millicores / 1000), view


async def run_day(day: Day, nodes: list[Node], settings: ResolvedConfig) -> DayFigures:
    async with day.running_pods():
        without_descheduler = [compute_overutilization(day, at_s)[0] for at_s in ROUNDS_S]
        world = World()
        for node in nodes:
            world.on_node_change(node.metadata.name, node)
        history, durations = History(), ReasonDurations()
        with_descheduler = list[Overutilization]()
        evictions, outcomes = Counter[tuple[str, int]](), Counter[str]()
        for at_s in ROUNDS_S:
            now_s = START_S + at_s
            overutilization, view = compute_overutilization(day, at_s)
            with_descheduler.append(overutilization)
            day.update_world(world)
            decision = decide(world.snapshot(view), history, durations, settings, now_s).decision
            outcomes.update(move.outcome for move in decision.evaluated_moves)
            durations, history = decision.durations, add_moves(decision.history, decision.pending_moves)
            await day.set_taints(world, nodes_to_taint(decision.plan.nodes, durations.detectors, world.nodes))
            for move in decision.plan.moves:
                evictions[await day.evict(move.pod.partition("/")[2], now_s)] += 1
        await day.set_taints(world, frozenset())  # the next day has the same nodes
    helped_workloads = {workload.name for workload in day.workloads if workload.can_be_helped}
    of_helped = [count for (workload, _), count in evictions.items() if workload in helped_workloads]
    of_others = Counter(workload for workload, _ in evictions.elements() if workload not in helped_workloads)
    return DayFigures(
        seed=day.seed,
        requests=day.requests,
        overutilized_node_hours=(sum_hours(with_descheduler, "nodes"), sum_hours(without_descheduler, "nodes")),
        excess_core_hours=(sum_hours(with_descheduler, "cores"), sum_hours(without_descheduler, "cores")),
        evictions=evictions.total(),
        max_evictions_of_helped_replica=max(of_helped, default=0),
        max_evictions_of_other_workload=max(of_others.values(), default=0),
        outcomes=dict(sorted(outcomes.items())),
    )


def sum_hours(rounds: list[Overutilization], field: str) -> float:
    """Node-hours or core-hours of a day's rounds."""
    total: float = sum(getattr(overutilization, field) for overutilization in rounds)
    return round(ROUND_S / 3600 * total, 2)


async def run_days(seeds: list[int]) -> list[DayFigures]:
    """Simulate all days, one after the other, on one control plane."""
    settings = msgspec.convert({"policy": POLICY}, DeschedulerConfig).resolve()
    days, amounts = [], {"cpu": str(CORES), "memory": f"{GIB}Gi", "pods": "110"}
    async with bench_control_plane("day", components=()) as (plane, client):
        nodes = [
            await create_ready_node(client, name, f"z{i % ZONES}", "r", amounts) for i, name in enumerate(NODE_NAMES)
        ]
        config = build_scheduler_config() | {"clientConnection": {"qps": 500, "burst": 1000}}
        await plane.start_scheduler(config)
        for seed in seeds:
            for ratio in (2.0, 0.5):
                figures = await run_day(Day(client, seed, ratio), nodes, settings)
                print(msgspec.json.encode(figures).decode(), file=sys.stderr, flush=True)
                days.append(figures)
    return days


def compare_with_budgets(days: list[DayFigures]) -> Figures:
    outcomes = sum((Counter(day.outcomes) for day in days), Counter[str]())
    helped_percent = 100 * outcomes["helped"] / outcomes.total() if outcomes else 100.0
    without_benefit = sum(outcomes[outcome] for outcome in INEFFECTIVE_OUTCOMES)
    of_other = max(day.max_evictions_of_other_workload for day in days)
    of_helped = max(day.max_evictions_of_helped_replica for day in days)
    node_hours = _reduction_percent(day.overutilized_node_hours for day in days)
    core_hours = _reduction_percent(day.excess_core_hours for day in days)
    return {
        "evictions a day of a workload that cannot be helped": make_figure(of_other, "evictions", 6),
        "evictions a day of a replica that can": make_figure(of_helped, "evictions", 2),
        "overutilized node-hours less than without": make_figure(node_hours, "%", 80, at_least=True),
        "cores above the threshold, hours less than without": make_figure(core_hours, "%"),
        "moves that helped": make_figure(helped_percent, "%", 95, f"without benefit: {without_benefit}", at_least=True),
    }


def _reduction_percent(pairs: Iterable[tuple[float, float]]) -> float:
    """Reduction of the first sum compared with the second, in percent."""
    with_descheduler, without = (sum(column) for column in zip(*pairs, strict=True))
    return 100 * (1 - with_descheduler / without) if without else 0.0


def main() -> int:
    """Print days and budgets; the exit code is 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    days = asyncio.run(run_days(parser.parse_args().seeds))
    verdicts = compare_with_budgets(days)
    print(json.dumps({"days": msgspec.to_builtins(days), "verdicts": verdicts}, indent=2))
    return 0 if all(verdict["ok"] is not False for verdict in verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
