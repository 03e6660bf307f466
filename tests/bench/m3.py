"""Reads the published cluster M3 as a placement problem, and scores placements of it; see data/README.md.

``[replica] machine`` is an array with the machine of each replica.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.cluster.services import Routing
from controller.scheduler.placement.problem import CallCostTable, CallEdge, Floats, Ints, Problem

_DATA = Path(__file__).parent / "data" / "m3.json.gz"
_SCALE = 10**12
"""The publisher's amounts are shares of all machines; as whole numbers they are exact to 12 digits."""
LOCAL_US, IN_ZONE_US, BETWEEN_ZONES_US = 30.0, 100.0, 1000.0
ZONES = 3


class Scores(msgspec.Struct, frozen=True):
    """Scores of a placement.

    Attributes:
        gained_affinity: share of the traffic that can stay on its machine, RASA's score (see data/README.md).
        in_zone_traffic: share of the traffic that stays in its zone under PreferSameZone.
        max_load_ratio: load of the callee's busiest replica over its fair share; mean, weighted by traffic.
        services_in_one_zone: number of services with several replicas, all of them in one zone.
        unplaced: number of replicas without a machine.
    """

    gained_affinity: float
    in_zone_traffic: float
    max_load_ratio: float
    services_in_one_zone: int
    unplaced: int


def read_data() -> Mapping[str, Any]:
    return dict(json.loads(gzip.decompress(_DATA.read_bytes())))


def assign_zones(machine_count: int, seed: int | None) -> Ints:
    """``[machine] zone``: three zones by a shuffle with this seed; without a seed all machines are in one."""
    zone_of = np.zeros(machine_count, np.int64)
    if seed is not None:
        shuffled_machines = list(range(machine_count))
        random.Random(seed).shuffle(shuffled_machines)
        zone_of[shuffled_machines] = np.arange(machine_count) % ZONES
    return zone_of


def build_problem(data: Mapping[str, Any], zone_seed: int | None = None) -> Problem:
    """The problem with all machines in one zone and PreferSameNode, or with a seed in three and PreferSameZone."""
    services, machines = data["ServiceList"], data["MachineList"]
    index_by_service = {service["Service"]: index for index, service in enumerate(services)}
    zone_of = assign_zones(len(machines), zone_seed)
    zone_count = int(zone_of.max()) + 1
    latency_us: Floats = np.full((zone_count, zone_count), BETWEEN_ZONES_US)
    np.fill_diagonal(latency_us, IN_ZONE_US)
    capacity = _to_amounts(machines, "TotalCPU", "TotalMem")
    routing = Routing.NODE if zone_seed is None else Routing.ZONE
    edges = tuple(
        CallEdge(index_by_service[call["Service1"]], index_by_service[call["Service2"]], call["Traffic"], routing)
        for call in data["TrafficList"]
    )
    # Each service is a workload with one class of equal replicas, which may run on any machine.
    return Problem(
        free=capacity,
        capacity=capacity,
        zone_of=zone_of,
        has_zone_label=np.ones(zone_count, np.bool_),
        workload_of=np.arange(len(services)),
        requests=_to_amounts(services, "RequestCPU", "RequestMem"),
        row_of=np.zeros(len(services), np.int64),
        allowed=np.ones((1, len(machines)), np.bool_),
        class_of=np.repeat(np.arange(len(services)), [len(service["ContainerList"]) for service in services]),
        fixed_hosts=((),) * len(services),
        colocation_price=np.zeros(len(services)),
        host_price=np.zeros(len(machines)),
        edges=edges,
        tables=(CallCostTable(latency_us, LOCAL_US, np.zeros((zone_count, zone_count), np.bool_)),),
        must_span_zones=np.full(len(services), zone_seed is not None, np.bool_),
        balance_price=1e-6,  # decides between placements of equal cost only
    )


def _to_amounts(rows: Sequence[Mapping[str, float]], *keys: str) -> Ints:
    return np.array([[round(row[key] * _SCALE) for key in keys] for row in rows], np.int64)


def score_placement(problem: Problem, host_of: Ints) -> Scores:
    """Scores of a placement, ``[replica] host`` or -1; raises AssertionError if a machine is overcommitted."""
    is_placed = host_of >= 0
    used = np.zeros_like(problem.free)
    np.add.at(used, host_of[is_placed], problem.requests[problem.class_of[is_placed]])
    assert (used <= problem.free).all(), "a machine is overcommitted"
    on_host = np.zeros((problem.workload_count, len(problem.free)))
    np.add.at(on_host, (problem.workload_of[problem.class_of[is_placed]], host_of[is_placed]), 1.0)
    zones = range(len(problem.has_zone_label))
    in_zone = np.stack([on_host[:, problem.zone_of == zone].sum(axis=1) for zone in zones], axis=1)
    replica_counts = on_host.sum(axis=1)
    divisors = np.maximum(replica_counts, 1)[:, None]
    host_share, zone_share = on_host / divisors, in_zone / divisors
    is_in_one_zone = (in_zone > 0).sum(axis=1) == 1
    return Scores(
        gained_affinity=_average(problem, partial(_share_on_same_host, host_share)),
        in_zone_traffic=_average(problem, partial(_share_in_same_zone, zone_share)),
        max_load_ratio=_average(problem, partial(_max_load_ratio, zone_share)),
        services_in_one_zone=int((is_in_one_zone & (replica_counts > 1)).sum()),
        unplaced=int((~is_placed).sum()),
    )


def _average(problem: Problem, score: Callable[[CallEdge], float]) -> float:
    """Mean of a score of edges, weighted by traffic."""
    traffic = sum(edge.weight for edge in problem.edges)
    return float(sum(edge.weight * score(edge) for edge in problem.edges) / traffic)


def _share_on_same_host(host_share: Floats, edge: CallEdge) -> float:
    return float(np.minimum(host_share[edge.caller], host_share[edge.callee]).sum())


def _share_in_same_zone(zone_share: Floats, edge: CallEdge) -> float:
    return float(zone_share[edge.caller][zone_share[edge.callee] > 0].sum())


def _max_load_ratio(zone_share: Floats, edge: CallEdge) -> float:
    """Load of a replica in the busiest zone: of callers in its zone, and of those whose zone has no replica."""
    callers, callees = zone_share[edge.caller], zone_share[edge.callee]
    has_callee = callees > 0
    return float((callers[has_callee] / callees[has_callee] + callers[~has_callee].sum()).max())


def read_production_placement(data: Mapping[str, Any]) -> Ints:
    """``[replica] machine`` in production, or -1."""
    machine_by_container = {
        container: index
        for index, machine in enumerate(data["MachineList"])
        for container in machine["InitialDeployingContainers"]
    }
    containers = [container for service in data["ServiceList"] for container in service["ContainerList"]]
    return np.array([machine_by_container.get(container, -1) for container in containers], np.int64)
