"""Kubeconfigs as EKS, GKE and AKS write them log in to a real API server: plugins, OIDC tokens, certificates and proxies."""

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
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
STYLES: dict[str, dict[str, Any]] = {
    "eks": {"apiVersion": "client.authentication.k8s.io/v1beta1", "env": None, "interactiveMode": "IfAvailable"},
    "gke": {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "installHint": "Install gke-gcloud-auth-plugin",
        "provideClusterInfo": True,
    },
    "aks": {"apiVersion": "client.authentication.k8s.io/v1beta1", "env": [], "provideClusterInfo": False},
    "v1": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"},
}


def read_administrator(plane: ControlPlane) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user of the lab's kubeconfig, with files inlined."""
    document = yaml.safe_load(plane.kubeconfig.read_text())
    inlined: list[dict[str, Any]] = []
    for values in (document["clusters"][0]["cluster"], document["users"][0]["user"]):
        inline = dict(values)
        for name in ("certificate-authority", "client-certificate", "client-key"):
            if name in inline:
                content = (plane.kubeconfig.parent / inline.pop(name)).read_bytes()
                inline[f"{name}-data"] = base64.b64encode(content).decode()
        inlined.append(inline)
    return inlined[0], inlined[1]


def write_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    return str(folder / "config")


def plugin_user(folder: Path, style: str = "v1") -> dict[str, Any]:
    return {"exec": {"command": sys.executable, "args": [str(PLUGIN), str(folder)], **STYLES[style]}}


def set_plugin_status(folder: Path, expires_in_s: float = 3600, **status: str) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=expires_in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (folder / "status.json").write_text(json.dumps({"expirationTimestamp": at, **status}))


def count_plugin_calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def log_in(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Client:
    """A client with the credentials of a kubeconfig."""
    return Client(find_cluster_config(write_kubeconfig(folder, cluster, user)))


async def who_am_i(client: Client) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return str(msgspec.json.decode(await client.request("POST", WHO_AM_I, body=body))["status"]["userInfo"]["username"])


@pytest.mark.parametrize("style", STYLES)
async def test_a_plugins_token_logs_in_and_is_replaced_when_it_expires(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, style: str
) -> None:
    cluster, _ = read_administrator(control_plane)
    set_plugin_status(tmp_path, expires_in_s=12, token=await request_token(client, namespace))
    async with log_in(tmp_path, cluster, plugin_user(tmp_path, style)) as user_client:
        assert count_plugin_calls(tmp_path) == 1
        # The package kubernetes replaces a token some minutes before it expires: the next request gets a new one, and keeps it.
        set_plugin_status(tmp_path, token=await request_token(client, namespace))
        for _ in range(3):
            assert await who_am_i(user_client) == f"system:serviceaccount:{namespace}:default"
    assert count_plugin_calls(tmp_path) == 2


async def test_a_revoked_token_is_replaced_in_the_same_request_and_a_failed_plugin_is_reported(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, _ = read_administrator(control_plane)
    set_plugin_status(tmp_path, token="revoked")
    async with log_in(tmp_path, cluster, plugin_user(tmp_path)) as user_client:
        with pytest.raises(ApiError, match="401"):
            await who_am_i(user_client)
        set_plugin_status(tmp_path, token=await request_token(client, namespace))
        assert await who_am_i(user_client) == f"system:serviceaccount:{namespace}:default"
    (tmp_path / "fails").touch()
    with pytest.raises(CredentialError, match="no session: log in first"):
        log_in(tmp_path, cluster, plugin_user(tmp_path))


async def test_a_log_message_of_another_thread_does_not_fail_a_login(tmp_path: Path) -> None:
    set_plugin_status(tmp_path, expires_in_s=0, token="t")
    login = KubeconfigLogin(write_kubeconfig(tmp_path, {"server": "https://api.example"}, plugin_user(tmp_path)), None)
    (tmp_path / "held").touch()
    login_task = asyncio.create_task(login.get_credential())
    await poll_until(lambda: count_plugin_calls(tmp_path) == 2)
    logs.get("tests").error("not about the login")
    (tmp_path / "held").unlink()
    assert (await login_task).token == "t"


async def test_a_plugins_certificate_logs_in_also_for_watches(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, user = read_administrator(control_plane)
    certificate, key = (base64.b64decode(user[f"client-{part}-data"]).decode() for part in ("certificate", "key"))
    set_plugin_status(tmp_path, clientCertificateData=certificate, clientKeyData=key)
    async with log_in(tmp_path, cluster, plugin_user(tmp_path)) as user_client:
        assert await who_am_i(user_client) == await who_am_i(client)
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
    for values, name in ((oidc, account), ({"tokenFile": "token"}, account), (user, await who_am_i(client))):
        async with log_in(tmp_path, cluster, values) as user_client:
            assert await who_am_i(user_client) == name


async def test_tls_server_name_is_verified(control_plane: ControlPlane, tmp_path: Path) -> None:
    cluster, user = read_administrator(control_plane)
    async with log_in(tmp_path, {**cluster, "tls-server-name": "localhost"}, user) as user_client:
        await who_am_i(user_client)
    async with log_in(tmp_path, {**cluster, "tls-server-name": "elsewhere.example"}, user) as user_client:
        with pytest.raises(Exception, match=r"elsewhere\.example"):
            await who_am_i(user_client)


@pytest.mark.parametrize(
    ("cluster", "user", "error"),
    [
        ({}, {"as": "somebody"}, r"user\.as: is not supported"),
        ({}, {"as-groups": ["g"]}, r"user\.as-groups"),
        ({}, {"auth-provider": {"name": "azure"}}, "auth-provider"),
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
    first = Path(write_kubeconfig(tmp_path, {"server": "https://one.example"}, {"token": "x"})).rename(
        tmp_path / "first"
    )
    other = Path(write_kubeconfig(tmp_path, {"server": "https://two.example"}, {"token": "y"}))
    other.write_text(other.read_text().replace("current-context: c", "current-context: none"))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path}/absent:{other}")
    assert (find_cluster_config().server, find_cluster_config().kubeconfig_context) == ("https://one.example", "c")
    with pytest.raises(ConfigError, match="elsewhere"):
        find_cluster_config(context="elsewhere")


FAR = "kubernetes.default.svc"
"""A name of the API server's certificate that only the proxy can resolve."""


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """Run an HTTP proxy that connects to this port of the loopback; yields its address and the requested targets."""
    targets: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        assert method == "CONNECT"
        targets.append(target)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy_stream(reader, far_writer), copy_stream(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", targets
    finally:
        server.close()


@pytest.mark.parametrize(
    ("host", "variables", "cluster", "uses_proxy"),
    [
        (FAR, {"HTTPS_PROXY": "http://us:er%21@PROXY"}, {}, True),
        (FAR, {"HTTPS_PROXY": "http://PROXY", "NO_PROXY": "default.svc"}, {}, False),
        (FAR, {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"}, {"proxy-url": "http://PROXY"}, True),
        (LOOPBACK, {"HTTPS_PROXY": "http://PROXY"}, {}, False),
    ],
)
async def test_the_same_proxy_is_used_as_by_kubectl(
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
    async with proxy_to(port) as (address, targets):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("PROXY", address))
        proxied = {name: value.replace("PROXY", address) for name, value in cluster.items()}
        file = write_kubeconfig(tmp_path, {**inlined_cluster, "server": f"https://{host}:{port}", **proxied}, user)
        async with Client(find_cluster_config(file), timeout_s=10) as user_client:
            if uses_proxy or host == LOOPBACK:
                await who_am_i(user_client)
            else:
                with pytest.raises(UnreachableError):
                    await who_am_i(user_client)
    assert bool(targets) is uses_proxy
