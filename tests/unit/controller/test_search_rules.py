"""The search keeps required and preferred rules about other pods: spread, affinity and anti-affinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.cluster.services import Routing
from controller.scheduler.placement.problem import COUNTED, OWNER, DomainRule, RuleKind
from controller.scheduler.placement.solve import solve
from tests.unit.controller.search_problems import make_problem

BOTH = COUNTED | OWNER
ZONES, HOSTS = [0, 0, 1, 1], [0, 1, 2, 3]
ONLY_FIRST_ZONE = {"allowed": np.array([[True, True, False, False]])}


def make_rule(kind: RuleKind, domain_of: list[int], roles: dict[int, int], **changes: object) -> DomainRule:
    """A rule about domains of hosts; ``roles`` says by workload whether its pods have the rule, or count for it."""
    domain_count = max(domain_of) + 1
    no_pods = np.zeros(domain_count, np.int64)
    rule = DomainRule(kind, roles, np.array(domain_of, np.int64), no_pods, no_pods, np.ones(domain_count, np.bool_))
    return msgspec.structs.replace(rule, **changes)


def list_zones(hosts: list[int]) -> list[int]:
    """Zones of placed replicas, sorted."""
    return sorted(ZONES[host] for host in hosts if host >= 0)


@pytest.mark.parametrize(
    ("replicas", "rule", "changes", "holds"),
    [
        pytest.param(
            [4], make_rule(RuleKind.SPREAD, ZONES, {0: BOTH}), {},
            lambda hosts: list_zones(hosts) == [0, 0, 1, 1],
            id="two replicas in each zone",
        ),
        pytest.param(
            [2], make_rule(RuleKind.SPREAD, ZONES, {0: OWNER}, bound_counted=np.array([2, 0])), {},
            lambda hosts: list_zones(hosts) == [1, 1],
            id="bound pods count",
        ),
        pytest.param(
            [4], make_rule(RuleKind.SPREAD, ZONES, {0: BOTH}, lacks_domains=True), {},
            lambda hosts: hosts.count(-1) == 2,
            id="missing domains count as empty",
        ),
        pytest.param(
            [4], make_rule(RuleKind.SPREAD, ZONES, {0: BOTH}), ONLY_FIRST_ZONE,
            lambda hosts: hosts.count(-1) == 3,
            id="a zone that is not allowed stays empty and counts",
        ),
        pytest.param(
            [4], make_rule(RuleKind.SPREAD, ZONES, {0: BOTH}, counts_for_minimum=np.array([True, False])), ONLY_FIRST_ZONE,
            lambda hosts: -1 not in hosts,
            id="an ineligible domain does not count",
        ),
        pytest.param(
            [5], make_rule(RuleKind.ANTI_AFFINITY, HOSTS, {0: BOTH}), {},
            lambda hosts: sorted(hosts) == [-1, *HOSTS],
            id="one replica on each host",
        ),
        pytest.param(
            [1, 3], make_rule(RuleKind.ANTI_AFFINITY, ZONES, {0: OWNER, 1: COUNTED}), {},
            lambda hosts: set(list_zones(hosts[1:])) == {1 - ZONES[hosts[0]]},
            id="the other workload in the other zone",
        ),
        pytest.param(
            [2, 1], make_rule(RuleKind.AFFINITY, HOSTS, {0: OWNER, 1: COUNTED}), {"free_cpu": 2},
            lambda hosts: sorted(hosts[:2]) == [-1, hosts[2]],
            id="one replica beside the other workload, where there is capacity for two",
        ),
        pytest.param(
            [4], make_rule(RuleKind.PREFERENCE, HOSTS, {0: BOTH}, price=1.0), {},
            lambda hosts: sorted(hosts) == HOSTS,
            id="preferred anti-affinity",
        ),
    ],
)  # fmt: skip
def test_a_rule_about_other_pods_holds(
    replicas: list[int], rule: DomainRule, changes: dict[str, Any], holds: Callable[[list[int]], bool]
) -> None:
    """On two hosts in each of two zones; -1 is the host of an unplaced replica."""
    hosts = solve(make_problem(ZONES, replicas, domain_rules=(rule,), **changes)).tolist()
    assert holds(hosts), hosts


def test_the_target_of_an_affinity_moves_to_the_zone_of_its_owner() -> None:
    """The owner may only be in zone 1, and must be in the zone of its target. Calls attract the target to zone 0."""
    allowed = np.array([[True, True, True, True], [False, False, True, True], [True, True, False, False]])
    problem = make_problem(
        ZONES,
        [1, 1, 3],
        (0, 2, Routing.ANY),
        allowed=allowed,
        row_of=np.array([0, 1, 2]),
        domain_rules=(make_rule(RuleKind.AFFINITY, ZONES, {1: OWNER, 0: COUNTED}),),
        free_cpu=2,
    )
    hosts = solve(problem).tolist()
    assert -1 not in hosts
    assert list_zones(hosts[:2]) == [1, 1]
