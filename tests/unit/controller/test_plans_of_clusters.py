"""Plans of clusters as API servers list them, compared with CP-SAT; `make bench ARGS=clusters` compares more."""

from __future__ import annotations

import pytest

from tests.unit.controller.clusters import draw_objects
from tests.unit.controller.oracle import BrokenRuleError, evaluate
from tests.unit.controller.oracle_cluster import OracleCluster
from tests.unit.controller.plan_comparison import compare_with_best, draw_objects_that_fit, plan_from_file

pytestmark = pytest.mark.solver

SEEDS = (0, 1, 2, 4, 8, 106, 149)
"""The first cluster of each style, and four clusters of former defects: a limit that a whole group crosses at once, and spread
constraints that counted terminating pods, or nodes that the pod may not use.
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_as_good_as_those_of_cp_sat_and_cost_little_more(seed: int) -> None:
    comparison = compare_with_best(seed, seconds_per_goal=20.0)
    assert comparison.matches_on_limits, comparison
    assert comparison.reported_violations == comparison.our_value.violations, (
        "the plan counts violations as the oracle does"
    )
    assert comparison.style == "spread" or comparison.cost_ratio <= 1.15, comparison


@pytest.mark.parametrize("seed", [1, 17, 33])
def test_every_pod_is_placed_if_cp_sat_can_place_them_all(seed: int) -> None:
    """Pods that CP-SAT cannot place are removed first; each of these clusters has some."""
    assert len(draw_objects_that_fit(seed)) < len(draw_objects(seed))
    comparison = compare_with_best(seed, seconds_per_goal=20.0, only_fitting=True)
    assert comparison.our_value.unplaced == 0
    assert comparison.matches_on_limits, comparison


def test_the_oracle_refuses_placements_that_kubernetes_refuses() -> None:
    objects = draw_objects(0)
    cluster, placements = OracleCluster(objects), dict(plan_from_file(objects).placements)
    assert evaluate(cluster, placements).unplaced == len(cluster.waiting_pods) - len(placements)
    refusals = 0
    for key in placements:
        for node in cluster.host_index_by_name:
            try:
                evaluate(cluster, {**placements, key: node})
            except BrokenRuleError:
                refusals += 1
    assert refusals > len(placements)
