"""The way to the page that the documentation names: `kubectl proxy`, and behind it the API server's proxy to the Service.

That proxy reads and rewrites HTML, and the page's security policy holds its scripts to their hashes: one changed byte and
nothing would run. The pod behind the Service is a relay to the page, on an address that is not loopback, which the API server
refuses to go to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import PODS, Object, Resource
from lab.controlplane import ControlPlane
from tests.integration.page.conftest import ServePage

SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
NAME, DEADLINE_S = "netaware-controller", 30.0


def own_address() -> str:
    """An address of this machine that others would use; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@asynccontextmanager
async def relay(address: str, port: int) -> AsyncIterator[int]:
    """Carry connections from ``address`` to a port on loopback; yields the port there."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        finally:
            writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(carry, address, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def kubectl_proxy(control_plane: ControlPlane) -> AsyncIterator[str]:
    command = [str(control_plane.kubectl), f"--kubeconfig={control_plane.kubeconfig}", "proxy", "--port=0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        yield f"http://{line.decode().split()[-1]}"
    finally:
        process.terminate()
        await process.wait()


async def offer(client: Client, namespace: str, address: str, port: int) -> None:
    """A Service, its endpoint, and the pod that the API server wants to see behind it."""
    container = {"name": "controller", "image": "none"}
    body = {"metadata": {"name": NAME}, "spec": {"automountServiceAccountToken": False, "containers": [container]}}
    pod = await client.create(PODS, body, Object, namespace=namespace)
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    await client.patch(PODS, NAME, status, Object, kind=MERGE_PATCH, namespace=namespace, subresource="status")
    service = {
        "metadata": {"name": NAME},
        "spec": {"clusterIP": "None", "ports": [{"name": "metrics", "port": 9851}]},
    }
    await client.create(SERVICES, service, Object, namespace=namespace)
    target = {"kind": "Pod", "name": NAME, "namespace": namespace, "uid": pod.metadata.uid}
    subset = {"addresses": [{"ip": address, "targetRef": target}], "ports": [{"name": "metrics", "port": port}]}
    await client.create(ENDPOINTS, {"metadata": {"name": NAME}, "subsets": [subset]}, Object, namespace=namespace)


async def test_the_page_comes_unchanged_and_live_through_kubectl_proxy(
    serve_page: ServePage, control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    url = await serve_page()
    address = own_address()
    async with relay(address, int(url.rpartition(":")[2])) as port, kubectl_proxy(control_plane) as proxy:
        await offer(client, namespace, address, port)
        behind = f"{proxy}/api/v1/namespaces/{namespace}/services/{NAME}:metrics/proxy"
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        async with aiohttp.ClientSession(timeout=timeout, headers={"Accept": "text/html"}) as browser:
            async with browser.get(f"{url}/") as straight, browser.get(f"{behind}/") as proxied:
                assert proxied.status == 200, await proxied.text()
                assert proxied.headers["Content-Security-Policy"] == straight.headers["Content-Security-Policy"]
                direct, through = await straight.text(), await proxied.text()
            for tag in ("style", "script"):
                assert (
                    direct.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
                    == (through.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0])
                )
            async with browser.get(f"{behind}/api/v1/overview") as overview:
                assert (await overview.json())["version"] > 0
            async with browser.get(f"{behind}/api/v1/events") as events:
                assert events.content_type == "text/event-stream"
                lines = [(await events.content.readline()).decode() for _ in range(2)]
            assert lines[1] == "event: page\n"
