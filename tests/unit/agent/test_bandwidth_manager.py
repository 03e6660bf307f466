"""What the bandwidth manager tells, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest

import msgspec
from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import LimitSpec, PodBandwidthSpec
from agent.bandwidth.manager import BandwidthManager
from agent.bandwidth.state import BandwidthPlan, LimitStatus, Verdict
from agent.config import AgentConfig
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.wire import PODS, Pod

POD = PodBandwidthSpec(
    namespace="default",
    name="p",
    uid="u",
    limits={"ingress": LimitSpec(10**7)},
    created=(datetime.now(UTC) - timedelta(days=1)).isoformat(),
    mismatch="scheduled for less",
)


class RecordedEvents(EventRecorder):
    """Keeps what it is asked to send."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, component="test", instance="n1", registry=CollectorRegistry())
        self.reasons: list[str] = []

    def normal(self, *what: object, **_: object) -> None:
        self.reasons.append(str(what[1]))

    def warning(self, *what: object, **_: object) -> None:
        self.reasons.append(str(what[1]))


async def tell(pod: PodBandwidthSpec, *verdicts: Verdict | None, wanted_bps: Sequence[int] = ()) -> list[str]:
    """Reasons of the events of an agent that finds these verdicts one after the other; None: the pod cannot be located."""
    async with Client(ClusterConfig(server="http://127.0.0.1:1")) as client:
        events, pods = RecordedEvents(client), Reflector(client, PODS, Pod)
        manager = BandwidthManager(client, AgentConfig(node="n1"), events, CollectorRegistry(), pods)
        for verdict, wanted in zip_longest(verdicts, wanted_bps):
            status = verdict and LimitStatus(pod=pod, direction="ingress", verdict=verdict, wanted_bps=wanted)
            manager.show(BandwidthPlan(statuses=(status,) if status else ()), (pod,))
        return events.reasons


async def test_an_agent_that_was_restarted_says_nothing_of_pods_that_were_there_before() -> None:
    assert await tell(POD, "missing", "missing") == []
    new = msgspec.structs.replace(POD, created=datetime.now(UTC).isoformat())
    assert await tell(new, "missing", "missing") == ["BandwidthMissing", "BandwidthMismatch"]


async def test_each_change_of_a_verdict_is_one_event_also_after_the_pod_was_out_of_sight() -> None:
    assert await tell(POD, "missing", "enforced", "enforced", None, "enforced", "exceeded", None, "exceeded") == [
        "BandwidthEnforced",
        "BandwidthExceeded",
    ]


async def test_another_limit_with_the_same_verdict_is_no_event() -> None:
    assert await tell(POD, "wrapped", "wrapped", wanted_bps=(10**7, 2 * 10**7)) == []
