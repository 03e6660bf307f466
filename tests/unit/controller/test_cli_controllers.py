"""`kubectl netaware status` passes on what the controller's replicas say of themselves."""

from __future__ import annotations

import asyncio

from aiohttp import web

from controller.cli.session import Session
from tests.unit.kubekit.simulated_api import Handler, connected

PODS = "/api/v1/namespaces/netaware-system/pods"


async def answer(request: web.Request) -> web.Response:
    if request.path == PODS:
        names = ("old", "fine", "gone")
        return web.json_response({"items": [{"metadata": {"name": f"controller-{name}"}} for name in names]})
    if not request.path.startswith(PODS):
        return web.json_response({"metadata": {}, "items": []})
    if request.path == f"{PODS}/controller-old/proxy/readyz":
        return web.Response(status=503, text="age: store of nodes is 130 s old (503)\n")
    if request.path == f"{PODS}/controller-fine/proxy/readyz":
        return web.Response(text="ok\n")
    status = {"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "error trying to reach service"}
    return web.json_response(status, status=503)


async def asked(handler: Handler) -> tuple[Session, tuple[str, ...]]:
    """A session that has asked the replicas, of an API server that answers like this, and what these say."""
    async with connected(handler) as client:
        session = Session(client, None, None, "netaware-system")
        status = (await session.snapshot(everything=True)).control_plane
    assert status is not None
    return session, status.complaints


async def test_an_old_store_is_reported_by_the_replica_that_has_it() -> None:
    _, complaints = await asked(answer)
    assert complaints == ("controller-old: age: store of nodes is 130 s old (503)",)


async def test_replicas_are_asked_at_once_since_each_that_hangs_is_waited_for() -> None:
    """Here none answers before two are asked; more reads at a time the client does not make."""
    seen: set[str] = set()
    both_asked = asyncio.Event()

    async def together(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/readyz"):
            seen.add(request.path)
            if len(seen) == 2:
                both_asked.set()
            await both_asked.wait()
        return await answer(request)

    session, complaints = await asked(together)
    assert (session.remarks, len(complaints)) == ([], 1)
