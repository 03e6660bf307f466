"""A reflector's store follows a simulated API server over HTTP, also through faults of the watch protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote

import pytest

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.reflector import Reflector
from kubekit.stores import FilteredStore
from kubekit.waiting import TIME_SLICE_S
from kubekit.wire import CONFIGMAPS, ConfigMap, ObjectMeta
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi

Change = tuple[str, bool, bool]


class RunningReflector:
    """A running reflector, and the changes that it reported: the key, and whether there were an old and a new object."""

    def __init__(self, api: SimulatedApi, reflector: Reflector[ConfigMap]) -> None:
        self.api, self.reflector = api, reflector
        self.changes: list[Change] = []
        reflector.subscribe(lambda key, old, new: self.changes.append((key, old is not None, new is not None)))

    @property
    def data(self) -> dict[str, str]:
        """Name -> value of each stored object."""
        return {key: (item.data or {}).get("v", "") for key, item in self.reflector.items.items()}


@asynccontextmanager
async def running_reflector(api: SimulatedApi, **selectors: str) -> AsyncIterator[RunningReflector]:
    async with api.running() as config, Client(config) as client:
        reflector: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns", **selectors)
        store = RunningReflector(api, reflector)
        task = asyncio.create_task(reflector.run())
        try:
            yield store
            assert not task.done(), "the store ended by itself"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running_watch(api: SimulatedApi) -> AsyncIterator[RunningReflector]:
    """A reflector with an open watch."""
    async with running_reflector(api) as store:
        await poll_until(lambda: api.watch_count == 1)
        yield store


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(CONFIGMAPS)


async def test_a_reflector_lists_all_pages_and_then_applies_changes(api: SimulatedApi) -> None:
    api.page_size = 2
    for i in range(5):
        api.put(f"c{i}", data={"v": str(i)})
    async with running_reflector(api) as store:
        await poll_until(store.reflector.synced.is_set)
        assert store.data == {f"c{i}": str(i) for i in range(5)}
        assert api.count("continue=") == 2
        await poll_until(lambda: api.watch_count == 1)
        api.put("c0", data={"v": "new"})
        api.drop("c1")
        api.put("c9", data={"v": "9"})
        await poll_until(lambda: "c9" in store.data)
        assert store.data == {"c0": "new", "c2": "2", "c3": "3", "c4": "4", "c9": "9"}
        assert store.changes[5:] == [("c0", True, True), ("c1", True, False), ("c9", False, True)]


@pytest.mark.parametrize("is_in_watch", [False, True])
async def test_an_expired_version_causes_a_relist_that_reports_deletions(api: SimulatedApi, is_in_watch: bool) -> None:
    for name in ("kept", "changed", "deleted"):
        api.put(name, data={"v": "1"})
    async with running_watch(api) as store:
        store.changes.clear()
        api.drop("deleted", event=False)
        api.put("changed", event=False, data={"v": "2"})
        api.put("new", event=False, data={"v": "1"})
        if is_in_watch:
            api.send_event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        else:
            api.fail_watches.append(410)
            api.end_watches()
        await poll_until(lambda: "new" in store.data)
        assert sorted(store.changes) == [("changed", True, True), ("deleted", True, False), ("new", False, True)]
        assert store.data == {"kept": "1", "changed": "2", "new": "1"}


@pytest.mark.parametrize("streams", [True, False])
async def test_lists_are_streamed_if_supported_and_one_malformed_object_is_left_out(
    api: SimulatedApi, streams: bool
) -> None:
    api.streams_lists = streams
    api.put("good", data={"v": "1"})
    api.put("bad", data=["not", "a", "map"])
    async with running_reflector(api) as store:
        await poll_until(lambda: store.reflector.synced.is_set() and api.watch_count)
        assert store.data == {"good": "1"}
        assert list(store.reflector.decode_error_by_key) == ["bad"]
        assert api.count("limit=") == (0 if streams else 1)
        api.put("new", data={"v": "2"})
        await poll_until(lambda: store.data == {"good": "1", "new": "2"})
        api.drop("good", event=False)
        api.fail_watches.append(410)
        api.end_watches()
        await poll_until(lambda: store.data == {"new": "2"})


async def test_staleness_names_the_age_and_the_failure(api: SimulatedApi) -> None:
    async with running_reflector(api) as store:
        await poll_until(store.reflector.synced.is_set)
        store.reflector.last_contact_at_s -= 60
        assert store.reflector.staleness == "", "a quiet minute is normal"
        store.reflector.failure = "503"
        assert store.reflector.staleness == "store of configmaps is 60 s old (503)"


@pytest.mark.parametrize(
    ("selector", "is_cached"),
    [("metadata.name=n", True), ("spec.nodeName=n", True), ("spec.nodeName!=", False), ("", False)],
)
async def test_lists_of_one_name_or_node_come_from_the_watch_cache(
    api: SimulatedApi, selector: str, is_cached: bool
) -> None:
    async with running_reflector(api, field_selector=selector) as store:
        await poll_until(store.reflector.synced.is_set)
        assert api.count("resourceVersion=0") == is_cached


@pytest.mark.parametrize(("event", "data"), [("MODIFIED", {"a": "1"}), ("DELETED", {})])
async def test_an_object_repaired_or_deleted_during_a_streamed_list_is_not_malformed(
    api: SimulatedApi, event: str, data: dict[str, str]
) -> None:
    api.put("a", data=7)
    api.streams_lists = True
    api.events_during_lists = [
        {"type": event, "object": {"metadata": {"name": "a", "resourceVersion": "9"}, "data": {"v": "1"}}}
    ]
    async with running_reflector(api) as store:
        await poll_until(store.reflector.synced.is_set)
        assert (store.data, store.reflector.decode_error_by_key) == (data, {})


async def test_an_object_that_becomes_malformed_keeps_its_last_good_state_until_it_is_repaired_or_deleted(
    api: SimulatedApi,
) -> None:
    api.put("a", data={"v": "1"})
    async with running_watch(api) as store:
        api.put("a", data=7)
        await poll_until(lambda: "a" in store.reflector.decode_error_by_key)
        assert store.data == {"a": "1"}
        api.fail_watches.append(410)
        api.end_watches()
        await poll_until(lambda: api.count("limit=") == 2 and api.watch_count == 1)
        assert store.data == {"a": "1"}, "a relist keeps the last good state too"
        assert (("a", True, False)) not in store.changes
        api.put("a", data={"v": "3"})
        await poll_until(lambda: store.data == {"a": "3"})
        assert store.reflector.decode_error_by_key == {}
        api.put("a", data=7)
        api.drop("a")
        await poll_until(lambda: store.data == {})
        assert store.changes[-1] == ("a", True, False)
        assert store.reflector.decode_error_by_key == {}


async def test_a_bookmark_moves_the_version_without_an_object(api: SimulatedApi) -> None:
    async with running_watch(api) as store:
        api.send_event("BOOKMARK", {"metadata": {"resourceVersion": "4711"}})
        api.end_watches()
        await poll_until(lambda: api.count("resourceVersion=4711") == 1)
        assert store.data == {}
        assert store.changes == []


async def test_a_broken_watch_continues_from_the_last_event(api: SimulatedApi) -> None:
    async with running_watch(api) as store:
        version = api.put("a", data={"v": "1"})["metadata"]["resourceVersion"]
        await poll_until(lambda: store.data == {"a": "1"})
        api.fail_watches.append(500)
        api.end_watches()
        await poll_until(lambda: api.count(f"resourceVersion={version}") >= 2)
        assert api.count("limit=") == 1, "no second list"


async def test_each_run_begins_with_a_list(api: SimulatedApi) -> None:
    """A replica that leads again waits for a new list."""
    async with api.running() as config, Client(config) as client:
        reflector: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns")
        for version in ("1", "2"):
            api.put("a", event=False, data={"v": version})
            reflector.synced.clear()
            run = asyncio.create_task(reflector.run())
            await poll_until(reflector.synced.is_set, timeout_s=5)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            assert reflector.items["a"].data == {"v": version}


async def test_failed_lists_back_off(api: SimulatedApi) -> None:
    api.fail_lists += [403] * 50
    async with running_reflector(api) as store:
        await poll_until(lambda: api.count("GET") >= 1)
        await asyncio.sleep(1.0)
        assert not store.reflector.synced.is_set()
        assert api.count("GET") <= 4


async def test_watches_that_end_at_once_back_off(api: SimulatedApi) -> None:
    clock = asyncio.get_running_loop().time
    async with running_reflector(api):
        end = clock() + 1.0
        while clock() < end:
            api.end_watches()
            await asyncio.sleep(0.01)
        assert api.count("watch=true") <= 5


async def test_a_store_of_a_missing_crd_is_ready_and_listed_after_the_crd_is_created(api: SimulatedApi) -> None:
    api.fail_lists.append(404)
    api.put("a", data={"v": "1"})
    async with running_reflector(api) as store:
        store.reflector.last_contact_at_s -= 60
        async with asyncio.timeout(60):
            await store.reflector.ready.wait()
        assert (store.reflector.synced.is_set(), store.reflector.staleness) == (False, "")
        await poll_until(store.reflector.synced.is_set)
        assert store.data == {"a": "1"}


async def test_a_store_of_a_deleted_crd_is_empty(api: SimulatedApi) -> None:
    api.put("a", data={"v": "1"})
    async with running_watch(api) as store:
        api.drop("a", event=False)
        api.fail_watches.append(404)
        api.fail_lists += [404] * 3
        api.end_watches()
        await poll_until(lambda: store.data == {})
        assert store.changes[-1] == ("a", True, False)
        assert api.fail_lists, "the store is empty before the CRD is served again"


async def test_lines_longer_than_128_kilobytes_are_read(api: SimulatedApi) -> None:
    async with running_watch(api) as store:
        api.put("big", data={"v": "x" * 900_000})
        await poll_until(lambda: len(store.data.get("big", "")) == 900_000)


async def test_a_silent_watch_is_opened_again(api: SimulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Client.watch.__wrapped__.__kwdefaults__, "max_silence_s", 0.1)  # type: ignore[attr-defined]
    async with running_reflector(api) as store:
        version = api.put("a", data={"v": "1"})["metadata"]["resourceVersion"]
        await poll_until(lambda: store.data == {"a": "1"})
        await poll_until(lambda: api.count(f"watch=true&resourceVersion={version}") >= 2)
        assert api.count("limit=") == 1, "no second list"


async def test_a_malformed_bookmark_is_ignored(api: SimulatedApi) -> None:
    async with running_watch(api) as store:
        api.send_event("BOOKMARK", {"metadata": {"resourceVersion": 7}})
        api.put("a", data={"v": "1"})
        await poll_until(lambda: store.data == {"a": "1"})


async def test_half_a_line_ends_the_watch_and_the_store_continues(api: SimulatedApi) -> None:
    async with running_watch(api) as store:
        api._watches[0].put_nowait(b'{"type": "ADDED", "obj\n')
        await poll_until(lambda: api.count("watch=true") == 2 and api.watch_count == 2)
        api.put("a", data={"v": "1"})
        await poll_until(lambda: store.data == {"a": "1"})


async def test_selectors_are_sent_with_list_and_watch(api: SimulatedApi) -> None:
    async with running_reflector(api, label_selector="app=web", field_selector="metadata.name=a"):
        await poll_until(lambda: api.watch_count == 1)
        selectors = "labelSelector=app=web&fieldSelector=metadata.name=a"
        assert [unquote(request).count(selectors) for request in api.requests] == [1, 1], "one list and one watch"


async def test_a_transform_reduces_objects_and_equal_results_call_no_handler(api: SimulatedApi) -> None:
    for name, value in (("kept", "1"), ("unread", "")):
        api.put(name, data={"v": value, "note": "a"})
    changes: list[tuple[str, str | None, str | None]] = []
    async with api.running() as config, Client(config) as client:
        values: Reflector[str] = Reflector(
            client, CONFIGMAPS, ConfigMap, namespace="ns", transform=lambda item: (item.data or {}).get("v") or None
        )
        values.subscribe(lambda *change: changes.append(change))
        numbers: FilteredStore[int] = FilteredStore(values, lambda value: int(value) if value.isdigit() else None)
        task = asyncio.create_task(values.run())
        try:
            await poll_until(values.synced.is_set)
            assert (dict(values.items), dict(numbers.items)) == ({"kept": "1"}, {"kept": 1})
            await poll_until(lambda: api.watch_count == 1)
            api.put("kept", data={"v": "1", "note": "b"})
            api.put("unread", data={"v": "x"})
            await poll_until(lambda: "unread" in values.items)
            api.put("kept", data={"v": ""})
            await poll_until(lambda: "kept" not in values.items)
            assert changes == [("kept", None, "1"), ("unread", None, "x"), ("kept", "1", None)]
            assert (dict(numbers.items), numbers.synced.is_set()) == ({}, True)
            late_store: FilteredStore[str] = FilteredStore(values, lambda value: value)
            assert (dict(late_store.items), late_store.synced.is_set()) == ({"unread": "x"}, True)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def config_maps(numbers: range, version: str) -> dict[str, ConfigMap]:
    """Objects by key."""
    return {f"n/{i}": ConfigMap(metadata=ObjectMeta(f"{i}", "n", resource_version=version)) for i in numbers}


async def test_a_replacement_cancelled_between_objects_has_called_handlers_for_all_changes() -> None:
    store = Reflector(Client(ClusterConfig("http://127.0.0.1:1")), CONFIGMAPS, ConfigMap)
    reported: dict[str, ConfigMap] = {}

    def on_change(key: str, _: ConfigMap | None, new: ConfigMap | None) -> None:
        until = time.perf_counter() + 2 * TIME_SLICE_S
        while time.perf_counter() < until:
            pass
        if new is None:
            reported.pop(key)
        else:
            reported[key] = new

    store.subscribe(on_change)
    await store._replace(config_maps(range(3), "a"), {}, "")
    replacement = asyncio.create_task(store._replace(config_maps(range(1, 5), "b"), {}, ""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    replacement.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replacement
    assert dict(store.items) == reported
    assert "n/0" not in reported
    assert reported["n/2"].metadata.resource_version == "a", "the replacement was cancelled before this object"
    await store._replace(config_maps(range(1, 5), "b"), {}, "")
    assert dict(store.items) == reported == config_maps(range(1, 5), "b")
