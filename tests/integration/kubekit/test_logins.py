"""Kubeconfigs as EKS, GKE and AKS write them log in to a real API server, also through a proxy."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml

from controller.cli.kubeconfig import KubeconfigLogin, find_cluster_config
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, CredentialError, UnreachableError
from kubekit.wire import CONFIGMAPS, NODES, Node
from lab.controlplane import ControlPlane
from lab.controlplane_commands import LOOPBACK
from lab.polling import poll_until
from tests.integration.conftest import request_token
from tests.integration.netperf.peers import copy_stream

PLUGIN = Path(__file__).parent / "login_plugin.py"
SELF_SUBJECT_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PROXY_ONLY_HOST = "kubernetes.default.svc"
"""A name of the API server's certificate that only the proxy can resolve."""
EXEC_BY_STYLE: dict[str, dict[str, Any]] = {
    "eks": {"apiVersion": "client.authentication.k8s.io/v1beta1", "env": None, "interactiveMode": "IfAvailable"},
    "gke": {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "installHint": "Install gke-gcloud-auth-plugin",
        "provideClusterInfo": True,
    },
    "aks": {"apiVersion": "client.authentication.k8s.io/v1beta1", "env": [], "provideClusterInfo": False},
    "v1": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"},
}
"""Fields of ``user.exec`` as each provider's command line writes them."""


def inline_files(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """A cluster or user of a kubeconfig in this folder, with the contents of its files."""
    inlined = dict(values)
    for name in ("certificate-authority", "client-certificate", "client-key"):
        if name in inlined:
            inlined[f"{name}-data"] = base64.b64encode((folder / inlined.pop(name)).read_bytes()).decode()
    return inlined


def read_administrator(plane: ControlPlane) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user of the lab's kubeconfig."""
    folder, document = plane.kubeconfig.parent, yaml.safe_load(plane.kubeconfig.read_text())
    return inline_files(folder, document["clusters"][0]["cluster"]), inline_files(folder, document["users"][0]["user"])


def write_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any], context: str = "c") -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    return str(folder / "config")


def make_plugin_user(folder: Path, style: str = "v1") -> dict[str, Any]:
    return {"exec": {"command": sys.executable, "args": [str(PLUGIN), str(folder)], **EXEC_BY_STYLE[style]}}


def write_plugin_status(folder: Path, expires_in_s: float = 3600, **status: str) -> None:
    expires_at = (datetime.now(UTC) + timedelta(seconds=expires_in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (folder / "status.json").write_text(json.dumps({"expirationTimestamp": expires_at, **status}))


def count_plugin_calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def log_in(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Client:
    """A client with the credentials of a kubeconfig."""
    return Client(find_cluster_config(write_kubeconfig(folder, cluster, user)))


async def read_user_name(client: Client) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    review = msgspec.json.decode(await client.request("POST", SELF_SUBJECT_REVIEWS, body=body))
    return str(review["status"]["userInfo"]["username"])


@asynccontextmanager
async def run_proxy(port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy that connects to this port of the loopback; yields its address and the requested targets."""
    targets: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        assert method == "CONNECT"
        targets.append(target)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy_stream(reader, server_writer), copy_stream(server_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", targets
    finally:
        proxy.close()


@pytest.mark.parametrize("style", EXEC_BY_STYLE)
async def test_a_plugins_token_logs_in_and_is_replaced_when_it_expires(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, style: str
) -> None:
    cluster, _ = read_administrator(control_plane)
    write_plugin_status(tmp_path, expires_in_s=12, token=await request_token(client, namespace))
    async with log_in(tmp_path, cluster, make_plugin_user(tmp_path, style)) as user_client:
        assert count_plugin_calls(tmp_path) == 1
        # The package kubernetes replaces a token some minutes before it expires, so one with 12 s is due already.
        write_plugin_status(tmp_path, token=await request_token(client, namespace))
        for _ in range(3):
            assert await read_user_name(user_client) == f"system:serviceaccount:{namespace}:default"
    assert count_plugin_calls(tmp_path) == 2


async def test_a_revoked_token_is_replaced_in_the_same_request_and_a_failed_plugin_is_reported(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, _ = read_administrator(control_plane)
    write_plugin_status(tmp_path, token="revoked")
    async with log_in(tmp_path, cluster, make_plugin_user(tmp_path)) as user_client:
        with pytest.raises(ApiError, match="401"):
            await read_user_name(user_client)
        write_plugin_status(tmp_path, token=await request_token(client, namespace))
        assert await read_user_name(user_client) == f"system:serviceaccount:{namespace}:default"
    (tmp_path / "fails").touch()
    with pytest.raises(CredentialError, match="no session: log in first"):
        log_in(tmp_path, cluster, make_plugin_user(tmp_path))


async def test_a_log_message_of_another_thread_does_not_fail_a_login(tmp_path: Path) -> None:
    write_plugin_status(tmp_path, expires_in_s=0, token="t")
    kubeconfig = write_kubeconfig(tmp_path, {"server": "https://api.example"}, make_plugin_user(tmp_path))
    login = KubeconfigLogin(kubeconfig, None)
    (tmp_path / "held").touch()
    login_task = asyncio.create_task(login.get_credential())
    await poll_until(lambda: count_plugin_calls(tmp_path) == 2)
    logs.get("tests").error("not about the login")
    (tmp_path / "held").unlink()
    assert (await login_task).token == "t"


async def test_requests_refused_together_log_in_once_and_a_broken_kubeconfig_may_recover(tmp_path: Path) -> None:
    write_plugin_status(tmp_path, token="old")
    login = KubeconfigLogin(
        write_kubeconfig(tmp_path, {"server": "https://api.example"}, make_plugin_user(tmp_path)), None
    )
    old = await login.get_credential()
    write_plugin_status(tmp_path, token="new")
    for _ in range(2):
        login.discard(old)
        assert (await login.get_credential()).token == "new"
    assert count_plugin_calls(tmp_path) == 2
    login.discard(await login.get_credential())
    (tmp_path / "config").write_text("a: [")
    with pytest.raises(CredentialError, match="config"):
        await login.get_credential()


async def test_a_plugins_certificate_logs_in_also_for_watches(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, user = read_administrator(control_plane)
    certificate, key = (base64.b64decode(user[f"client-{part}-data"]).decode() for part in ("certificate", "key"))
    write_plugin_status(tmp_path, clientCertificateData=certificate, clientKeyData=key)
    async with log_in(tmp_path, cluster, make_plugin_user(tmp_path)) as user_client:
        assert await read_user_name(user_client) == await read_user_name(client)
        await user_client.list(NODES, Node)
        async with user_client.watch(CONFIGMAPS, "0", namespace=namespace) as events:
            assert (await anext(events)).type == "ADDED"
    assert count_plugin_calls(tmp_path) == 1


async def test_an_oidc_token_a_token_file_and_a_certificate_log_in(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, user = read_administrator(control_plane)
    token = await request_token(client, namespace)
    (tmp_path / "token").write_text(token)
    account = f"system:serviceaccount:{namespace}:default"
    oidc = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    users = ((oidc, account), ({"tokenFile": "token"}, account), (user, await read_user_name(client)))
    for kubeconfig_user, name in users:
        async with log_in(tmp_path, cluster, kubeconfig_user) as user_client:
            assert await read_user_name(user_client) == name


def test_an_expired_token_that_cannot_be_renewed_is_reported(tmp_path: Path) -> None:
    config = {"id-token": "e30.eyJleHAiOiAxfQ.x", "idp-issuer-url": f"http://{LOOPBACK}:9"}
    with pytest.raises(CredentialError, match="auth-provider"):
        log_in(tmp_path, {"server": "https://api.example"}, {"auth-provider": {"name": "oidc", "config": config}})


async def test_tls_server_name_is_verified(control_plane: ControlPlane, tmp_path: Path) -> None:
    cluster, user = read_administrator(control_plane)
    async with log_in(tmp_path, {**cluster, "tls-server-name": "localhost"}, user) as user_client:
        await read_user_name(user_client)
    async with log_in(tmp_path, {**cluster, "tls-server-name": "elsewhere.example"}, user) as user_client:
        with pytest.raises(UnreachableError, match=r"elsewhere\.example"):
            await read_user_name(user_client)


@pytest.mark.parametrize(
    ("cluster", "user", "error"),
    [
        ({}, {"as": "somebody"}, r"user\.as: is not supported"),
        ({}, {"auth-provider": {"name": "azure"}}, "auth-provider"),
        ({}, {"username": "admin", "password": "x"}, r"user\.username: is not supported"),
        ({"proxy-url": "socks5://proxy.example:1080"}, {}, "proxy-url"),
        ({"certificate-authority": "missing.pem"}, {}, r"missing\.pem"),
        ({"certificate-authority-data": base64.b64encode(b"x").decode()}, {}, "PEM"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        log_in(tmp_path, {"server": "https://api.example", **cluster}, user)


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "", "contexts: []", "contexts: 5\ncurrent-context: c", "5"])
def test_files_that_are_not_kubeconfigs_are_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(ConfigError, match="config"):
        find_cluster_config(str(tmp_path / "config"))


def test_the_first_of_several_files_names_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    kubeconfig = write_kubeconfig(tmp_path, {"server": "https://one.example"}, {"token": "x"})
    other = write_kubeconfig(tmp_path / "other", {"server": "https://two.example"}, {"token": "y"}, context="none")
    monkeypatch.setenv("KUBECONFIG", f"{kubeconfig}:{tmp_path}/absent:{other}")
    assert find_cluster_config().server == "https://one.example"
    assert find_cluster_config().kubeconfig_context == "c"
    with pytest.raises(ConfigError, match="elsewhere"):
        find_cluster_config(context="elsewhere")


@pytest.mark.parametrize(
    ("host", "variables", "cluster", "uses_proxy"),
    [
        (PROXY_ONLY_HOST, {"HTTPS_PROXY": "http://us:er%21@PROXY"}, {}, True),
        (PROXY_ONLY_HOST, {"HTTPS_PROXY": "http://PROXY", "NO_PROXY": "default.svc"}, {}, False),
        # The kubeconfig has precedence over the environment.
        (PROXY_ONLY_HOST, {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"}, {"proxy-url": "http://PROXY"}, True),
        # The loopback needs no proxy.
        (LOOPBACK, {"HTTPS_PROXY": "http://PROXY"}, {}, False),
    ],
)
async def test_the_proxy_is_chosen_by_kubectls_rules(
    control_plane: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    variables: dict[str, str],
    cluster: dict[str, str],
    uses_proxy: bool,
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    port = urlsplit(control_plane.server).port or 443
    inlined_cluster, user = read_administrator(control_plane)
    async with run_proxy(port) as (address, targets):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("PROXY", address))
        settings = {name: value.replace("PROXY", address) for name, value in cluster.items()}
        settings["server"] = f"https://{host}:{port}"
        kubeconfig = write_kubeconfig(tmp_path, {**inlined_cluster, **settings}, user)
        async with Client(find_cluster_config(kubeconfig), timeout_s=10) as user_client:
            if uses_proxy or host == LOOPBACK:
                await read_user_name(user_client)
            else:
                with pytest.raises(UnreachableError):
                    await read_user_name(user_client)
    assert bool(targets) is uses_proxy
