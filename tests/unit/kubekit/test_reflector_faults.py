"""A reflector's store survives faults of lists and watches, and malformed objects."""

from __future__ import annotations

import asyncio

import pytest

from kubekit.client import Client
from kubekit.wire import CONFIGMAPS
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi, run_reflector, run_watch


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(CONFIGMAPS)


@pytest.mark.parametrize("is_in_watch", [False, True])
async def test_an_expired_version_causes_a_relist_that_reports_deletions(api: SimulatedApi, is_in_watch: bool) -> None:
    for name in ("kept", "changed", "deleted"):
        api.put(name, data={"v": "1"})
    async with run_watch(api) as running:
        running.changes.clear()
        api.delete("deleted", event=False)
        api.put("changed", event=False, data={"v": "2"})
        api.put("new", event=False, data={"v": "1"})
        if is_in_watch:
            api.send_event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        else:
            api.end_watches(next_status=410)
        await poll_until(lambda: "new" in running.values)
        assert sorted(running.changes) == [("changed", "changed"), ("deleted", "deleted"), ("new", "added")]
        assert running.values == {"kept": "1", "changed": "2", "new": "1"}


@pytest.mark.parametrize("is_silent", [False, True], ids=["broken", "silent"])
async def test_a_broken_or_silent_watch_is_continued_from_the_last_event(
    api: SimulatedApi, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    if is_silent:
        monkeypatch.setitem(Client.watch.__wrapped__.__kwdefaults__, "max_silence_s", 0.1)  # type: ignore[attr-defined]
    async with run_watch(api) as running:
        version = api.put("a", data={"v": "1"})["metadata"]["resourceVersion"]
        await poll_until(lambda: running.values == {"a": "1"})
        if not is_silent:
            api.end_watches(next_status=500)
        await poll_until(lambda: api.count_requests(f"watch=true&resourceVersion={version}") >= 2)
        assert api.count_requests("limit=") == 1, "no second list"


async def test_half_a_line_ends_the_watch_and_the_store_continues(api: SimulatedApi) -> None:
    async with run_watch(api) as running:
        api.send_line(b'{"type": "ADDED", "obj\n')
        await poll_until(lambda: api.count_requests("watch=true") == 2 and api.watch_count == 2)
        api.put("a", data={"v": "1"})
        await poll_until(lambda: running.values == {"a": "1"})


async def test_a_bookmark_moves_the_version_without_an_object_unless_it_is_malformed(api: SimulatedApi) -> None:
    async with run_watch(api) as running:
        api.send_event("BOOKMARK", {"metadata": {"resourceVersion": "4711"}})
        api.send_event("BOOKMARK", {"metadata": {"resourceVersion": 7}})
        api.end_watches()
        await poll_until(lambda: api.count_requests("resourceVersion=4711") == 1)
        assert running.values == {}
        assert running.changes == []


async def test_failed_lists_back_off(api: SimulatedApi) -> None:
    api.fail_lists += [403] * 50
    async with run_reflector(api) as running:
        await poll_until(lambda: api.count_requests("GET") >= 1)
        await asyncio.sleep(1.0)
        assert not running.reflector.synced.is_set()
        assert api.count_requests("GET") <= 4


async def test_watches_that_end_at_once_back_off(api: SimulatedApi) -> None:
    clock = asyncio.get_running_loop().time
    async with run_reflector(api):
        end = clock() + 1.0
        while clock() < end:
            api.end_watches()
            await asyncio.sleep(0.01)
        assert api.count_requests("watch=true") <= 5


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
        assert ("a", "deleted") not in running.changes
        api.put("a", data={"v": "3"})
        await poll_until(lambda: running.values == {"a": "3"})
        assert running.reflector.decode_error_by_key == {}
        api.put("a", data=7)
        api.delete("a")
        await poll_until(lambda: running.values == {})
        assert running.changes[-1] == ("a", "deleted")
        assert running.reflector.decode_error_by_key == {}
