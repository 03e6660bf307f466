"""Every way to log in that kubectl has: plugins with tokens and certificates, several files, proxies, acting as others."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import ApiError, ConfigError, CredentialError
from kubekit.wire import NODES, Object

V1 = "client.authentication.k8s.io/v1"
PLUGIN = Path(__file__).with_name("login_plugin.py")


def kubeconfig(folder: Path, user: dict[str, Any], *, name: str = "config", **cluster: Any) -> str:
    document = {
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
    }
    (folder / name).write_text(yaml.safe_dump(document))
    return str(folder / name)


def plugin(folder: Path, status: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return {"exec": {"apiVersion": V1, "command": sys.executable, "args": [str(PLUGIN), str(folder)], **more}}


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Guarded:
    """An API server that takes some tokens only, and notes what each request carried."""

    def __init__(self, *tokens: str) -> None:
        self.tokens, self.seen = set(tokens), list[web.Request]()

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request)
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"metadata": {"name": "n"}})


async def test_a_plugin_is_asked_once_while_its_token_lives(tmp_path: Path) -> None:
    user = plugin(tmp_path, {"token": "t1", "expirationTimestamp": in_seconds(3600)})
    async with (
        serving(Guarded("t1").answer) as server,
        Client(load_cluster(kubeconfig(tmp_path, user, server=server))) as client,
    ):
        await asyncio.gather(*(client.get(NODES, "n", Object) for _ in range(5)))
    assert calls(tmp_path) == [{"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}]


async def test_a_token_about_to_expire_is_replaced_before_it_is_refused(tmp_path: Path) -> None:
    api = Guarded("t1")
    user = plugin(tmp_path, {"token": "t1", "expirationTimestamp": in_seconds(5)})
    async with serving(api.answer) as server, Client(load_cluster(kubeconfig(tmp_path, user, server=server))) as client:
        await client.get(NODES, "n", Object)
        api.tokens = {"t2"}
        plugin(tmp_path, {"token": "t2", "expirationTimestamp": in_seconds(3600)})
        await client.get(NODES, "n", Object)
    assert len(api.seen) == 2, "no request went with the dying token"


async def test_a_refused_token_is_replaced_in_the_same_request(tmp_path: Path) -> None:
    api = Guarded("t1")
    user = plugin(tmp_path, {"token": "t1"})
    async with serving(api.answer) as server, Client(load_cluster(kubeconfig(tmp_path, user, server=server))) as client:
        await client.get(NODES, "n", Object)
        api.tokens = {"t2"}
        plugin(tmp_path, {"token": "t2"})
        await client.get(NODES, "n", Object)
        api.tokens = {"t3"}
        with pytest.raises(ApiError, match="Unauthorized"):
            await client.get(NODES, "n", Object)
    assert len(api.seen) == 5
    assert len(calls(tmp_path)) == 3, "a refused request does not ask for ever"


@pytest.mark.parametrize(
    ("status", "more", "said"),
    [
        ({}, {}, "neither a token nor a client certificate"),
        ({"clientCertificateData": "x"}, {}, "without its key"),
        ({"token": "t", "expirationTimestamp": "soon"}, {}, "expirationTimestamp"),
        (None, {"command": "no-such-login", "installHint": "apt install it"}, "apt install it"),
        (None, {"command": "./no-such-login"}, "cannot run ./no-such-login"),
        (None, {"args": ["-c", "print('hello')"]}, "printed no ExecCredential"),
        (None, {"interactiveMode": "Always", "args": []}, "terminal"),
    ],
)
async def test_a_plugin_that_fails_says_where_and_why(
    tmp_path: Path, status: dict[str, Any] | None, more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    file = kubeconfig(tmp_path, plugin(tmp_path, status, **more))
    async with Client(load_cluster(file)) as client:
        with pytest.raises(CredentialError, match=said) as refused:
            await client.get(NODES, "n", Object)
    assert "users[].user.exec" in str(refused.value)


async def test_a_plugin_s_own_words_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    async with Client(load_cluster(kubeconfig(tmp_path, plugin(tmp_path, {})))) as client:
        with pytest.raises(CredentialError, match="no session: log in first"):
            await client.get(NODES, "n", Object)


async def test_a_plugin_is_told_of_the_cluster_if_it_asks(tmp_path: Path) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    more = {"provideClusterInfo": True, "env": [{"name": "X", "value": "1"}]}
    file = kubeconfig(
        tmp_path, plugin(tmp_path, {"token": "t"}, **more), extensions=[extension], **{"tls-server-name": "api"}
    )
    config = load_cluster(file)
    assert config.plugin is not None
    await config.plugin.current()
    told = calls(tmp_path)[0]["spec"]["cluster"]
    assert told == {"server": "http://127.0.0.1:1", "tls-server-name": "api", "config": {"audience": "a"}}


async def test_who_we_act_as_is_said_in_every_request(tmp_path: Path) -> None:
    api = Guarded("t")
    user = {
        "token": "t",
        "as": "system:serviceaccount:a:b",
        "as-uid": "7",
        "as-groups": ["g1", "g2"],
        "as-user-extra": {"Scopes/x": ["read", "write"]},
    }
    async with serving(api.answer) as server, Client(load_cluster(kubeconfig(tmp_path, user, server=server))) as client:
        await client.get(NODES, "n", Object)
    headers = api.seen[0].headers
    assert headers["Impersonate-User"] == "system:serviceaccount:a:b"
    assert headers["Impersonate-Uid"] == "7"
    assert headers.getall("Impersonate-Group") == ["g1", "g2"]
    assert headers.getall("Impersonate-Extra-scopes%2Fx") == ["read", "write"]


async def test_requests_go_through_the_proxy(tmp_path: Path) -> None:
    proxy = Guarded("t")
    async with serving(proxy.answer) as address:
        file = kubeconfig(tmp_path, {"token": "t"}, server="http://nowhere.invalid", **{"proxy-url": address})
        async with Client(load_cluster(file)) as client:
            assert (await client.get(NODES, "n", Object)).metadata.name == "n"
    assert proxy.seen[0].host == "nowhere.invalid"


def test_of_several_files_the_first_that_sets_something_wins(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "token").write_text("from-a")
    first = kubeconfig(tmp_path / "a", {"tokenFile": "token"}, server="http://first:1")
    document = yaml.safe_load(Path(first).read_text())
    del document["current-context"], document["contexts"]
    Path(first).write_text(yaml.safe_dump(document))
    second = kubeconfig(tmp_path, {"token": "from-b"}, name="b", server="http://second:1")
    config = load_cluster(environ={"KUBECONFIG": f"{first}:{tmp_path}/absent:{second}"})
    assert (config.server, config.context) == ("http://first:1", "lab")
    assert config.token is not None
    assert config.token() == "from-a", "paths are relative to the file that they stand in"


@pytest.mark.parametrize(
    ("user", "cluster", "named"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
        ({"username": "u", "password": "p"}, {}, "username"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, {}, "exec.apiVersion"),
        ({"exec": {"apiVersion": V1}}, {}, "exec.command"),
        ({"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Maybe"}}, {}, "exec.interactiveMode"),
        ({"as-groups": ["system:masters"]}, {}, "users.*user.as:"),
        ({}, {"proxy-url": "socks5://127.0.0.1:1"}, "SOCKS"),
        ({"client-certificate-data": "eA=="}, {"server": "https://h"}, "client-key"),
        ({}, {"server": "https://h", "certificate-authority-data": "eA=="}, "certificate-authority"),
        (
            {},
            {"server": "https://h", "certificate-authority-data": "eA==", "insecure-skip-tls-verify": True},
            "insecure",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load_cluster(kubeconfig(tmp_path, user, **cluster))
