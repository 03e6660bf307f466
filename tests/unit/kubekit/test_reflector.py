"""A reflector's store follows the objects of a simulated API server through faults, and reports each change."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import unquote

import pytest

from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.stores import FilteredStore
from kubekit.waiting import TIME_SLICE_S
from kubekit.wire import CONFIGMAPS, ConfigMap
from lab.polling import poll_until
from tests.support.tasks import running_tasks
from tests.unit.kubekit.simulated_api import SimulatedApi, run_reflector, run_watch


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(CONFIGMAPS)


def read_number(config_map: ConfigMap) -> int | None:
    value = (config_map.data or {}).get("v", "")
    return int(value) if value.isdigit() else None


async def test_a_reflector_lists_all_pages_and_then_applies_changes(api: SimulatedApi) -> None:
    api.page_size = 2
    for i in range(5):
        api.put(f"c{i}", data={"v": str(i)})
    async with run_reflector(api) as running:
        await poll_until(running.reflector.synced.is_set)
        assert running.values == {f"c{i}": str(i) for i in range(5)}
        assert api.count_requests("continue=") == 2
        await poll_until(lambda: api.watch_count == 1)
        api.put("c0", data={"v": "new"})
        api.delete("c1")
        api.put("c9", data={"v": "9"})
        await poll_until(lambda: "c9" in running.values)
        assert running.values == {"c0": "new", "c2": "2", "c3": "3", "c4": "4", "c9": "9"}
        assert running.changes[5:] == [("c0", "changed"), ("c1", "deleted"), ("c9", "added")]


@pytest.mark.parametrize("streams", [True, False])
async def test_lists_are_streamed_if_supported_without_malformed_objects(api: SimulatedApi, streams: bool) -> None:
    api.streams_lists = streams
    api.put("good", data={"v": "1"})
    api.put("bad", data=["not", "a", "map"])
    async with run_reflector(api) as running:
        await poll_until(lambda: running.reflector.synced.is_set() and api.watch_count)
        assert running.values == {"good": "1"}
        assert list(running.reflector.decode_error_by_key) == ["bad"]
        assert api.count_requests("limit=") == (0 if streams else 1)
        api.put("new", data={"v": "2"})
        await poll_until(lambda: running.values == {"good": "1", "new": "2"})
        api.delete("good", event=False)
        api.end_watches(next_status=410)
        await poll_until(lambda: running.values == {"new": "2"})


@pytest.mark.parametrize(
    ("selector", "is_cached"),
    [("metadata.name=n", True), ("spec.nodeName=n", True), ("spec.nodeName!=", False), ("", False)],
)
async def test_lists_of_one_name_or_node_use_the_watch_cache(api: SimulatedApi, selector: str, is_cached: bool) -> None:
    async with run_reflector(api, field_selector=selector) as running:
        await poll_until(running.reflector.synced.is_set)
        assert api.count_requests("resourceVersion=0") == is_cached


async def test_selectors_are_sent_with_list_and_watch(api: SimulatedApi) -> None:
    async with run_reflector(api, label_selector="app=web", field_selector="metadata.name=a"):
        await poll_until(lambda: api.watch_count == 1)
        selectors = "labelSelector=app=web&fieldSelector=metadata.name=a"
        assert [unquote(request).count(selectors) for request in api.requests] == [1, 1], "one list and one watch"


async def test_lines_longer_than_128_kilobytes_are_read(api: SimulatedApi) -> None:
    async with run_watch(api) as running:
        api.put("big", data={"v": "x" * 900_000})
        await poll_until(lambda: len(running.values.get("big", "")) == 900_000)


async def test_staleness_names_the_age_and_the_failure(api: SimulatedApi) -> None:
    async with run_reflector(api) as running:
        await poll_until(running.reflector.synced.is_set)
        running.reflector.last_contact_at_s -= 60
        assert running.reflector.staleness == "", "a quiet minute is normal"
        running.reflector.failure = "503"
        assert running.reflector.staleness == "store of configmaps is 60 s old (503)"


async def test_each_run_begins_with_a_list(api: SimulatedApi) -> None:
    """A replica that leads again waits for a new list."""
    async with api.running() as config, Client(config) as client:
        reflector: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns")
        for version in ("1", "2"):
            api.put("a", event=False, data={"v": version})
            reflector.synced.clear()
            async with running_tasks(reflector.run()):
                await poll_until(reflector.synced.is_set, timeout_s=5)
            assert reflector.items["a"].data == {"v": version}


async def test_a_store_of_a_missing_crd_is_ready_and_listed_after_the_crd_is_created(api: SimulatedApi) -> None:
    api.fail_lists.append(404)
    api.put("a", data={"v": "1"})
    async with run_reflector(api) as running:
        running.reflector.last_contact_at_s -= 60
        async with asyncio.timeout(60):
            await running.reflector.ready.wait()
        assert not running.reflector.synced.is_set()
        assert running.reflector.staleness == ""
        await poll_until(running.reflector.synced.is_set)
        assert running.values == {"a": "1"}


async def test_a_store_of_a_deleted_crd_is_empty(api: SimulatedApi) -> None:
    api.put("a", data={"v": "1"})
    async with run_watch(api) as running:
        api.delete("a", event=False)
        api.fail_lists += [404] * 3
        api.end_watches(next_status=404)
        await poll_until(lambda: running.values == {})
        assert running.changes[-1] == ("a", "deleted")
        assert api.fail_lists, "the store is empty before the CRD is served again"


async def test_a_transform_reduces_objects_and_equal_results_call_no_handler(api: SimulatedApi) -> None:
    api.put("kept", data={"v": "1", "note": "a"})
    api.put("ignored", data={"v": "", "note": "a"})
    changes: list[tuple[str, str | None, str | None]] = []
    async with api.running() as config, Client(config) as client:
        values: Reflector[str] = Reflector(
            client, CONFIGMAPS, ConfigMap, namespace="ns", transform=lambda item: (item.data or {}).get("v") or None
        )
        values.subscribe(lambda *change: changes.append(change))
        async with running_tasks(values.run()):
            await poll_until(lambda: values.synced.is_set() and api.watch_count == 1)
            assert values.items == {"kept": "1"}
            api.put("kept", data={"v": "1", "note": "b"})
            api.put("ignored", data={"v": "x"})
            await poll_until(lambda: "ignored" in values.items)
            api.put("kept", data={"v": ""})
            await poll_until(lambda: "kept" not in values.items)
    assert changes == [("kept", None, "1"), ("ignored", None, "x"), ("kept", "1", None)]


async def test_a_filtered_store_follows_a_store_also_if_it_is_made_later(api: SimulatedApi) -> None:
    api.put("number", data={"v": "1"})
    async with run_watch(api) as running:
        numbers: FilteredStore[int] = FilteredStore(running.reflector, read_number)
        assert numbers.items == {"number": 1}
        assert numbers.synced.is_set()
        api.put("later", data={"v": "2"})
        api.put("number", data={"v": "x"})
        await poll_until(lambda: running.values == {"number": "x", "later": "2"})
        assert numbers.items == {"later": 2}


async def test_a_list_cancelled_between_objects_has_reported_each_object_of_the_store(api: SimulatedApi) -> None:
    for name in ("a", "b", "c"):
        api.put(name)
    reported: dict[str, ConfigMap | None] = {}

    def report_slowly(key: str, _: ConfigMap | None, new: ConfigMap | None) -> None:
        reported[key] = new
        end_s = time.perf_counter() + 2 * TIME_SLICE_S  # the reflector yields after each object
        while time.perf_counter() < end_s:
            pass

    async with api.running() as config, Client(config) as client:
        reflector: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns")
        reflector.subscribe(report_slowly)
        async with running_tasks(reflector.run()):
            while not reported:
                await asyncio.sleep(0)
    assert reflector.items == reported
    assert len(reported) < len(api.objects)


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
    if is_silent:  # the timeout is a default of the function below the decorator
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
    new_object = {"metadata": {"name": "a", "resourceVersion": "9"}, "data": {"v": "1"}}
    api.events_during_lists = [{"type": event, "object": new_object}]
    async with run_reflector(api) as running:
        await poll_until(running.reflector.synced.is_set)
        assert running.values == values
        assert running.reflector.decode_error_by_key == {}


async def test_a_malformed_object_keeps_its_last_good_state_until_it_is_repaired_or_deleted(api: SimulatedApi) -> None:
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
