"""Events are sent in the background, repeated events as a series, and lost events are counted."""

from __future__ import annotations

import asyncio
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
from tests.unit.kubekit.simulated_api import SimulatedApi, connected

POD = ObjectReference("v1", "Pod", "web-1", "ns", "uid-1")


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(EVENTS)


@asynccontextmanager
async def running_recorder(api: SimulatedApi) -> AsyncIterator[tuple[EventRecorder, list[float], CollectorRegistry]]:
    now, registry = [1000.0], CollectorRegistry()
    async with api.running() as config, Client(config) as client:
        recorder = EventRecorder(client, component="netaware", instance="n1", registry=registry, clock=lambda: now[0])
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder, now, registry
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def lost_counts(registry: CollectorRegistry) -> dict[str, float]:
    """Number of lost events by cause; only causes with lost events."""
    values = {cause: registry.get_sample_value("netaware_events_lost_total", {"cause": cause}) for cause in LOSS_CAUSES}
    assert None not in values.values(), "rate() misses the first increment of a counter that is not exported from 0"
    return {cause: value for cause, value in values.items() if value}


async def test_a_repeated_event_increases_the_count_of_the_first_one(api: SimulatedApi) -> None:
    async with running_recorder(api) as (recorder, now, _):
        recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
        await poll_until(lambda: api.objects)
        recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
        now[0] += 61
        recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
        await poll_until(lambda: api.count("PATCH"))
    (event,) = api.objects.values()
    about = {"apiVersion": "v1", "kind": "Pod", "name": "web-1", "namespace": "ns", "uid": "uid-1"}
    assert event["regarding"] == about
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "LimitNotEnforced", "no TBF on veth1")
    assert (event["series"]["count"], api.count("PATCH")) == (3, 1)


async def test_an_event_of_an_object_with_a_long_name_has_a_valid_name(api: SimulatedApi) -> None:
    async with running_recorder(api) as (recorder, _, _):
        recorder.record(
            "Normal", ObjectReference("v1", "Pod", "a" * 199 + "." + "b" * 50, "ns", "uid-1"), "Placed", "by the plan"
        )
        await poll_until(lambda: api.objects)
    assert not any(".." in name for name in api.objects)


async def test_an_expired_event_is_created_again_at_once(api: SimulatedApi) -> None:
    async with running_recorder(api) as (recorder, now, _):
        for _ in range(3):
            recorder.record("Warning", POD, "LimitNotEnforced", "no TBF on veth1")
            await poll_until(lambda: api.objects)
            api.objects.clear()
            now[0] += 7200


async def test_an_event_that_repeats_is_not_evicted_from_the_cache(
    api: SimulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubekit.events._MAX_REMEMBERED_EVENTS", 2)
    async with running_recorder(api) as (recorder, now, _):
        for note in ("a", "b", "a", "c"):
            recorder.record("Normal", POD, "Placed", note)
        await poll_until(lambda: len(api.objects) == 3)
        now[0] += 61
        recorder.record("Normal", POD, "Placed", "a")
        await poll_until(lambda: api.count("PATCH") == 1 or len(api.objects) > 3)
    assert len(api.objects) == 3


async def test_lost_events_are_counted_and_later_events_are_sent(api: SimulatedApi) -> None:
    async with running_recorder(api) as (recorder, _, registry):
        assert lost_counts(registry) == {}
        api.fail_writes = [403]
        recorder.record("Normal", POD, "A", "first")
        await poll_until(lambda: lost_counts(registry) == {"refused": 1})
        recorder.record("Normal", POD, "B", "second")
        await poll_until(lambda: api.objects)
    assert [event["reason"] for event in api.objects.values()] == ["B"]


async def test_an_event_is_not_lost_if_only_the_response_is_malformed() -> None:
    requests: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(request.method)
        return web.Response(text="[]")

    registry = CollectorRegistry()
    async with connected(answer) as client:
        recorder = EventRecorder(client, component="netaware", instance="n1", registry=registry)
        task = asyncio.create_task(recorder.run())
        for reason in ("A", "B"):
            recorder.record("Normal", POD, reason, "note")
        await poll_until(lambda: len(requests) == 2)
        task.cancel()
    assert lost_counts(registry) == {}


async def test_a_full_queue_drops_the_oldest() -> None:
    registry = CollectorRegistry()
    async with Client(ClusterConfig("http://127.0.0.1:9")) as client:
        recorder = EventRecorder(client, component="netaware", instance="n1", registry=registry, max_pending=2)
        for i in range(5):
            recorder.record("Normal", POD, "R", f"note {i}")
    assert lost_counts(registry) == {"queue-full": 3}
