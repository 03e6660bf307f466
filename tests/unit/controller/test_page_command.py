"""`kubectl netaware page`: whom it asks, what it reads of kubectl, and a kubectl that goes or says no."""

from __future__ import annotations

import sys
from typing import cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from controller.cli.connecting import NoWayError, PodPort, WayToConnect, by_port_forward, forwarded_port
from controller.cli.controller_pods import ControllerPod
from controller.cli.front_door import FrontDoor
from controller.cli.page import in_order_of_trust

AT = PodPort("home", "controller-a", 9851)


def pod(name: str, *, ready: bool = True, going: bool = False) -> ControllerPod:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    meta = {"name": name, "deletionTimestamp": "2026-01-01T00:00:00Z" if going else None}
    return msgspec.convert({"metadata": meta, "status": {"conditions": [condition]}}, ControllerPod)


def test_the_leader_is_asked_first_and_then_who_is_ready() -> None:
    pods = [pod("c-1", ready=False), pod("c-2", going=True), pod("c-3"), pod("c-4")]

    def names(pods: list[ControllerPod], holder: str) -> list[str]:
        return [found.metadata.name for found in in_order_of_trust(pods, holder)]

    assert names(pods, "c-4-0a1b2c3d") == ["c-4", "c-3", "c-1", "c-2"]
    assert names(pods, "") == ["c-3", "c-4", "c-1", "c-2"]
    assert names([pod("c-10"), pod("c-1")], "c-1-0a1b2c3d") == ["c-1", "c-10"]


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("Forwarding from 127.0.0.1:43121 -> 9851", 43121),
        ("Forwarding from [::1]:43121 -> 9851", None),
        ("Handling connection for 43121", None),
        ("error: unable to forward port because pod is not running. Current status=Pending", None),
    ],
)
def test_the_port_is_read_from_what_kubectl_says(line: str, port: int | None) -> None:
    assert forwarded_port(line) == port


async def test_what_kubectl_says_last_is_the_reason() -> None:
    script = "import sys; print('warning: old'); print('error: pods \"c\" is forbidden', file=sys.stderr); sys.exit(1)"
    with pytest.raises(NoWayError, match='error: pods "c" is forbidden'):
        async with by_port_forward([sys.executable, "-u", "-c", script], AT):
            pytest.fail("nothing was forwarded")


async def test_what_a_proxy_says_in_latin_1_reaches_the_browser() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503, body="niemand für diesen Pod".encode("latin-1"), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/{path:.*}", refuse)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:

            async def find() -> WayToConnect:
                return cast("WayToConnect", session.get)

            async def token() -> str:
                return ""

            async with (
                FrontDoor(find, token).running(0) as address,
                aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
                browser.get(address) as answer,
            ):
                assert answer.status == 502
                assert "HTTP 503: niemand f" in await answer.text()
    finally:
        await runner.cleanup()
