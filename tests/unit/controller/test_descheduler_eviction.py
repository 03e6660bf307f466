"""An eviction: whether its move still applies, and what the API server's answer means."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import pytest

from controller.descheduler.evict import evict, outdated_reason
from controller.descheduler.reporting import DeschedulerReporter
from kubekit.errors import ApiError, KubekitError, UnreachableError
from tests.support.descheduler_builders import Move, make_host, make_pod_info

MOVE = Move("default/p", "uid-default-p", "default/Deployment/w", "n", "m", "LowNodeLoad", "r")


class EvictionRecorder:
    """A client that records evictions, and then raises the error, if one is given."""

    def __init__(self, error: KubekitError | None = None) -> None:
        self._error = error
        self.evictions: list[tuple[str, str, str, bool]] = []

    async def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        self.evictions.append((namespace, name, uid, dry_run))
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (None, "evicted", ""),
        (ApiError(429, "TooManyRequests", "budget", causes=("DisruptionBudget",)), "disruption-budget", "was refused"),
        (ApiError(429, "TooManyRequests", "busy", retry_after_s=7), "throttled", "failed"),
        (ApiError(503, "ServiceUnavailable", ""), "throttled", "failed"),
        (ApiError(404, "NotFound", ""), "gone", ""),
        (ApiError(409, "Conflict", "the UID in the precondition does not match"), "gone", ""),
        (ApiError(403, "Forbidden", "no"), "forbidden", "was refused"),
        (ApiError(500, "InternalError", "This pod has more than one PodDisruptionBudget"), "refused", "was refused"),
        # The pod may have been evicted.
        (UnreachableError("no answer"), "unknown", "may have failed"),
    ],
)
async def test_the_api_servers_answer_decides_the_result_and_the_event_of_an_eviction(
    error: KubekitError | None, kind: str, outcome: str
) -> None:
    client, recorder = EvictionRecorder(error), Mock()

    result = await evict(cast("Any", client), MOVE, dry_run=False)
    dry_run_result = await evict(cast("Any", client), MOVE, dry_run=True)
    DeschedulerReporter(recorder).report_eviction(MOVE, dry_run_result)

    assert result.kind == kind
    assert dry_run_result.kind == (kind if error else "dry-run")
    assert result.stops_evictions == outcome.endswith("failed")
    assert client.evictions == [("default", "p", "uid-default-p", dry_run) for dry_run in (False, True)]
    reason = "EvictionFailed" if result.stops_evictions else "EvictionRefused"
    note = f'Eviction from node "n" for the reason "r" {outcome}: {result.message}'
    events = [call.args[2:] for call in recorder.record.call_args_list]
    assert events == ([(reason, note)] if outcome else [])


@pytest.mark.parametrize(("unschedulable", "ready"), [(True, True), (False, False)])
def test_a_move_is_outdated_if_its_target_takes_no_more_pods(unschedulable: bool, ready: bool) -> None:
    pods, nodes = {"default/p": make_pod_info("p", "n")}, {"n": make_host("n"), "m": make_host("m")}
    assert outdated_reason(MOVE, pods, nodes) == ""
    nodes["m"] = make_host("m", unschedulable=unschedulable, ready=ready)
    assert outdated_reason(MOVE, pods, nodes) == "node m, its target, takes no more pods"
