"""The page requires a token that the API server authorizes, and runs with its shipped rights."""

from __future__ import annotations

import aiohttp
from aiohttp.test_utils import make_mocked_request

from controller.page.access import CACHE_TTL_S, PageAuthorizer
from controller.page.config import PageConfig
from kubekit.client import Client
from kubekit.config import ClusterConfig
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE, PAGE_TOKEN_HEADER
from tests.integration.conftest import request_token
from tests.integration.page.conftest import RBAC, ServePage

PATHS = ("", "api/v1/overview")


async def statuses(url: str, headers: dict[str, str]) -> list[int]:
    answers = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as browser:
        for path in PATHS:
            async with browser.get(f"{url}/{path}", headers=headers) as answer:
                answers.append(answer.status)
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return answers


async def test_the_page_and_its_data_need_a_token_and_health_does_not(
    serve_page: ServePage, client: Client, component: str
) -> None:
    url = await serve_page(PageConfig())
    good = await request_token(client, component, PAGE_ACCOUNT, PAGE_AUDIENCE)
    refused = {
        "no token": {},
        "a log-in to the API server": {"Authorization": f"Bearer {good}"},
        "for another audience": {PAGE_TOKEN_HEADER: await request_token(client, component, PAGE_ACCOUNT, "other")},
        "not a token": {PAGE_TOKEN_HEADER: "nonsense"},
        "too long": {PAGE_TOKEN_HEADER: good + "x" * 7000},
    }
    for why, headers in refused.items():
        assert await statuses(url, headers) == [401] * len(PATHS), why
    without_role = {PAGE_TOKEN_HEADER: await request_token(client, component, "default", PAGE_AUDIENCE)}
    assert await statuses(url, without_role) == [403] * len(PATHS)
    assert await statuses(url, {PAGE_TOKEN_HEADER: good}) == [200] * len(PATHS)
    async with aiohttp.ClientSession() as browser:
        for path in ("healthz", "readyz", "metrics"):
            async with browser.get(f"{url}/{path}") as answer:
                assert answer.status == 200, path


async def test_a_removed_right_has_no_effect_after_the_cache_expires(client: Client, component: str) -> None:
    now = 0.0
    access = PageAuthorizer(client, component, clock=lambda: now)
    headers = {PAGE_TOKEN_HEADER: await request_token(client, component, PAGE_ACCOUNT, PAGE_AUDIENCE)}
    request = make_mocked_request("GET", "/", headers=headers)
    assert await access.decide_access(request) == "allowed"
    async with Client(ClusterConfig("http://127.0.0.1:9"), timeout_s=2.0) as nowhere:
        access._client = nowhere
        now = CACHE_TTL_S
        assert await access.decide_access(request) == "unavailable"
    access._client = client
    assert await access.decide_access(request) == "allowed"
    await client.delete(RBAC["RoleBinding"], "netaware-page", namespace=component)
    assert await access.decide_access(request) == "allowed", "cached"
    now += CACHE_TTL_S
    # The API server caches RBAC too.
    while await access.decide_access(request) == "allowed":
        now += CACHE_TTL_S
    assert await access.decide_access(request) == "forbidden"
