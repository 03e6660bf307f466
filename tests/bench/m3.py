"""Reads the published cluster M3 as a placement problem, and scores placements of it; see data/README.md."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
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


class Scores(msgspec.Struct, frozen=True):
    """Scores of a placement.

    Attributes:
        gained_affinity: RASA's score, a share (see data/README.md).
        in_zone: share of the traffic that stays in its zone under PreferSameZone.
        max_load_ratio: load of the callee's busiest replica over its fair share, weighted by traffic.
        services_in_one_zone: number of services with several replicas, all of them in one zone.
        unplaced: number of replicas without a machine.
    """

    gained_affinity: float
    in_zone: float
    max_load_ratio: float
    services_in_one_zone: int
    unplaced: int


def read_data() -> Mapping[str, Any]:
    """The published data."""
    data: Mapping[str, Any] = json.loads(gzip.decompress(_DATA.read_bytes()))
    return data


def assign_zones(machines: int, seed: int | None) -> Ints:
    """[machine] zone: three zones by a shuffle with this seed; without a seed all machines are in one."""
    zone_of = np.zeros(machines, np.int64)
    if seed is not None:
        order = list(range(machines))
        random.Random(seed).shuffle(order)
        zone_of[order] = np.arange(machines) % 3
    return zone_of


def build_problem(data: Mapping[str, Any], zone_seed: int | None = None) -> Problem:
    """The problem with machines as hosts: in one zone with PreferSameNode, or with a seed in three zones with PreferSameZone."""
    services, machines = data["ServiceList"], data["MachineList"]
    number = {service["Service"]: i for i, service in enumerate(services)}
    zone_of = assign_zones(len(machines), zone_seed)
    zones = int(zone_of.max()) + 1
    latency: Floats = np.full((zones, zones), BETWEEN_ZONES_US)
    np.fill_diagonal(latency, IN_ZONE_US)
    capacity = np.array([[_scaled(m["TotalCPU"]), _scaled(m["TotalMem"])] for m in machines], np.int64)
    routing = Routing.NODE if zone_seed is None else Routing.ZONE
    return Problem(
        free=capacity,
        capacity=capacity,
        zone_of=zone_of,
        has_zone_label=np.ones(zones, np.bool_),
        workload_of=np.arange(len(services)),
        requests=np.array([[_scaled(s["RequestCPU"]), _scaled(s["RequestMem"])] for s in services], np.int64),
        row_of=np.zeros(len(services), np.int64),
        allowed=np.ones((1, len(machines)), np.bool_),
        class_of=np.repeat(np.arange(len(services)), [len(s["ContainerList"]) for s in services]),
        fixed_hosts=((),) * len(services),
        colocation_price=np.zeros(len(services)),
        host_price=np.zeros(len(machines)),
        edges=tuple(
            CallEdge(number[t["Service1"]], number[t["Service2"]], t["Traffic"], routing) for t in data["TrafficList"]
        ),
        tables=(CallCostTable(latency, LOCAL_US, np.zeros((zones, zones), np.bool_)),),
        must_span_zones=np.full(len(services), zone_seed is not None, np.bool_),
        balance_price=1e-6,
    )


def _scaled(amount: float) -> int:
    return round(amount * _SCALE)


def score_placement(problem: Problem, host_of: Ints) -> Scores:
    """Scores of a placement, [replica] host or -1; raises AssertionError if a machine is overcommitted."""
    placed = host_of >= 0
    used = np.zeros_like(problem.free)
    np.add.at(used, host_of[placed], problem.requests[problem.class_of[placed]])
    assert (used <= problem.free).all(), "a machine is overcommitted"
    replicas_on_host = np.zeros((problem.workload_count, len(problem.free)))
    np.add.at(replicas_on_host, (problem.workload_of[problem.class_of[placed]], host_of[placed]), 1.0)
    in_zone = np.stack(
        [replicas_on_host[:, problem.zone_of == z].sum(axis=1) for z in range(len(problem.has_zone_label))], axis=1
    )
    replicas = np.maximum(replicas_on_host.sum(axis=1, keepdims=True), 1)
    share, zone_share = replicas_on_host / replicas, in_zone / replicas
    traffic = sum(edge.weight for edge in problem.edges)
    gained_affinity = in_zone_traffic = max_load_ratio = 0.0
    for edge in problem.edges:
        gained_affinity += edge.weight * np.minimum(share[edge.caller], share[edge.callee]).sum()
        callers, called = zone_share[edge.caller], zone_share[edge.callee]
        has_callee = called > 0
        in_zone_traffic += edge.weight * callers[has_callee].sum()
        max_load_ratio += edge.weight * (callers[has_callee] / called[has_callee] + callers[~has_callee].sum()).max()
    several = in_zone.sum(axis=1) > 1
    return Scores(
        gained_affinity=float(gained_affinity / traffic),
        in_zone=float(in_zone_traffic / traffic),
        max_load_ratio=float(max_load_ratio / traffic),
        services_in_one_zone=int((several & ((in_zone > 0).sum(axis=1) == 1)).sum()),
        unplaced=int((~placed).sum()),
    )


def read_production_placement(data: Mapping[str, Any]) -> Ints:
    """[replica] machine in production, or -1."""
    machine_of = {c: m for m, machine in enumerate(data["MachineList"]) for c in machine["InitialDeployingContainers"]}
    machines = [machine_of.get(c, -1) for service in data["ServiceList"] for c in service["ContainerList"]]
    return np.array(machines, np.int64)
