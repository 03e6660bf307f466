"""NodeResourcesAllocatable prefers small or large nodes, as docs/contracts.md says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.resource_requests import parse_amounts
from controller.scheduler.config import AllocatableArgs, ResourceWeight
from controller.scheduler.rules import normalise_allocatable_score, raw_allocatable_score


def normalise_all(raw_scores: list[int]) -> list[int]:
    low, high = min(raw_scores, default=0), max(raw_scores, default=0)
    return [normalise_allocatable_score(score, low, high) for score in raw_scores]


@pytest.mark.parametrize(("mode", "scores"), [("Least", [100, 0]), ("Most", [0, 100])])
def test_allocatable_prefers_small_or_large_nodes(mode: Any, scores: list[int]) -> None:
    """Seed 002 of the contract: nodes of 10 and 200."""
    args = AllocatableArgs(mode=mode)
    amounts = [parse_amounts({"cpu": f"{size}", "memory": f"{size}Gi"}) for size in (10, 200)]
    assert normalise_all([raw_allocatable_score(of_node, args) for of_node in amounts]) == scores


def test_raw_scores_are_truncated_toward_zero_and_absent_resources_count_as_0() -> None:
    args = AllocatableArgs(resources=(ResourceWeight(name="a", weight=2), ResourceWeight(name="b", weight=1)))
    assert raw_allocatable_score({"a": 5}, args) == -3  # -(2 * 5 + 1 * 0) / (2 + 1), and not -4
    assert raw_allocatable_score({"a": 5}, msgspec.structs.replace(args, mode="Most")) == 3
    assert raw_allocatable_score({}, args) == 0


def test_cpu_is_scored_in_thousandths() -> None:
    args = AllocatableArgs(mode="Most", resources=(ResourceWeight(name="cpu", weight=1),))
    assert raw_allocatable_score(parse_amounts({"cpu": "500m"}), args) == 500


@pytest.mark.parametrize(("raw", "normalised"), [([4, 4], [0, 0]), ([0, 1, 3], [0, 33, 100]), ([], [])])
def test_scores_are_normalised_to_0_to_100(raw: list[int], normalised: list[int]) -> None:
    assert normalise_all(raw) == normalised
