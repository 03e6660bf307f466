"""The page's routes on the real API server: JSON, events, headers, limits, and that nothing is read while nobody looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from controller.cluster.resources import NETWORK_TOPOLOGIES
from controller.page import server
from controller.page.config import PageConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import CONFIGMAPS, PODS, Object
from netperf.results import encode_samples
from netperf.sample import Measurement, Place, Sample
from tests.integration.conftest import MakeNode
from tests.integration.page.conftest import ServePage

OPEN = PageConfig(auth="none")


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def two_zones(client: Client, namespace: str, make_node: MakeNode) -> tuple[str, str]:
    """Two nodes in zones of their own, a NetworkTopology, and one sample between them."""
    zones = f"a-{namespace}", f"b-{namespace}"
    for zone in zones:
        await make_node(f"n-{zone}", zone=zone, region="r")
    body = {"metadata": {"name": "nt-default"}, "spec": {"configmapName": "netperf-metrics"}}
    await client.create(
        NETWORK_TOPOLOGIES,
        {"apiVersion": NETWORK_TOPOLOGIES.api_version, "kind": "NetworkTopology", **body},
        Object,
        namespace=namespace,
    )
    await client.create(CONFIGMAPS, {"metadata": {"name": "netperf-metrics"}}, Object, namespace=namespace)
    await measure(client, namespace, zones, 5000.0, sequence=1)
    return zones


async def measure(client: Client, namespace: str, zones: tuple[str, str], p50_us: float, *, sequence: int) -> None:
    """An agent writes a sample."""
    sample = Sample(
        origin=Place(f"n-{zones[0]}", zones[0], "r"),
        destination=Place(f"n-{zones[1]}", zones[1], "r"),
        measurement=Measurement(prober="netperf", test="TCP_RR", p50_us=p50_us, p90_us=p50_us * 1.1, transactions=500),
        sequence=sequence,
        taken_at=1.8e9 + sequence,
    )
    data = {"data": encode_samples([sample])}
    await client.patch(CONFIGMAPS, "netperf-metrics", data, Object, kind=MERGE_PATCH, namespace=namespace)


@asynccontextmanager
async def stream(
    browser: aiohttp.ClientSession, url: str, since: object = ""
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """The events of the page, as (name, data)."""
    async with browser.get(f"{url}/api/v1/events?since={since}") as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"

        async def events() -> AsyncIterator[tuple[str, Any]]:
            name = ""
            async for line in answer.content:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield name, json.loads(text.removeprefix("data: "))

        yield events()


async def next_with_cells(events: AsyncIterator[tuple[str, Any]], value: float) -> Any:
    """The next change of the matrix with this value; other nodes and tests may change other cells meanwhile."""
    async with asyncio.timeout(60):
        async for name, data in events:
            if name == "change" and any(value in cell for cell in data.get("cells", ())):
                return data
    raise AssertionError("the stream ended")


async def test_the_document_and_the_data_come_with_headers_that_let_nothing_else_in(
    serve_page: ServePage, browser: aiohttp.ClientSession
) -> None:
    url = await serve_page(OPEN)
    async with browser.get(url + "/") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    async with browser.get(url + "/api/v1/overview") as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert (await answer.json())["version"] > 0
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with browser.request(method, url + "/api/v1/overview") as answer:
            assert answer.status == 405, "the page is read-only"


async def test_a_sample_that_an_agent_writes_reaches_an_open_page_as_two_cells(
    serve_page: ServePage, browser: aiohttp.ClientSession, client: Client, namespace: str, make_node: MakeNode
) -> None:
    zones = await two_zones(client, namespace, make_node)
    url = await serve_page(OPEN)
    async with browser.get(url + "/api/v1/overview") as answer:
        page = await answer.json()
    names = [zone["name"] for zone in page["network"]["zones"]]
    assert set(zones) <= set(names)
    assert 5000 in page["matrix"]["p50"]
    async with stream(browser, url, page["version"]) as events:
        await measure(client, namespace, zones, 7777.0, sequence=2)
        told = await next_with_cells(events, 7777)
    assert told["since"] >= page["version"]
    changed = [cell for cell in told["cells"] if 7777 in cell]
    assert len(changed) == 2


async def test_a_browser_with_another_version_is_given_everything(
    serve_page: ServePage, browser: aiohttp.ClientSession
) -> None:
    url = await serve_page(OPEN)
    async with stream(browser, url, "12345") as events:
        name, page = await asyncio.wait_for(anext(events), 15)
    assert name == "page"
    assert "matrix" in page


async def test_one_viewer_too_many_is_told_to_come_back(
    serve_page: ServePage, browser: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_VIEWERS", 1)
    url = await serve_page(OPEN)
    async with stream(browser, url) as events:
        await asyncio.wait_for(anext(events), 15)
        async with browser.get(f"{url}/api/v1/events") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]


async def test_nothing_is_computed_while_nobody_looks_and_the_next_viewer_finds_the_present(
    serve_page: ServePage,
    browser: aiohttp.ClientSession,
    client: Client,
    namespace: str,
    make_node: MakeNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    zones = await two_zones(client, namespace, make_node)
    url = await serve_page(OPEN)
    async with browser.get(url + "/api/v1/overview") as answer:
        first = await answer.json()
    await measure(client, namespace, zones, 8888.0, sequence=3)
    # How soon a busy API server tells the controller's watch is not the page's: a next viewer comes until it has.
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(2.5)
            async with browser.get(url + "/api/v1/overview") as answer:
                second = await answer.json()
            if 8888 in second["matrix"]["p50"]:
                break
    assert second["version"] > first["version"]


async def test_a_pod_that_asks_for_bandwidth_is_shown_without_belonging_to_any_group(
    serve_page: ServePage, browser: aiohttp.ClientSession, client: Client, namespace: str
) -> None:
    body = {
        "metadata": {"name": "asks", "annotations": {"kubernetes.io/egress-bandwidth": "10M"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    await client.create(PODS, body, Object, namespace=namespace)
    url = await serve_page(OPEN)
    async with browser.get(url + "/api/v1/overview") as answer:
        page = await answer.json()
    rows = [row for row in page["podRows"] if row["namespace"] == namespace]
    assert [(row["name"], row["egressAskedBps"]) for row in rows] == [("asks", 10_000_000)]


async def test_a_page_that_is_switched_off_is_not_there(serve_page: ServePage, browser: aiohttp.ClientSession) -> None:
    url = await serve_page(PageConfig(enabled=False))
    async with browser.get(url + "/") as answer:
        assert answer.status == 404
