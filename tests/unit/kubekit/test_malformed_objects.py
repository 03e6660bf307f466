"""A reflector leaves malformed objects out, but keeps the last good state of an object that becomes malformed."""

from __future__ import annotations

import pytest

from kubekit.wire import CONFIGMAPS
from lab.polling import poll_until
from tests.unit.kubekit.reflectors import run_reflector, run_watch
from tests.unit.kubekit.simulated_api import SimulatedApi


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(CONFIGMAPS)


@pytest.mark.parametrize(("event", "values"), [("MODIFIED", {"a": "1"}), ("DELETED", {})])
async def test_an_object_repaired_or_deleted_during_a_streamed_list_is_not_malformed(
    api: SimulatedApi, event: str, values: dict[str, str]
) -> None:
    api.put("a", data=7)
    api.streams_lists = True
    api.events_during_lists = [
        {"type": event, "object": {"metadata": {"name": "a", "resourceVersion": "9"}, "data": {"v": "1"}}}
    ]
    async with run_reflector(api) as running:
        await poll_until(running.reflector.synced.is_set)
        assert running.values == values
        assert running.reflector.decode_error_by_key == {}


async def test_an_object_that_becomes_malformed_keeps_its_last_good_state_until_it_is_repaired_or_deleted(
    api: SimulatedApi,
) -> None:
    api.put("a", data={"v": "1"})
    async with run_watch(api) as running:
        api.put("a", data=7)
        await poll_until(lambda: "a" in running.reflector.decode_error_by_key)
        assert running.values == {"a": "1"}
        api.end_watches(next_status=410)
        await poll_until(lambda: api.count_requests("limit=") == 2 and api.watch_count == 1)
        assert running.values == {"a": "1"}, "a relist keeps the last good state too"
        assert ("a", True, False) not in running.changes
        api.put("a", data={"v": "3"})
        await poll_until(lambda: running.values == {"a": "3"})
        assert running.reflector.decode_error_by_key == {}
        api.put("a", data=7)
        api.delete("a")
        await poll_until(lambda: running.values == {})
        assert running.changes[-1] == ("a", True, False)
        assert running.reflector.decode_error_by_key == {}
