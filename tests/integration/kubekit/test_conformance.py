"""Our client and the official one see the same cluster: the same list, watch and patches, on the real API server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kubernetes
import pytest

from kubekit.client import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap, Object
from lab.controlplane import ControlPlane
from tests.support.stores import wait_synced

Change = tuple[str, str, str]


@pytest.fixture(scope="module")
def official(control_plane: ControlPlane) -> kubernetes.client.CoreV1Api:
    return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(control_plane.kubeconfig)))


def body(name: str, value: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels or None},
        "data": {"v": value},
    }


@contextmanager
def official_watch(api: kubernetes.client.CoreV1Api, namespace: str, seen: list[Change]) -> Iterator[None]:
    watch = kubernetes.watch.Watch()

    def follow() -> None:
        for event in watch.stream(
            api.list_namespaced_config_map, namespace, label_selector="side=watched", timeout_seconds=60
        ):
            found = event["object"]
            seen.append((event["type"], found.metadata.name, found.data["v"]))
            if found.metadata.name == "last":
                watch.stop()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        thread.join(90)


async def test_a_watch_brings_the_same_events(
    client: Client, namespace: str, official: kubernetes.client.CoreV1Api
) -> None:
    ours: list[Change] = []
    theirs: list[Change] = []

    async def follow(version: str) -> None:
        async with client.watch(CONFIGMAPS, version, namespace=namespace, label_selector="side=watched") as events:
            async for event in events:
                found = decode(event.object)
                if event.type != "BOOKMARK":
                    ours.append((event.type, found.metadata.name, (found.data or {})["v"]))
                if found.metadata.name == "last":
                    return

    start = [page async for page in client.pages(CONFIGMAPS, namespace=namespace)][-1].metadata.resource_version
    task = asyncio.create_task(follow(start))
    with official_watch(official, namespace, theirs):
        await asyncio.to_thread(official.create_namespaced_config_map, namespace, body("a", "1", side="watched"))
        await client.create(CONFIGMAPS, body("b", "1", side="watched"), ConfigMap, namespace=namespace)
        await client.create(CONFIGMAPS, body("unseen", "1"), ConfigMap, namespace=namespace)
        await client.patch(CONFIGMAPS, "b", {"data": {"v": "x" * 300_000}}, ConfigMap, namespace=namespace)
        await client.patch(CONFIGMAPS, "a", {"metadata": {"labels": {"side": None}}}, ConfigMap, namespace=namespace)
        await client.delete(CONFIGMAPS, "b", namespace=namespace)
        await client.create(CONFIGMAPS, body("last", "1", side="watched"), ConfigMap, namespace=namespace)
        async with asyncio.timeout(60):
            await task
    assert ours == theirs[-len(ours) :]
    assert [(kind, name) for kind, name, _ in ours] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("MODIFIED", "b"),
        ("DELETED", "a"),
        ("DELETED", "b"),
        ("ADDED", "last"),
    ]


def decode(raw: Any) -> ConfigMap:
    import msgspec

    return msgspec.json.decode(raw, type=ConfigMap)


async def test_lists_and_mirrors_hold_what_the_official_client_lists(
    client: Client, namespace: str, official: kubernetes.client.CoreV1Api
) -> None:
    for i in range(7):
        await client.create(CONFIGMAPS, body(f"c{i}", str(i), even=str(i % 2 == 0)), ConfigMap, namespace=namespace)
    cases: list[dict[str, Any]] = [{}, {"label_selector": "even=True"}, {"field_selector": "metadata.name=c3"}]
    for selectors in cases:
        listed = await asyncio.to_thread(official.list_namespaced_config_map, namespace, **selectors)
        theirs = {item.metadata.name: (item.metadata.resource_version, item.data) for item in listed.items}
        pages = [page async for page in client.pages(CONFIGMAPS, namespace=namespace, limit=2, **selectors)]
        ours = {c.metadata.name: (c.metadata.resource_version, c.data) for p in pages for c in map(decode, p.items)}
        assert ours == theirs
        streamed: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace=namespace, **selectors)
        listing: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace=namespace, **selectors)
        listing._streams = False
        tasks = [asyncio.create_task(store.run()) for store in (streamed, listing)]
        await wait_synced(streamed, listing, timeout_s=60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert streamed._streams, "this API server streams lists"
        for store in (streamed, listing):
            assert {c.metadata.name: (c.metadata.resource_version, c.data) for c in store} == theirs


PATCHES: list[tuple[str, Any]] = [
    (MERGE_PATCH, {"data": {"v": None, "w": "2"}}),
    (JSON_PATCH, [{"op": "test", "path": "/data/w", "value": "2"}, {"op": "replace", "path": "/data/w", "value": "3"}]),
    (JSON_PATCH, [{"op": "test", "path": "/data/w", "value": "no"}]),
    (JSON_PATCH, [{"op": "remove", "path": "/data/absent"}]),
    (STRATEGIC_PATCH, {"metadata": {"annotations": {"a": "b"}}, "data": {"x": "4"}}),
    (STRATEGIC_PATCH, {"data": {"v": 7}}),
    (APPLY_PATCH, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "NAME"}, "data": {"y": "5"}}),
    (MERGE_PATCH, {"metadata": {"resourceVersion": "1"}}),
]


async def test_patches_do_and_refuse_the_same(
    client: Client, namespace: str, official: kubernetes.client.CoreV1Api
) -> None:
    for name in ("ours", "theirs"):
        await client.create(CONFIGMAPS, body(name, "1"), ConfigMap, namespace=namespace)
    for kind, patch in PATCHES:
        outcomes = [
            await ours_patched(client, namespace, kind, patch),
            await asyncio.to_thread(theirs_patched, official, namespace, kind, patch),
        ]
        assert outcomes[0] == outcomes[1], (kind, patch)


def named(patch: Any, name: str) -> Any:
    return {**patch, "metadata": {"name": name}} if isinstance(patch, dict) and "kind" in patch else patch


async def ours_patched(client: Client, namespace: str, kind: str, patch: Any) -> tuple[int, Any]:
    try:
        if kind == APPLY_PATCH:
            found = await client.apply(
                CONFIGMAPS, "ours", named(patch, "ours"), ConfigMap, namespace=namespace, field_manager="tests"
            )
        else:
            found = await client.patch(CONFIGMAPS, "ours", patch, ConfigMap, kind=kind, namespace=namespace)
    except ApiError as error:
        return error.status, error.reason
    return 200, found.data


def theirs_patched(api: kubernetes.client.CoreV1Api, namespace: str, kind: str, patch: Any) -> tuple[int, Any]:
    import json

    more: dict[str, Any] = {"field_manager": "tests", "force": True} if kind == APPLY_PATCH else {}
    try:
        found = api.patch_namespaced_config_map("theirs", namespace, named(patch, "theirs"), _content_type=kind, **more)
    except kubernetes.client.ApiException as error:
        return error.status, json.loads(error.body)["reason"]
    return 200, found.data


async def test_what_is_absent_is_absent_to_both(
    client: Client, namespace: str, official: kubernetes.client.CoreV1Api
) -> None:
    with pytest.raises(ApiError) as ours:
        await client.get(CONFIGMAPS, "absent", Object, namespace=namespace)
    with pytest.raises(kubernetes.client.ApiException) as theirs:
        await asyncio.to_thread(official.read_namespaced_config_map, "absent", namespace)
    assert (ours.value.status, ours.value.not_found) == (theirs.value.status, True)
