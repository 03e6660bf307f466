"""Events are sent in the background, repeated events as a series, and lost events are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.events import LOSS_CAUSES, EventRecorder, ObjectReference
from kubekit.wire import EVENTS
from lab.polling import poll_until
from tests.support.tasks import running_tasks
from tests.unit.kubekit.simulated_api import SimulatedApi, run_server_with_client

POD_NAME = "a" * 199 + "." + "b" * 50
"""So long that a part of it, which must not end with a dot, begins the names of events."""
POD = ObjectReference("v1", "Pod", POD_NAME, "ns", "uid-1")
NEXT_WRITE_S = 61
"""A repeated event is written at most once a minute."""


class Recorder(EventRecorder):
    """A recorder with its metrics, and a clock that the test advances."""

    def __init__(self, client: Client, max_pending: int = 100) -> None:
        self.now_s, self.metrics = 1000.0, CollectorRegistry()
        super().__init__(
            client,
            component="netaware",
            instance="n1",
            registry=self.metrics,
            clock=lambda: self.now_s,
            max_pending=max_pending,
        )

    def count_lost_events(self) -> dict[str, float]:
        """Number of lost events by cause; only causes with lost events."""
        count_by_cause = {
            cause: self.metrics.get_sample_value("netaware_events_lost_total", {"cause": cause})
            for cause in LOSS_CAUSES
        }
        assert None not in count_by_cause.values(), "rate() misses the first increment of a counter not exported from 0"
        return {cause: count for cause, count in count_by_cause.items() if count}


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(EVENTS)


@asynccontextmanager
async def run_recorder(api: SimulatedApi) -> AsyncIterator[Recorder]:
    async with api.running() as config, Client(config) as client:
        recorder = Recorder(client)
        async with running_tasks(recorder.run()):
            yield recorder


async def test_a_repeated_event_increases_the_count_of_the_first_one(api: SimulatedApi) -> None:
    async with run_recorder(api) as recorder:
        recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
        await poll_until(lambda: api.objects)
        recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
        recorder.now_s += NEXT_WRITE_S
        recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
        await poll_until(lambda: api.count_requests("PATCH"))

    (event,) = api.objects.values()
    pod_reference = {"apiVersion": "v1", "kind": "Pod", "name": POD_NAME, "namespace": "ns", "uid": "uid-1"}
    assert event["regarding"] == pod_reference
    assert ".." not in event["metadata"]["name"]
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "LimitNotEnforced", "no TBF on veth1")
    assert event["series"]["count"] == 3
    assert api.count_requests("PATCH") == 1


async def test_an_expired_event_is_created_again_at_once(api: SimulatedApi) -> None:
    async with run_recorder(api) as recorder:
        for _ in range(3):
            recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
            await poll_until(lambda: api.objects)
            api.objects.clear()  # as an API server deletes events after an hour
            recorder.now_s += 7200
    assert api.count_requests("POST") == 3


async def test_a_repeating_event_stays_in_the_cache(api: SimulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubekit.events._MAX_REMEMBERED_EVENTS", 2)
    async with run_recorder(api) as recorder:
        for note in ("a", "b", "a", "c"):
            recorder.record("Normal", POD, "Placed", note)
        await poll_until(lambda: len(api.objects) == 3)
        recorder.now_s += NEXT_WRITE_S
        recorder.record("Normal", POD, "Placed", "a")
        await poll_until(lambda: api.count_requests("PATCH") == 1 or len(api.objects) > 3)
    assert len(api.objects) == 3


async def test_lost_events_are_counted_and_later_events_are_sent(api: SimulatedApi) -> None:
    async with run_recorder(api) as recorder:
        assert recorder.count_lost_events() == {}
        api.fail_writes = [403]
        recorder.record("Normal", POD, "A", "refused")
        await poll_until(lambda: recorder.count_lost_events() == {"refused": 1})
        recorder.record("Normal", POD, "B", "accepted")
        await poll_until(lambda: api.objects)
    assert [event["reason"] for event in api.objects.values()] == ["B"]


async def test_an_event_is_not_lost_if_only_the_response_is_malformed() -> None:
    requests: list[web.Request] = []

    async def respond_with_a_list(request: web.Request) -> web.Response:
        requests.append(request)
        return web.Response(text="[]")

    async with run_server_with_client(respond_with_a_list) as client:
        recorder = Recorder(client)
        async with running_tasks(recorder.run()):
            for reason in ("A", "B"):
                recorder.record("Normal", POD, reason, "note")
            await poll_until(lambda: len(requests) == 2)
    assert recorder.count_lost_events() == {}


async def test_a_full_queue_drops_events_and_counts_them() -> None:
    async with Client(ClusterConfig("http://127.0.0.1:9")) as client:
        recorder = Recorder(client, max_pending=2)
        for number in range(5):
            recorder.record("Normal", POD, "R", f"note {number}")
    assert recorder.count_lost_events() == {"queue-full": 3}
