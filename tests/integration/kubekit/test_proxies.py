"""A proxy between us and the real API server: we go through it when kubectl does, and reach what kubectl reaches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import UnreachableError
from kubekit.wire import NODES
from lab.controlplane import LOOPBACK, ControlPlane
from tests.support.tunnels import Tunnels

FAR = "kubernetes.default.svc"
"""A name of the API server's certificate that only the proxy can find."""


def kubeconfig(plane: ControlPlane, folder: Path, host: str, **cluster: str) -> Path:
    document = yaml.safe_load(plane.kubeconfig.read_text())
    server = urlsplit(plane.server)
    document["clusters"][0]["cluster"] |= {"server": f"https://{host}:{server.port}", **cluster}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def without_proxies() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


async def kubectl_reaches(plane: ControlPlane, file: Path, environ: Mapping[str, str]) -> bool:
    argv = ["--kubeconfig", str(file), "get", "--raw", "/version", "--request-timeout=10s"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(plane.kubectl, *argv, env=dict(environ), stdout=quiet, stderr=quiet)
    return await process.wait() == 0


async def we_reach(file: Path, environ: Mapping[str, str]) -> bool:
    try:
        async with Client(load_cluster(str(file), environ=environ), timeout_s=10) as client:
            await client.request("GET", "/version")
    except UnreachableError:
        return False
    return True


# Of the API server's own address, by any name of its certificate: the variables, with PROXY for the proxy's address.
CASES: list[tuple[str, dict[str, str], dict[str, str], bool]] = [
    (FAR, {"HTTPS_PROXY": "http://PROXY"}, {}, True),
    (FAR, {"https_proxy": "PROXY"}, {}, True),
    (FAR, {"HTTPS_PROXY": "http://us:er%21@PROXY"}, {}, True),
    (FAR, {"HTTP_PROXY": "http://PROXY", "ALL_PROXY": "http://PROXY"}, {}, False),
    (FAR, {"HTTPS_PROXY": "http://PROXY", "NO_PROXY": "default.svc"}, {}, False),
    (FAR, {"HTTPS_PROXY": "http://PROXY", "NO_PROXY": "*.default.svc"}, {}, False),
    (FAR, {"HTTPS_PROXY": "http://PROXY", "no_proxy": f"{FAR}:443"}, {}, True),
    (FAR, {"HTTPS_PROXY": "http://PROXY", "no_proxy": ".svc"}, {}, False),
    (FAR, {"HTTPS_PROXY": "http://PROXY", "NO_PROXY": "kubernetes"}, {}, True),
    (FAR, {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"}, {"proxy-url": "http://PROXY"}, True),
    ("localhost", {"HTTPS_PROXY": "http://PROXY"}, {}, False),
    (LOOPBACK, {"HTTPS_PROXY": "http://PROXY"}, {}, False),
    (LOOPBACK, {"HTTPS_PROXY": "http://PROXY"}, {"proxy-url": "http://PROXY"}, True),
]


@pytest.mark.parametrize(("host", "variables", "cluster", "by_proxy"), CASES)
async def test_we_go_where_kubectl_goes(
    control_plane: ControlPlane,
    tmp_path: Path,
    host: str,
    variables: dict[str, str],
    cluster: dict[str, str],
    by_proxy: bool,
) -> None:
    theirs, ours = (Tunnels(urlsplit(control_plane.server).port or 443) for _ in range(2))
    reached = []
    for proxy in (theirs, ours):
        async with proxy.running() as address:
            named = {k: v.replace("PROXY", address) for k, v in variables.items()}
            told = {k: v.replace("PROXY", address) for k, v in cluster.items()}
            file, environ = kubeconfig(control_plane, tmp_path, host, **told), {**without_proxies(), **named}
            reached.append(
                await (kubectl_reaches(control_plane, file, environ) if proxy is theirs else we_reach(file, environ))
            )
    assert (bool(ours.asked), reached[1]) == (bool(theirs.asked), reached[0])
    assert bool(ours.asked) is by_proxy
    assert set(ours.asked) == set(theirs.asked)
    assert ours.credentials[:1] == theirs.credentials[:1]


async def test_a_watch_ends_with_the_proxy_that_carries_it(control_plane: ControlPlane, tmp_path: Path) -> None:
    proxy = Tunnels(urlsplit(control_plane.server).port or 443)
    file = kubeconfig(control_plane, tmp_path, FAR)

    async def follow(client: Client) -> None:
        async with client.watch(NODES, "0", initial=True) as events:
            async for event in events:
                assert event.type in {"ADDED", "BOOKMARK"}
                proxy.cut()

    async with (
        proxy.running() as address,
        Client(load_cluster(str(file), environ={"HTTPS_PROXY": address})) as client,
        asyncio.timeout(60),
    ):
        with pytest.raises(UnreachableError, match="WATCH"):
            await follow(client)
    assert proxy.asked
