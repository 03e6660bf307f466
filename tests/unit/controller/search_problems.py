"""Builds small problems for the search, as arrays."""

from __future__ import annotations

import msgspec
import numpy as np

from controller.cluster.services import Routing
from controller.scheduler.placement.problem import CallCostTable, CallEdge, Ints, Problem

ON_HOST_US, IN_ZONE_US, FAR_US = 30.0, 100.0, 1000.0


def make_problem(
    zone_of: list[int], replicas: list[int], *edges: tuple[int, int, Routing], free_cpu: int = 9, **changes: object
) -> Problem:
    """Workloads of one-cpu replicas on hosts of one size; edges of weight 1; ``zone_of`` has the zone of each host."""
    zone_count, host_count = max(zone_of) + 1, len(zone_of)
    latency_us = np.full((zone_count, zone_count), FAR_US)
    np.fill_diagonal(latency_us, IN_ZONE_US)
    problem = Problem(
        free=np.full((host_count, 1), free_cpu, np.int64),
        capacity=np.full((host_count, 1), free_cpu, np.int64),
        zone_of=np.array(zone_of, np.int64),
        has_zone_label=np.ones(zone_count, np.bool_),
        workload_of=np.arange(len(replicas)),
        requests=np.ones((len(replicas), 1), np.int64),
        row_of=np.zeros(len(replicas), np.int64),
        allowed=np.ones((1, host_count), np.bool_),
        class_of=np.repeat(np.arange(len(replicas)), replicas),
        fixed_hosts=((),) * len(replicas),
        must_span_zones=np.zeros(len(replicas), np.bool_),
        colocation_price=np.zeros(len(replicas)),
        host_price=np.zeros(host_count),
        edges=tuple(CallEdge(caller, callee, 1.0, routing) for caller, callee, routing in edges),
        tables=(CallCostTable(latency_us, ON_HOST_US, np.zeros_like(latency_us, np.bool_)),),
    )
    return msgspec.structs.replace(problem, **changes)


def make_hosts(*hosts: int) -> Ints:
    """[replica] host."""
    return np.array(hosts, np.int64)
