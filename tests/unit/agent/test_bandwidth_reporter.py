"""A change of a limit's verdict sends one event about its pod."""

from __future__ import annotations

from itertools import zip_longest
from unittest.mock import Mock

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import LimitSpec, PodBandwidthSpec
from agent.bandwidth.reporter import LimitReporter
from agent.bandwidth.state import LimitStatus, Verdict

POD = PodBandwidthSpec(
    namespace="default",
    name="p",
    uid="u",
    limits={"ingress": LimitSpec(10**7)},
    created_at_s=1.7e9,
    mismatch="scheduled for less",
)
NEW_POD = msgspec.structs.replace(POD, created_at_s=3e10)
"""Created in the future: it stays new however long the tests before it take."""


@pytest.mark.parametrize(
    ("pod", "verdicts", "rates_bps", "reasons"),
    [
        pytest.param(POD, ["missing", "missing"], [], [], id="no event about a pod from before the agent's start"),
        pytest.param(NEW_POD, ["missing", "missing"], [], ["BandwidthMissing", "BandwidthMismatch"], id="a new pod"),
        pytest.param(
            POD,
            ["missing", "enforced", "enforced", None, "enforced", "exceeded", None, "exceeded"],
            [],
            ["BandwidthEnforced", "BandwidthExceeded"],
            id="one event per change, also after a time without a verdict",
        ),
        pytest.param(
            POD, ["burst-overflow", "burst-overflow"], [10**7, 2 * 10**7], [], id="another limit with the same verdict"
        ),
    ],
)
def test_a_change_of_verdict_sends_one_event(
    pod: PodBandwidthSpec, verdicts: list[Verdict | None], rates_bps: list[int], reasons: list[str]
) -> None:
    recorder = Mock()
    reporter = LimitReporter(recorder, CollectorRegistry())
    for verdict, rate_bps in zip_longest(verdicts, rates_bps):
        status = verdict and LimitStatus(pod=pod, direction="ingress", verdict=verdict, wanted_bps=rate_bps)
        reporter.report([status] if status else [], [pod], {})
    assert [call.args[2] for call in recorder.record.call_args_list] == reasons
