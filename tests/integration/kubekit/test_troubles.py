"""A real API server behind a slow or dead wire."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from kubekit.client import WATCH_SILENCE_S, Client
from kubekit.errors import UnreachableError
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap
from lab.controlplane import ControlPlane
from tests.support.stores import wait_synced
from tests.support.tunnels import Tunnels


@asynccontextmanager
async def tunnelled(plane: ControlPlane) -> AsyncIterator[tuple[Tunnels, Client]]:
    tunnels = Tunnels(urlsplit(plane.server).port or 443)
    async with (
        tunnels.running() as address,
        Client(replace(plane.client_config, proxy=f"http://{address}")) as client,
    ):
        yield tunnels, client


@asynccontextmanager
async def reflecting(store: Reflector[ConfigMap]) -> AsyncIterator[None]:
    task = asyncio.create_task(store.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(check: Callable[[], bool], deadline_s: float = 120.0) -> float:
    """Seconds until it holds."""
    started = time.monotonic()
    async with asyncio.timeout(deadline_s):
        while not check():
            await asyncio.sleep(0.05)
    return time.monotonic() - started


def config_map(name: str, text: str = "", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"v": text}}


@pytest.mark.slow
async def test_a_wire_that_went_dead_without_a_word_is_given_up_and_the_mirror_is_current(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    """As of a balancer that keeps a connection whose other half is gone: TCP is answered, and nothing comes."""
    async with tunnelled(control_plane) as (tunnels, ours):
        store = Reflector(ours, CONFIGMAPS, ConfigMap, namespace=namespace, label_selector="kind=silent")
        async with reflecting(store):
            await wait_synced(store, timeout_s=60)
            tunnels.freeze()
            await client.create(CONFIGMAPS, config_map("unheard", kind="silent"), ConfigMap, namespace=namespace)
            took_s = await until(lambda: len(store) == 1, WATCH_SILENCE_S + 60)
            print(f"\na frozen wire: current after {took_s:.0f} s")
            # A request on a connection that was kept and froze ends by its own deadline, and the next is answered.
            with suppress(UnreachableError):
                await ours.get(CONFIGMAPS, "unheard", ConfigMap, namespace=namespace)
            there = await ours.get(CONFIGMAPS, "unheard", ConfigMap, namespace=namespace)
            assert there.metadata.name == "unheard"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_slow_list_is_taken_in_and_a_lease_does_not_wait_for_it(
    control_plane: ControlPlane, client: Client, namespace: str, streams: bool
) -> None:
    async with tunnelled(control_plane) as (tunnels, ours):
        for i in range(10):
            body = config_map(f"slow-{i}", os.urandom(50_000).hex(), kind="slow")
            await client.create(CONFIGMAPS, body, ConfigMap, namespace=namespace)
        tunnels.bytes_per_s = 60_000
        store = Reflector(ours, CONFIGMAPS, ConfigMap, namespace=namespace, label_selector="kind=slow")
        store._streams = streams
        async with reflecting(store):
            await until(lambda: tunnels.bytes_down > 100_000)
            answered = 0
            while not store.synced.is_set() and answered < 5:
                await ours.with_dedicated_connection().request("GET", "/version")
                answered += not store.synced.is_set()
            assert answered == 5, "the list was still on its way"
            await wait_synced(store, timeout_s=120)
            assert len(store) == 10
