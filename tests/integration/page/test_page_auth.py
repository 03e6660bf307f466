"""The page behind a log-in, on the real API server: its tokens, its judgement of them, and the shipped rights of the component."""

from __future__ import annotations

import base64
import json
import time

import aiohttp
from aiohttp.test_utils import make_mocked_request
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from controller.page.access import FRESH_S, PageAuthorizer
from controller.page.config import PageConfig
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.wire import SERVICE_ACCOUNTS
from lab.controlplane import ControlPlane
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE, PAGE_TOKEN_HEADER
from tests.integration.page.conftest import RBAC, ServePage

DOORS = ("", "api/v1/overview")


async def token_of(client: Client, namespace: str, account: str, *, audience: str = PAGE_AUDIENCE) -> str:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 600},
    }
    data = await client.request("POST", SERVICE_ACCOUNTS.path(namespace, account, "token"), body=body)
    return str(json.loads(data)["status"]["token"])


def older(token: str, key: ec.EllipticCurvePrivateKey) -> str:
    """The same token, signed by the same key, an hour after its end: the API server issues none that short."""

    def packed(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head, body, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    now = int(time.time())
    claims |= {"iat": now - 7200, "nbf": now - 7200, "exp": now - 3600}
    signed = f"{head}.{packed(json.dumps(claims).encode())}"
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{packed(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


async def statuses(url: str, headers: dict[str, str]) -> list[int]:
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as browser:
        for door in DOORS:
            async with browser.get(f"{url}/{door}", headers=headers) as answer:
                found.append(answer.status)
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return found


async def test_every_door_is_behind_the_log_in_and_health_is_not(
    serve_page: ServePage, client: Client, component: str, control_plane: ControlPlane
) -> None:
    url = await serve_page(PageConfig())
    good = await token_of(client, component, PAGE_ACCOUNT)
    key = serialization.load_pem_private_key((control_plane.authority.folder / "sa.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    refused = {
        "no token": {},
        "somebody's log-in to the API server": {"Authorization": f"Bearer {good}"},
        "for another audience": {PAGE_TOKEN_HEADER: await token_of(client, component, PAGE_ACCOUNT, audience="other")},
        "no token of anybody": {PAGE_TOKEN_HEADER: "nonsense"},
        "expired": {PAGE_TOKEN_HEADER: older(good, key)},
        "too long": {PAGE_TOKEN_HEADER: good + "x" * 7000},
    }
    for why, headers in refused.items():
        assert await statuses(url, headers) == [401] * len(DOORS), why
    nobody = {PAGE_TOKEN_HEADER: await token_of(client, component, "default")}
    assert await statuses(url, nobody) == [403] * len(DOORS)
    assert await statuses(url, {PAGE_TOKEN_HEADER: good}) == [200] * len(DOORS)
    async with aiohttp.ClientSession() as browser:
        for path in ("healthz", "readyz", "metrics"):
            async with browser.get(f"{url}/{path}") as answer:
                assert answer.status == 200, path


async def test_a_right_that_is_taken_away_ends_within_seconds(client: Client, component: str) -> None:
    now = 0.0
    access = PageAuthorizer(client, component, clock=lambda: now)
    headers = {PAGE_TOKEN_HEADER: await token_of(client, component, PAGE_ACCOUNT)}
    request = make_mocked_request("GET", "/", headers=headers)
    assert await access.decide(request) == "allowed"
    async with Client(ClusterConfig("http://127.0.0.1:9"), timeout_s=2.0) as nowhere:
        access._client = nowhere
        now = FRESH_S
        assert await access.decide(request) == "unavailable"
    access._client = client
    assert await access.decide(request) == "allowed"
    await client.delete(RBAC["RoleBinding"], "netaware-page", namespace=component)
    assert await access.decide(request) == "allowed", "remembered"
    now += FRESH_S
    # RBAC is mirrored by the API server as well, and so a moment behind.
    while await access.decide(request) == "allowed":
        now += FRESH_S
    assert await access.decide(request) == "forbidden"
