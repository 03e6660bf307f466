"""The storm's proxy and its clock: what passes untouched, and what a program sees of a fault."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from kubekit.client import Client
from kubekit.errors import ApiError, UnreachableError
from kubekit.wire import Object, ObjectMeta, Resource
from lab.certificates import Authority
from lab.controlplane import LOOPBACK, ControlPlane
from lab.storm.acts import Acts
from lab.storm.clock import set_offset
from lab.storm.entrance import WEBHOOKS, left_over
from lab.storm.faults import KINDS, Fault
from lab.storm.proxy import Proxy

BODY = {"items": ["x" * 5000]}


async def upstream(request: web.Request) -> web.StreamResponse:
    """Tells what it was asked, or streams until it is cut off."""
    if "watch" in request.query:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first\n")
        await request.content.read()
        while not (request.transport is None or request.transport.is_closing()):
            await response.write(b"")
            await asyncio.sleep(0.01)
        return response
    told = {"method": request.method, "path": request.raw_path, "auth": request.headers.get("Authorization"), **BODY}
    return web.json_response({**told, "body": await request.text()})


@asynccontextmanager
async def proxied(folder: Path, *, gone: bool = False) -> AsyncIterator[tuple[Proxy, aiohttp.ClientSession]]:
    """A proxy before a server that stands for the API server."""
    authority = Authority(folder / "pki", "test")
    pair = authority.issue("server", "server", hosts=(LOOPBACK,))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(pair.certificate), str(pair.key))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", upstream)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0, ssl_context=context).start()
    server = f"https://{LOOPBACK}:{9 if gone else runner.addresses[0][1]}"
    ca = authority.certificate
    plane = cast("ControlPlane", SimpleNamespace(server=server, ca_file=ca, authority=authority, address=LOOPBACK))
    trust = ssl.create_default_context(cafile=str(ca))
    connector = aiohttp.TCPConnector(ssl=trust)
    try:
        async with Proxy.serve(plane) as proxy, aiohttp.ClientSession(proxy.url, connector=connector) as session:
            yield proxy, session
    finally:
        await runner.cleanup()


async def test_without_a_fault_everything_passes_as_it_is(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, session):
        headers = {"Authorization": "Bearer t"}
        async with session.patch("/api/v1/x?a=b%26c&fieldManager=m", data=b"{}", headers=headers) as answer:
            told = await answer.json()
    assert told == {
        "method": "PATCH",
        "path": "/api/v1/x?a=b%26c&fieldManager=m",
        "auth": "Bearer t",
        "body": "{}",
        **BODY,
    }


@pytest.mark.parametrize("status", [429, 500])
async def test_a_status_is_answered_in_its_stead_until_it_is_taken_away(tmp_path: Path, status: int) -> None:
    async with proxied(tmp_path) as (proxy, session):
        proxy.begin("fault", str(status), 1.0)
        async with session.get("/api") as answer:
            assert answer.status == status
            assert (await answer.json())["kind"] == "Status"
            assert answer.headers.get("Retry-After") == ("1" if status == 429 else None)
        proxy.end("fault")
        async with session.get("/api") as answer:
            assert answer.status == 200


async def test_only_what_reads_from_a_version_is_too_old(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, session):
        proxy.begin("fault", "410", 1.0)
        async with (
            session.get("/api?resourceVersion=5") as old,
            session.get("/api") as other,
            session.put("/api") as write,
        ):
            assert (old.status, other.status, write.status) == (410, 200, 200)


async def test_a_stale_watch_stays_open_and_tells_later_and_all_else_is_answered(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, session):
        proxy.begin("k", "stale", 1.0)
        async with session.get("/api?watch=true") as watch:
            told = asyncio.create_task(watch.content.readline())
            for _ in range(3):
                async with session.get("/api") as answer:
                    assert answer.status == 200
            assert not told.done()
            proxy.end("k")
            assert await told == b"first\n"


async def test_an_expired_certificate_ends_connections_and_lets_nobody_in_until_it_is_renewed(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, session):
        async with session.get("/api") as answer:
            assert answer.status == 200
        async with session.get("/api?watch=true") as watch:
            assert await watch.content.readline() == b"first\n"
            proxy.begin("one", "expired", 1.0)
            proxy.begin("other", "expired", 1.0)
            with pytest.raises(aiohttp.ClientError):
                await watch.content.read()
        proxy.end("one")
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="certificate has expired"):
            await session.get("/api")
        proxy.end("other")
        async with session.get("/api") as answer:
            assert answer.status == 200


async def test_a_cut_leaves_half_an_answer_and_ends_open_watches(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, session):
        async with session.get("/api?watch=true") as watch:
            assert await watch.content.readline() == b"first\n"
            proxy.begin("fault", "cut", 1.0)
            with pytest.raises(aiohttp.ClientError):
                await watch.content.read()
        with pytest.raises((aiohttp.ClientError, OSError)):
            async with session.get("/api") as answer:
                await answer.read()


async def test_one_token_is_refused_and_no_other(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, session):
        proxy.refuse("one")
        for token, status in (("one", 401), ("two", 200)):
            async with session.get("/api", headers={"Authorization": f"Bearer {token}"}) as answer:
                assert answer.status == status
        proxy.accept("one")
        async with session.get("/api", headers={"Authorization": "Bearer one"}) as answer:
            assert answer.status == 200


async def test_an_api_server_that_is_gone_is_a_connection_that_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(tmp_path, gone=True) as (_, session):
        with pytest.raises((aiohttp.ClientError, OSError)):
            await session.get("/api")
    assert not caplog.records, "what a storm does on purpose is no error of its own"


def test_a_programs_clock_jumps_while_it_runs_and_no_other_clock_does(tmp_path: Path) -> None:
    file, module = tmp_path / "clock", tmp_path / "asked.py"
    module.write_text(
        "import sys, time\n"
        "from time import time as bound\n"
        "while line := sys.stdin.readline():\n"
        "    print(time.time(), bound(), time.time_ns() / 1e9, time.monotonic(), *sys.argv[1:], flush=True)\n"
    )
    set_offset(file, 0.0)
    # By its path, and nothing of this project to be found: a storm runs programs of other versions by it as well.
    script = Path(__file__).parents[3] / "lab" / "storm" / "clock.py"
    argv = [sys.executable, "-P", str(script), str(file), "asked", "--word"]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for offset_s in (0.0, -3600.0, 86400.0):
            set_offset(file, offset_s)
            before, steady = time.time(), time.monotonic()
            program.stdin.write("\n")
            program.stdin.flush()
            *walls, monotonic, word = program.stdout.readline().split()
            after = time.time()
            assert word == "--word"
            assert all(before - 0.001 <= float(wall) - offset_s <= after + 0.001 for wall in walls)
            assert steady <= float(monotonic) <= time.monotonic()
        program.stdin.close()


class LateServer:
    """A client of an API server that makes what it was asked for after a while, told or not."""

    def __init__(self, *, answers: bool) -> None:
        self.answers, self.made = answers, set[str]()
        self.goes_on = asyncio.Event()

    async def create(self, _: object, body: dict[str, Any], type_: object) -> None:
        name = body["metadata"]["name"]
        if not self.answers:
            asyncio.get_running_loop().call_later(0.1, self.made.add, name)
            raise UnreachableError("no answer in time")
        await self.goes_on.wait()
        self.made.add(name)

    async def delete(self, _: object, name: str) -> None:
        self.made.discard(name)

    async def list(self, resource: Resource, _: object) -> list[Object]:
        return [Object(metadata=ObjectMeta(name=name)) for name in self.made] if resource == WEBHOOKS else []


@pytest.mark.parametrize("answers", [True, False])
async def test_what_an_api_server_makes_late_is_taken_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    monkeypatch.setattr("lab.storm.acts.LATE_S", 0.3)
    server = LateServer(answers=answers)
    acts = acts_on(server, tmp_path)
    doing = asyncio.create_task(acts.do(Fault(0.0, "webhook-dead", "networktopologies", 0.05)))
    await asyncio.sleep(0.1)
    server.goes_on.set()
    assert await doing == ("" if answers else "no answer in time")
    assert await acts.take_back_all(5) == []
    assert not server.made


def acts_on(server: object, folder: Path) -> Acts:
    nothing: Any = SimpleNamespace(
        lab=SimpleNamespace(wan=SimpleNamespace(links=dict), place=SimpleNamespace(state_dir=folder)),
        write=lambda *_, **__: None,
    )
    return Acts(cast("Client", server), nothing, nothing, nothing, nothing)


class Definitions:
    """A client of an API server with one definition and an AppGroup each in two namespaces, one of which ends and never has ended."""

    def __init__(self, refusal: str) -> None:
        self.refusal, self.made, self.there = refusal, list[str](), True

    async def request(self, _: str, path: str, **__: object) -> bytes:
        if "customresourcedefinitions" not in path:
            groups = [{"metadata": {"name": "shop", "namespace": name}, "spec": {}} for name in ("ends", "stays")]
            return msgspec.json.encode({"items": groups})
        if not self.there:
            raise ApiError(404, "NotFound", "not found")
        return msgspec.json.encode({"metadata": {"name": "x"}, "spec": {"names": {"plural": "appgroups"}}})

    async def create(self, _: object, body: object, type_: object, *, namespace: str | None = None) -> None:
        if namespace == "ends":
            raise ApiError(403, "Forbidden", f"unable to create new content in namespace ends because {self.refusal}")
        self.made.append(namespace or "the definition")

    async def delete(self, *_: object) -> None:
        self.there = False


async def test_definitions_are_restored_though_a_namespace_never_ends(tmp_path: Path) -> None:
    server = Definitions("it is being terminated")
    acts = acts_on(server, tmp_path)
    assert not await acts.do(Fault(0.0, "definition-delete", "appgroups.appgroup.diktyo.x-k8s.io", 0.05))
    assert await acts.take_back_all(5) == []
    assert server.made == ["the definition", "stays"]


async def test_a_fault_that_cannot_be_taken_back_is_told_and_nobody_waits_for_it(tmp_path: Path) -> None:
    acts = acts_on(Definitions("a policy forbids it"), tmp_path)
    assert not await acts.do(Fault(7.2, "definition-delete", "appgroups.appgroup.diktyo.x-k8s.io", 0.05))
    assert await acts.take_back_all(0.5) == ["definition-delete appgroups.appgroup.diktyo.x-k8s.io of 7 s"]
    await acts.cancel()


async def test_what_a_storm_left_in_the_way_is_told_by_name() -> None:
    server = LateServer(answers=True)
    server.made = {"storm-42", "cert-manager"}
    assert await left_over(cast("Client", server)) == ["validatingwebhookconfigurations storm-42"]


def test_every_kind_can_be_done(tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace(
        lab=SimpleNamespace(wan=SimpleNamespace(links=dict), place=SimpleNamespace(state_dir=tmp_path))
    )
    assert Acts(nothing, nothing, nothing, nothing, nothing).kinds == set(KINDS)
