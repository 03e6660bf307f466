"""The page's routes send JSON with headers, and data only after a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest_asyncio

from controller.cluster.crds import NETWORK_TOPOLOGIES
from controller.page.config import PageConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import CONFIGMAPS, Object
from netperf.measurement import Measurement
from netperf.results import encode_samples
from netperf.sample import NodeLocation, Sample
from tests.integration.conftest import MakeNode
from tests.integration.page.conftest import ServePage


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def create_two_zones(client: Client, namespace: str, make_node: MakeNode) -> tuple[str, str]:
    """Create two nodes in two zones, a NetworkTopology, and a sample between them."""
    zones = f"a-{namespace}", f"b-{namespace}"
    for zone in zones:
        await make_node(f"n-{zone}", zone=zone, region="r")
    spec = {"configmapName": "netperf-metrics"}
    body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "nt-default"}, "spec": spec}
    await client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace)
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


async def wait_for_latency(browser: aiohttp.ClientSession, url: str, p50_us: int) -> dict[str, Any]:
    """Wait until the page's data has a latency."""
    async with asyncio.timeout(60):
        while True:
            async with browser.get(url + "/api/v1/overview") as answer:
                page: dict[str, Any] = await answer.json()
            if p50_us in page["matrix"]["p50Us"]:
                return page
            await asyncio.sleep(0.5)


async def test_a_sample_reaches_the_page_and_unchanged_data_are_not_sent_again(
    serve_page: ServePage, browser: aiohttp.ClientSession, client: Client, namespace: str, make_node: MakeNode
) -> None:
    zones = await create_two_zones(client, namespace, make_node)
    url = await serve_page(PageConfig(auth="none"))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with browser.request(method, url + "/api/v1/overview") as refused:
            assert refused.status == 405, "the page is read-only"
    page = await wait_for_latency(browser, url, 5000)
    assert set(zones) <= {zone["name"] for zone in page["network"]["zones"]}
    assert 7777 not in page["matrix"]["p50Us"]
    await write_sample(client, namespace, zones, 7777.0, sequence=2)
    assert (await wait_for_latency(browser, url, 7777))["matrix"]["p50Us"].count(7777) == 2
    async with asyncio.timeout(30):
        tag, status = "", 0
        # Other tests change the cluster meanwhile.
        while status != 304:
            async with browser.get(url + "/api/v1/overview", headers={"If-None-Match": tag}) as answer:
                tag, status = answer.headers["ETag"], answer.status
    async with browser.get(await serve_page(PageConfig(enabled=False)) + "/") as answer:
        assert answer.status == 404
