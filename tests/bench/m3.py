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
    """Scores of a placement; the first three are shares.

    Attributes:
        gained_affinity: RASA's score.
        in_zone: traffic that stays in its zone under PreferSameZone.
        max_load_ratio: load of the callee's busiest replica over its fair share, weighted by traffic.
        together: services with several replicas in one zone.
        unplaced: replicas.
    """

    gained_affinity: float
    in_zone: float
    max_load_ratio: float
    together: int
    unplaced: int


def read() -> Mapping[str, Any]:
    """The published data."""
    data: Mapping[str, Any] = json.loads(gzip.decompress(_DATA.read_bytes()))
    return data


def zones_of(machines: int, deal: int | None) -> Ints:
    """[machine] zone: dealt to three zones after a shuffle, or all in one without ``deal``."""
    zone_of = np.zeros(machines, np.int64)
    if deal is not None:
        order = list(range(machines))
        random.Random(deal).shuffle(order)
        zone_of[order] = np.arange(machines) % 3
    return zone_of


def problem_of(data: Mapping[str, Any], deal: int | None = None) -> Problem:
    """The problem with machines as hosts of one zone and PreferSameNode, or dealt to three zones with PreferSameZone."""
    services, machines = data["ServiceList"], data["MachineList"]
    number = {service["Service"]: i for i, service in enumerate(services)}
    zone_of = zones_of(len(machines), deal)
    zones = int(zone_of.max()) + 1
    latency: Floats = np.full((zones, zones), BETWEEN_ZONES_US)
    np.fill_diagonal(latency, IN_ZONE_US)
    capacity = np.array([[_scaled(m["TotalCPU"]), _scaled(m["TotalMem"])] for m in machines], np.int64)
    routing = Routing.NODE if deal is None else Routing.ZONE
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
        colocation_penalty=np.zeros(len(services)),
        host_price=np.zeros(len(machines)),
        edges=tuple(
            CallEdge(number[t["Service1"]], number[t["Service2"]], t["Traffic"], routing) for t in data["TrafficList"]
        ),
        tables=(CallCostTable(latency, LOCAL_US, np.zeros((zones, zones), np.bool_)),),
        must_span_zones=np.full(len(services), deal is not None, np.bool_),
        balance_price=1e-6,
    )


def _scaled(amount: float) -> int:
    return round(amount * _SCALE)


def scores(problem: Problem, at: Ints) -> Scores:
    """Scores of a placement; raises AssertionError if a machine is overcommitted."""
    placed = at >= 0
    used = np.zeros_like(problem.free)
    np.add.at(used, at[placed], problem.requests[problem.class_of[placed]])
    assert (used <= problem.free).all(), "more than a machine has"
    on = np.zeros((problem.workload_count, len(problem.free)))
    np.add.at(on, (problem.workload_of[problem.class_of[placed]], at[placed]), 1.0)
    in_zone = np.stack([on[:, problem.zone_of == z].sum(axis=1) for z in range(len(problem.has_zone_label))], axis=1)
    replicas = np.maximum(on.sum(axis=1, keepdims=True), 1)
    share, zone_share = on / replicas, in_zone / replicas
    traffic = sum(edge.weight for edge in problem.edges)
    gained = near = max_load_ratio = 0.0
    for edge in problem.edges:
        gained += edge.weight * np.minimum(share[edge.caller], share[edge.callee]).sum()
        callers, called = zone_share[edge.caller], zone_share[edge.callee]
        has_callee = called > 0
        near += edge.weight * callers[has_callee].sum()
        max_load_ratio += edge.weight * (callers[has_callee] / called[has_callee] + callers[~has_callee].sum()).max()
    several = in_zone.sum(axis=1) > 1
    return Scores(
        gained_affinity=float(gained / traffic),
        in_zone=float(near / traffic),
        max_load_ratio=float(max_load_ratio / traffic),
        together=int((several & ((in_zone > 0).sum(axis=1) == 1)).sum()),
        unplaced=int((~placed).sum()),
    )


def production(data: Mapping[str, Any]) -> Ints:
    """[replica] machine in production."""
    machine_of = {c: m for m, machine in enumerate(data["MachineList"]) for c in machine["InitialDeployingContainers"]}
    found = [machine_of.get(c, -1) for service in data["ServiceList"] for c in service["ContainerList"]]
    return np.array(found, np.int64)
