"""The page requires a token that the API server authorizes, and runs with its shipped rights."""

from __future__ import annotations

from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from controller.page.access import CACHE_TTL_S, PageAuthorizer
from kubekit.client import Client
from kubekit.errors import UnreachableError
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE, PAGE_TOKEN_HEADER
from tests.integration.conftest import request_token
from tests.integration.page.conftest import RBAC

PATHS = ("", "api/v1/overview")


async def read_statuses(url: str, headers: dict[str, str]) -> list[int]:
    """HTTP statuses of the page and its data."""
    statuses = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as browser:
        for path in PATHS:
            async with browser.get(f"{url}/{path}", headers=headers) as response:
                statuses.append(response.status)
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    return statuses


async def make_page_request(client: Client, namespace: str) -> Request:
    """A request for the page with a token of its role."""
    token = await request_token(client, namespace, PAGE_ACCOUNT, PAGE_AUDIENCE)
    return make_mocked_request("GET", "/", headers={PAGE_TOKEN_HEADER: token})


async def test_the_page_and_its_data_need_a_token_of_its_role(
    page_url: str, client: Client, page_namespace: str
) -> None:
    token = await request_token(client, page_namespace, PAGE_ACCOUNT, PAGE_AUDIENCE)
    other_audience = await request_token(client, page_namespace, PAGE_ACCOUNT, "other")
    refused_headers = {
        "no token": {},
        "a login to the API server": {"Authorization": f"Bearer {token}"},
        "for another audience": {PAGE_TOKEN_HEADER: other_audience},
        "not a token": {PAGE_TOKEN_HEADER: "nonsense"},
        "too long": {PAGE_TOKEN_HEADER: token + "x" * 7000},
    }
    for reason, headers in refused_headers.items():
        assert await read_statuses(page_url, headers) == [401] * len(PATHS), reason
    token_without_role = await request_token(client, page_namespace, "default", PAGE_AUDIENCE)
    assert await read_statuses(page_url, {PAGE_TOKEN_HEADER: token_without_role}) == [403] * len(PATHS)
    assert await read_statuses(page_url, {PAGE_TOKEN_HEADER: token}) == [200] * len(PATHS)


async def test_a_decision_is_cached_and_a_removed_right_has_no_effect_afterwards(
    client: Client, page_namespace: str
) -> None:
    now_s = 0.0
    authorizer = PageAuthorizer(client, page_namespace, clock=lambda: now_s)
    request = await make_page_request(client, page_namespace)
    assert await authorizer.decide_access(request) == "allowed"
    await client.delete(RBAC["RoleBinding"], "netaware-page", namespace=page_namespace)
    assert await authorizer.decide_access(request) == "allowed", "cached"
    # The API server caches RBAC too.
    while await authorizer.decide_access(request) == "allowed":
        now_s += CACHE_TTL_S
    assert await authorizer.decide_access(request) == "forbidden"


async def test_access_is_unavailable_while_the_api_server_cannot_be_reached(
    client: Client, page_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    authorizer = PageAuthorizer(client, page_namespace, clock=lambda: now_s)
    request = await make_page_request(client, page_namespace)
    assert await authorizer.decide_access(request) == "allowed"

    now_s = CACHE_TTL_S
    with monkeypatch.context() as unreachable:
        unreachable.setattr(client, "create", AsyncMock(side_effect=UnreachableError("simulated")))
        assert await authorizer.decide_access(request) == "unavailable"
    assert await authorizer.decide_access(request) == "allowed", "the failure is not cached"
