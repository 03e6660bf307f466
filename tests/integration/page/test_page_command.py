"""`kubectl netaware page` over the real API server, by its proxy to pods: a key opens, and a pod that goes is replaced.

No kubelet runs here, so kubectl's port-forward fails as it does where a kubelet does not answer. The pods are relays to the page
on an address that is not loopback, which the API server refuses to go to.
"""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack

import aiohttp
import pytest

from controller.cli.connecting import NoWayError
from controller.cli.page import OpenPage
from controller.cli.session import Session
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import PODS, Object
from lab.controlplane import ControlPlane
from netperf.contract import CONTROLLER_POD_SELECTOR
from tests.integration.page.conftest import ServePage
from tests.integration.page.test_page_behind_the_proxy import own_address, relay

DEADLINE_S = 30.0


async def controller_pod(client: Client, namespace: str, name: str, address: str, port: int) -> None:
    key, _, value = CONTROLLER_POD_SELECTOR.partition("=")
    ports = [{"name": "metrics", "containerPort": port}]
    containers = [{"name": "controller", "image": "none", "ports": ports}]
    spec = {"automountServiceAccountToken": False, "containers": containers}
    body = {"metadata": {"name": name, "labels": {key: value}}, "spec": spec}
    await client.create(PODS, body, Object, namespace=namespace)
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
    await client.patch(
        PODS, name, {"status": status}, Object, kind=MERGE_PATCH, namespace=namespace, subresource="status"
    )


def options(control_plane: ControlPlane) -> argparse.Namespace:
    return argparse.Namespace(kubeconfig=str(control_plane.kubeconfig), context="", port=0, no_browser=True)


async def test_the_page_opens_with_its_key_and_finds_another_pod_when_its_own_is_gone(
    serve_page: ServePage,
    control_plane: ControlPlane,
    client: Client,
    namespace: str,
) -> None:
    url = await serve_page()
    address, page = own_address(), int(url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(relay(address, page))
        session = Session(client, None, None, namespace, stack=stack)
        with pytest.raises(NoWayError, match="there is no pod of netaware-controller"):
            await OpenPage().ask(session, options(control_plane))
        await controller_pod(client, namespace, "controller-a", address, port)
        opened = await OpenPage().ask(session, options(control_plane))
        assert (opened.pod, opened.way) == ("controller-a", "proxy of the API server")
        root = opened.address.partition("?")[0]
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        jar = aiohttp.CookieJar(unsafe=True)
        browser = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, cookie_jar=jar))
        for wrong in (root, f"{root}?key=guessed", f"{root}api/v1/overview"):
            async with browser.get(wrong) as refused:
                assert refused.status == 403
        async with browser.get(opened.address) as document:
            assert document.status == 200
            assert "script-src 'sha256-" in document.headers["Content-Security-Policy"]
            assert str(document.url) == root, "the key stays out of the address bar"
        async with browser.get(f"{root}metrics") as other:
            assert other.status == 404, "only the page's own paths"
        async with browser.get(f"{root}api/v1/events") as events:
            lines = [(await events.content.readline()).decode() for _ in range(2)]
            assert lines[1] == "event: page\n"
        await controller_pod(client, namespace, "controller-b", address, port)
        await client.delete(PODS, "controller-a", namespace=namespace, grace_period_s=0)
        async with browser.get(f"{root}api/v1/overview") as overview:
            assert (await overview.json())["version"] > 0
