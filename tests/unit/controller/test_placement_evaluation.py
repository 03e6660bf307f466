"""Latency, load and violations of a placement, by the replicas that kube-proxy calls."""

from __future__ import annotations

import numpy as np
import pytest

from controller.cluster.services import Routing
from controller.scheduler.placement.evaluation import evaluate
from tests.unit.controller.search_problems import FAR_US, IN_ZONE_US, ON_HOST_US, make_hosts, make_problem


@pytest.mark.parametrize(
    ("routing", "hosts", "latency_us", "max_load_ratio"),
    [
        # Hosts 0, 1 in zone 0, 2, 3 in zone 1, and 4 in none; two callers, then the replicas of the callee.
        (Routing.ANY, (0, 2, 0, 2), (ON_HOST_US + FAR_US) / 2, 1.0),
        (Routing.ZONE, (0, 2, 0, 2), ON_HOST_US, 1.0),
        (Routing.ZONE, (0, 2, 1, 3), IN_ZONE_US, 1.0),
        # The caller of zone 1 has no replica there: half of the calls are far.
        (Routing.ZONE, (0, 2, 0, 1), ((ON_HOST_US + IN_ZONE_US) / 2 + FAR_US) / 2, 1.0),
        # Both callers call the replica of zone 0, which takes twice its share.
        (Routing.ZONE, (0, 1, 0, 2), (ON_HOST_US + IN_ZONE_US) / 2, 2.0),
        (Routing.ZONE, (4, 4, 0, 2), FAR_US, 1.0),
        # A replica without a zone turns zone hints off: each caller calls all three.
        (Routing.ZONE, (0, 2, 0, 2, 4), (ON_HOST_US + 2 * FAR_US) / 3, 1.0),
        (Routing.NODE, (0, 2, 0, 2, 4), ON_HOST_US, 1.5),
        (Routing.NODE, (0, 0, 0, 1), ON_HOST_US, 2.0),
        # Without a replica on its host, a caller calls those of its zone.
        (Routing.NODE, (0, 1, 0, 2), (ON_HOST_US + IN_ZONE_US) / 2, 2.0),
        (Routing.NODE, (2, 2, 0, 1), FAR_US, 1.0),
    ],
)
def test_calls_are_routed_as_by_kube_proxy(
    routing: Routing, hosts: tuple[int, ...], latency_us: float, max_load_ratio: float
) -> None:
    has_zone_label = np.array([True, True, False])
    problem = make_problem([0, 0, 1, 1, 2], [2, len(hosts) - 2], (0, 1, routing), has_zone_label=has_zone_label)
    evaluation = evaluate(problem, make_hosts(*hosts))
    assert evaluation.cost_per_call == pytest.approx(latency_us)
    assert evaluation.max_load_ratio == pytest.approx(max_load_ratio)


@pytest.mark.parametrize(("routing", "violations"), [(Routing.ANY, 2), (Routing.ZONE, 0), (Routing.NODE, 0)])
def test_only_replicas_that_may_answer_violate_a_limit(routing: Routing, violations: int) -> None:
    """Callers and callees in both zones: with any routing, two of four pairs are far. Without a near callee, all four are."""
    problem = make_problem([0, 1], [2, 2], (0, 1, routing), limit_us=FAR_US / 2)
    assert evaluate(problem, make_hosts(0, 1, 0, 1)).violations == violations
    assert evaluate(problem, make_hosts(0, 0, 1, 1)).violations == 4
