"""Which replica answers a call: one answer in every place that asks."""

from __future__ import annotations

import numpy as np
import pytest

from controller.cluster.services import Routing
from controller.scheduler.placement.evaluation import evaluate_edge
from controller.scheduler.placement.problem import CallEdge, Problem, Table


@pytest.mark.parametrize(("unlabelled", "in_zone"), [(False, 1.0), (True, 0.5)])
def test_one_replica_without_a_zone_turns_zone_hints_off(*, unlabelled: bool, in_zone: float) -> None:
    """A caller and a replica in zone a, another replica in zone b or on a node without the label; PreferSameZone."""
    square = np.ones((2, 2))
    edge = CallEdge(0, 1, 1.0, Routing.ZONE, 0)
    problem = Problem(
        free=np.zeros((2, 0), np.int64),
        capacity=np.zeros((2, 0), np.int64),
        zone_of=np.array([0, 1]),
        zoned=np.array([True, not unlabelled]),
        workload_of=np.zeros(0, np.int64),
        asks=np.zeros((0, 0), np.int64),
        row_of=np.zeros(0, np.int64),
        allowed=np.ones((1, 2), np.bool_),
        class_of=np.zeros(0, np.int64),
        fixed=((0,), (0, 1)),
        edges=(edge,),
        tables=(Table(square, 1.0, square > 1),),
    )
    assert evaluate_edge(problem, edge, {0: 1}, {0: 1, 1: 1}).in_zone == in_zone
