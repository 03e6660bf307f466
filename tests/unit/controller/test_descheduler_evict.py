"""Evictions: what the API server's answers mean, and moves that do not hold any more."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controller.descheduler.evict import evict, outdated_reason
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError, UnreachableError
from tests.support.descheduled import Move, node, pod


def move() -> Move:
    return Move("default/p", "uid-default-p", "default/Deployment/w", "n", "m", "LowNodeLoad", "r")


class Api:
    """In the place of a client: refuses evictions with an error, if one is given."""

    def __init__(self, error: KubekitError | None = None) -> None:
        self._error = error
        self.asked: list[Any] = []

    async def evict(self, *pod: str, dry_run: bool) -> None:
        self.asked.append((*pod, dry_run))
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "kind", "ends_round"),
    [
        (None, "evicted", False),
        (ApiError(429, "TooManyRequests", "budget", causes=("DisruptionBudget",)), "disruption-budget", False),
        (ApiError(429, "TooManyRequests", "busy", retry_after_s=7), "throttled", True),
        (ApiError(503, "ServiceUnavailable", ""), "throttled", True),
        (ApiError(404, "NotFound", ""), "gone", False),
        (ApiError(409, "Conflict", "the UID in the precondition does not match"), "gone", False),
        (ApiError(403, "Forbidden", "no"), "forbidden", False),
        (ApiError(500, "InternalError", "This pod has more than one PodDisruptionBudget"), "refused", False),
        # Neither done nor refused.
        (UnreachableError("no answer"), "unknown", True),
    ],
)
async def test_what_the_answers_mean(error: KubekitError | None, kind: str, *, ends_round: bool) -> None:
    api = Api(error)
    for dry_run in (False, True):
        result = await evict(cast("Client", api), move(), dry_run=dry_run)
        assert result.kind == ("dry-run" if dry_run and error is None else kind)
        assert result.ends_round == ends_round
    assert api.asked == [("default", "p", "uid-default-p", dry_run) for dry_run in (False, True)]


@pytest.mark.parametrize(("unschedulable", "ready"), [(True, True), (False, False)])
def test_a_move_whose_target_takes_no_pods_any_more_is_none(unschedulable: bool, ready: bool) -> None:
    pods, nodes = {"default/p": pod("p", "n")}, {"n": node("n"), "m": node("m")}
    assert outdated_reason(move(), pods, nodes) == ""
    nodes["m"] = node("m", unschedulable=unschedulable, ready=ready)
    assert outdated_reason(move(), pods, nodes) == "node m, its target, takes no more pods"
