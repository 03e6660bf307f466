"""Events about limits."""

from __future__ import annotations

from itertools import zip_longest

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import LimitSpec, PodBandwidthSpec
from agent.bandwidth.reporter import LimitReporter
from agent.bandwidth.state import LimitStatus, Verdict
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.events import EventRecorder

POD = PodBandwidthSpec(
    namespace="default",
    name="p",
    uid="u",
    limits={"ingress": LimitSpec(10**7)},
    created_at_s=1.7e9,
    mismatch="scheduled for less",
)


class RecordingEventRecorder(EventRecorder):
    """Records the reasons of events, and sends none."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, component="test", instance="n1", registry=CollectorRegistry())
        self.reasons: list[str] = []

    def record_warning(self, *arguments: object, **_: object) -> None:
        self.reasons.append(str(arguments[1]))

    record_normal = record_warning


# In the future: it stays new however long the other tests before it take.
NEW_POD = msgspec.structs.replace(POD, created_at_s=3e10)


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
async def test_a_change_of_verdict_sends_one_event(
    pod: PodBandwidthSpec, verdicts: list[Verdict | None], rates_bps: list[int], reasons: list[str]
) -> None:
    async with Client(ClusterConfig(server="http://127.0.0.1:1")) as client:
        events = RecordingEventRecorder(client)
        reporter = LimitReporter(events, CollectorRegistry())
        for verdict, rate_bps in zip_longest(verdicts, rates_bps):
            status = verdict and LimitStatus(pod=pod, direction="ingress", verdict=verdict, wanted_bps=rate_bps)
            reporter.report([status] if status else [], [pod], {})
        assert events.reasons == reasons
