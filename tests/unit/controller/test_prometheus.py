"""Queries that Prometheus rejects or does not answer: errors name the address, but not the password.

Viewers of the page see addresses and errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import encode_basic_auth, web

from controller.prometheus import PrometheusClient, PrometheusError
from tests.unit.kubekit.simulated_api import run_server


async def refuse(request: web.Request) -> web.Response:
    """Refuse a query, with its authorization as the error; never answer below /slow."""
    if request.path.startswith("/slow/"):
        await asyncio.Event().wait()
    return web.json_response({"status": "error", "error": request.headers.get("Authorization")}, status=400)


@pytest.fixture
async def host() -> AsyncIterator[str]:
    """Host and port of a Prometheus."""
    async with run_server(refuse) as config:
        yield config.server.removeprefix("http://")


async def test_a_password_of_the_url_is_sent_but_not_shown(host: str) -> None:
    client = PrometheusClient(f"http://who:secret@{host}/base/")
    assert client.redacted_url == f"http://{host}/base"
    with pytest.raises(PrometheusError) as refused:
        await client.query("up")
    assert str(refused.value) == f"http://{host}/base: {encode_basic_auth('who', 'secret')}"

    with pytest.raises(PrometheusError) as unreachable:
        await PrometheusClient("http://who:secret@127.0.0.1:9").query("up")
    assert "secret" not in str(unreachable.value)


async def test_a_slow_answer_or_a_token_with_a_line_break_is_an_error(host: str) -> None:
    with pytest.raises(PrometheusError, match=rf"{host}/slow: no answer in 0.2 s"):
        await PrometheusClient(f"http://{host}/slow", timeout_s=0.2).query("up")
    with pytest.raises(PrometheusError, match="in headers"):
        await PrometheusClient(f"http://{host}/base", token="two\nlines").query("up")
