"""Errors of queries that Prometheus rejects or does not answer."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import encode_basic_auth, web

from controller.prometheus import PrometheusClient, PrometheusError
from lab.controlplane_commands import LOOPBACK


async def test_errors_name_the_address_without_the_password() -> None:
    """The password must not appear, because viewers of the page see addresses and errors."""
    authorizations = []

    async def refuse(request: web.Request) -> web.Response:
        authorizations.append(request.headers["Authorization"])
        return web.json_response({"status": "error", "error": "no"}, status=400)

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.router.add_post("/slow/api/v1/query", hang)
    app.router.add_post("/base/api/v1/query", refuse)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # the request to /slow never ends
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        host = f"{LOOPBACK}:{runner.addresses[0][1]}"
        refusing = PrometheusClient(f"http://who:secret@{host}/base/")
        assert refusing.redacted_url == f"http://{host}/base"
        with pytest.raises(PrometheusError) as refused:
            await refusing.query("up")
        with pytest.raises(PrometheusError) as unreachable:
            await PrometheusClient(f"http://who:secret@{LOOPBACK}:9").query("up")
        with pytest.raises(PrometheusError, match=rf"{host}/slow: no answer in 0.2 s"):
            await PrometheusClient(f"http://{host}/slow", timeout_s=0.2).query("up")
        with pytest.raises(PrometheusError, match="in headers"):
            await PrometheusClient(f"http://{host}/base", token="two\nlines").query("up")
    finally:
        await runner.cleanup()
    assert authorizations == [encode_basic_auth("who", "secret")]
    assert str(refused.value) == f"http://{host}/base: no"
    assert "secret" not in str(unreachable.value)
