"""The page's routes send JSON with headers, and data only after a change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest_asyncio

from controller.cluster.crds import NETWORK_TOPOLOGIES
from controller.page.config import PageConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import CONFIGMAPS, Object
from lab.polling import poll_until
from netperf.measurement import Measurement
from netperf.results import encode_samples
from netperf.sample import NodeLocation, Sample
from tests.integration.conftest import CreateNode
from tests.integration.page.conftest import ServePage
from tests.support.bodies import make_topology_body

OVERVIEW_PATH = "/api/v1/overview"


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def create_two_zones(client: Client, namespace: str, create_node: CreateNode) -> tuple[str, str]:
    """Create two nodes in two zones, a NetworkTopology, and a sample between them."""
    zones = f"a-{namespace}", f"b-{namespace}"
    for zone in zones:
        await create_node(f"n-{zone}", zone=zone, region="r")
    await client.create(NETWORK_TOPOLOGIES, make_topology_body(), Object, namespace=namespace)
    await client.create(CONFIGMAPS, {"metadata": {"name": "netperf-metrics"}}, Object, namespace=namespace)
    await write_sample(client, namespace, zones, 5000.0, sequence=1)
    return zones


async def write_sample(client: Client, namespace: str, zones: tuple[str, str], p50_us: float, *, sequence: int) -> None:
    """Write a sample as an agent."""
    sample = Sample(
        origin=NodeLocation(f"n-{zones[0]}", zones[0], "r"),
        destination=NodeLocation(f"n-{zones[1]}", zones[1], "r"),
        measurement=Measurement(prober="netperf", test="TCP_RR", p50_us=p50_us, p90_us=p50_us * 1.1, transactions=500),
        sequence=sequence,
        taken_at=1.8e9 + sequence,
    )
    data = {"data": encode_samples([sample])}
    await client.patch(CONFIGMAPS, "netperf-metrics", data, Object, patch_type=MERGE_PATCH, namespace=namespace)


async def wait_for_latency(browser: aiohttp.ClientSession, overview_url: str, p50_us: int) -> dict[str, Any]:
    """Wait until the page's data has a latency; returns the data."""

    async def find_data() -> dict[str, Any] | None:
        async with browser.get(overview_url) as response:
            data: dict[str, Any] = await response.json()
        return data if p50_us in data["matrix"]["p50Us"] else None

    data: dict[str, Any] = await poll_until(find_data, every_s=0.5)
    return data


async def test_a_new_sample_reaches_the_page(
    serve_page: ServePage, browser: aiohttp.ClientSession, client: Client, namespace: str, create_node: CreateNode
) -> None:
    zones = await create_two_zones(client, namespace, create_node)
    overview_url = await serve_page() + OVERVIEW_PATH
    data = await wait_for_latency(browser, overview_url, 5000)
    assert set(zones) <= {zone["name"] for zone in data["network"]["zones"]}
    assert 7777 not in data["matrix"]["p50Us"]

    await write_sample(client, namespace, zones, 7777.0, sequence=2)
    data = await wait_for_latency(browser, overview_url, 7777)
    assert data["matrix"]["p50Us"].count(7777) == 2, "in both directions"


async def test_unchanged_data_are_not_sent_again(serve_page: ServePage, browser: aiohttp.ClientSession) -> None:
    overview_url = await serve_page() + OVERVIEW_PATH
    etag = ""

    async def is_unchanged() -> bool:
        nonlocal etag
        async with browser.get(overview_url, headers={"If-None-Match": etag}) as response:
            etag = response.headers["ETag"]
            return response.status == 304

    # Other tests change the cluster meanwhile.
    await poll_until(is_unchanged)


async def test_the_page_is_read_only(serve_page: ServePage, browser: aiohttp.ClientSession) -> None:
    overview_url = await serve_page() + OVERVIEW_PATH
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with browser.request(method, overview_url) as response:
            assert response.status == 405, method


async def test_a_disabled_page_is_not_served(serve_page: ServePage, browser: aiohttp.ClientSession) -> None:
    async with browser.get(await serve_page(PageConfig(enabled=False)) + "/") as response:
        assert response.status == 404
