"""Plans of clusters as API servers list them, compared with CP-SAT; `make bench ARGS=clusters` compares more."""

from __future__ import annotations

import pytest

from tests.unit.controller.clusters import random_objects
from tests.unit.controller.oracle import BrokenRuleError, OracleCluster
from tests.unit.controller.plan_comparison import compare, fitting_objects, plan_file

pytestmark = pytest.mark.solver

SEEDS = (0, 1, 2, 4, 8, 106, 149)
"""The first of each style, and four in which the plan was worse than need be, or against a rule: a limit that a whole group has to
cross at once, and spread constraints that counted pods which leave, or nodes that the pod may not use.
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_as_good_as_those_of_cp_sat_and_cost_little_more(seed: int) -> None:
    found = compare(seed, seconds=20.0)
    assert found.matches_on_limits, found
    assert found.violations == found.ours.violations, "the answer counts violations as the oracle does"
    assert found.style == "spread" or found.ratio <= 1.15, found


@pytest.mark.parametrize("seed", [1, 17, 33])
def test_every_pod_is_placed_if_cp_sat_can_place_them_all(seed: int) -> None:
    """Pods that CP-SAT cannot place are removed first; each of these clusters has some."""
    assert len(fitting_objects(seed)) < len(random_objects(seed))
    found = compare(seed, seconds=20.0, fitting=True)
    assert found.ours.unplaced == 0
    assert found.matches_on_limits, found


def test_the_oracle_refuses_placements_that_kubernetes_refuses() -> None:
    """Otherwise it would accept every placement."""
    objects = random_objects(0)
    world, placed = OracleCluster(objects), dict(plan_file(objects).placements)
    assert world.evaluate(placed).unplaced == len(world.waiting) - len(placed)
    refused = 0
    for key in placed:
        for node in world.index:
            try:
                world.evaluate({**placed, key: node})
            except BrokenRuleError:
                refused += 1
    assert refused > len(placed)
