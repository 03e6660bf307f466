"""`kubectl netaware status` passes on what the controller's replicas report about themselves."""

from __future__ import annotations

import asyncio

from aiohttp import web

from controller.cli.session import Session
from tests.unit.kubekit.simulated_api import connected

PODS = "/api/v1/namespaces/netaware-system/pods"
UNAVAILABLE = {
    "kind": "Status",
    "code": 503,
    "reason": "ServiceUnavailable",
    "message": "error trying to reach service",
}


async def test_replicas_are_asked_at_once_and_an_old_store_is_reported_by_its_replica() -> None:
    """No replica answers before two are asked; the client makes no more reads at a time."""
    asked: set[str] = set()
    both_asked = asyncio.Event()
    answers = {
        "old": lambda: web.Response(status=503, text="age: store of nodes is 130 s old (503)\n"),
        "fine": lambda: web.Response(text="ok\n"),
        "gone": lambda: web.json_response(UNAVAILABLE, status=503),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/readyz"):
            asked.add(request.path)
            if len(asked) == 2:
                both_asked.set()
            await both_asked.wait()
            return answers[request.path.removeprefix(f"{PODS}/controller-").removesuffix("/proxy/readyz")]()
        names = answers if request.path == PODS else ()
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": f"controller-{n}"}} for n in names]})

    async with connected(answer) as client:
        session = Session(client, None, None, "netaware-system")
        status = (await session.snapshot(everything=True)).control_plane
    assert status is not None
    assert status.complaints == ("controller-old: age: store of nodes is 130 s old (503)",)
    assert session.remarks == []
