"""`kubectl netaware status` passes on what the controller's replicas say of themselves."""

from __future__ import annotations

from aiohttp import web

from controller.cli.session import Session
from kubekit.client import Client
from kubekit.config import ClusterConfig

PODS = "/api/v1/namespaces/netaware-system/pods"


async def answer(request: web.Request) -> web.Response:
    if request.path == PODS:
        names = ("old", "fine", "gone")
        return web.json_response({"items": [{"metadata": {"name": f"controller-{name}"}} for name in names]})
    if request.path == f"{PODS}/controller-old:9851/proxy/readyz":
        return web.Response(status=503, text="age: mirror of nodes is 130 s old (503)\n")
    if request.path == f"{PODS}/controller-fine:9851/proxy/readyz":
        return web.Response(text="ok\n")
    status = {"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "error trying to reach service"}
    return web.json_response(status, status=503)


async def test_an_old_mirror_is_told_by_the_replica_that_has_it() -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(ClusterConfig(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            session = Session(client, None, None, "netaware-system")
            await session.ask_controllers()
    finally:
        await runner.cleanup()
    assert session.complaints == ["controller-old: age: mirror of nodes is 130 s old (503)"]
    assert session.notes == {}
