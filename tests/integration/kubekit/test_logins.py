"""Kubeconfigs as EKS, GKE and AKS write them, against the real API server: plugins with tokens and with certificates.

The plugins are ours, in the place of the providers' commands; the files around them are as the providers' tools write them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, SERVICE_ACCOUNTS, Node, Object
from lab.controlplane import ControlPlane

PLUGIN = Path(__file__).parents[2] / "unit" / "kubekit" / "login_plugin.py"
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


def administrator(plane: ControlPlane) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cluster and the user of the lab's own kubeconfig, with files in line."""
    document = yaml.safe_load(plane.kubeconfig.read_text())
    found = []
    for values in (document["clusters"][0]["cluster"], document["users"][0]["user"]):
        inline = dict(values)
        for name in ("certificate-authority", "client-certificate", "client-key"):
            if name in inline:
                content = (plane.kubeconfig.parent / inline.pop(name)).read_bytes()
                inline[f"{name}-data"] = base64.b64encode(content).decode()
        found.append(inline)
    return found[0], found[1]


def write(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> str:
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


def plugin(folder: Path, style: str = "v1") -> dict[str, Any]:
    return {"exec": {"command": sys.executable, "args": [str(PLUGIN), str(folder)], **STYLES[style]}}


def answer(folder: Path, expires_in_s: float = 3600, **status: str) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=expires_in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (folder / "status.json").write_text(json.dumps({"expirationTimestamp": at, **status}))


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


async def token_of(client: Client, namespace: str, **spec: Any) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = SERVICE_ACCOUNTS.path(namespace, "default", "token")
    return str(msgspec.json.decode(await client.request("POST", path, body=request))["status"]["token"])


async def who_am_i(client: Client) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return str(msgspec.json.decode(await client.request("POST", WHO_AM_I, body=body))["status"]["userInfo"]["username"])


@pytest.mark.parametrize("style", STYLES)
async def test_a_plugin_s_token_logs_in_and_is_replaced_in_mid_run(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, style: str
) -> None:
    cluster, _ = administrator(control_plane)
    answer(tmp_path, expires_in_s=12, token=await token_of(client, namespace))
    async with Client(load_cluster(write(tmp_path, cluster, plugin(tmp_path, style)))) as ours:
        assert await who_am_i(ours) == f"system:serviceaccount:{namespace}:default"
        assert calls(tmp_path) == 1
        answer(tmp_path, token=await token_of(client, namespace))
        await asyncio.sleep(3)
        assert await who_am_i(ours) == f"system:serviceaccount:{namespace}:default"
        await who_am_i(ours)
    assert calls(tmp_path) == 2


async def test_a_token_that_the_server_takes_no_longer_is_replaced_in_the_same_request(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, _ = administrator(control_plane)
    answer(tmp_path, token="revoked")
    async with Client(load_cluster(write(tmp_path, cluster, plugin(tmp_path)))) as ours:
        with pytest.raises(ApiError, match="401"):
            await who_am_i(ours)
        answer(tmp_path, token=await token_of(client, namespace))
        assert await who_am_i(ours) == f"system:serviceaccount:{namespace}:default"


async def test_a_plugin_s_certificate_logs_in_also_for_watches(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    cluster, user = administrator(control_plane)
    certificate, key = (base64.b64decode(user[f"client-{part}-data"]).decode() for part in ("certificate", "key"))
    answer(tmp_path, clientCertificateData=certificate, clientKeyData=key)
    async with Client(load_cluster(write(tmp_path, cluster, plugin(tmp_path)))) as ours:
        assert await who_am_i(ours) == await who_am_i(client)
        await ours.list(NODES, Node)
        async with ours.watch(CONFIGMAPS, "0", namespace=namespace) as events:
            assert (await anext(events)).type == "ADDED"
    assert calls(tmp_path) == 1


async def test_whoever_acts_as_another_is_that_other(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    cluster, user = administrator(control_plane)
    other = f"system:serviceaccount:{namespace}:default"
    groups = ["system:serviceaccounts", "system:authenticated"]
    async with Client(load_cluster(write(tmp_path, cluster, {**user, "as": other, "as-groups": groups}))) as ours:
        assert await who_am_i(ours) == other
        with pytest.raises(ApiError) as refused:
            await ours.create(CONFIGMAPS, {"metadata": {"name": "x"}}, Object, namespace=namespace)
    assert refused.value.forbidden


async def test_the_servers_other_name_is_the_one_that_is_verified(control_plane: ControlPlane, tmp_path: Path) -> None:
    cluster, user = administrator(control_plane)
    async with Client(load_cluster(write(tmp_path, {**cluster, "tls-server-name": "localhost"}, user))) as ours:
        await who_am_i(ours)
    wrong = {**cluster, "tls-server-name": "elsewhere.example"}
    async with Client(load_cluster(write(tmp_path, wrong, user))) as ours:
        with pytest.raises(Exception, match=r"elsewhere\.example"):
            await who_am_i(ours)
