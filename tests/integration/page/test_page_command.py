"""`kubectl netaware page` opens the page with a key once, and keeps the token out of the browser; kubectl's port-forward is simulated."""

from __future__ import annotations

import argparse
import os
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from controller.cli.kubectl import PageError
from controller.cli.page import PageCommand
from controller.cli.session import Session
from controller.page.config import PageConfig
from kubekit.client import Client
from kubekit.wire import SERVICE_ACCOUNTS
from lab.controlplane import ControlPlane
from netperf.contract import PAGE_ACCOUNT
from tests.integration.page.conftest import ServePage

DEADLINE_S = 30.0
KUBECTL = """#!/bin/sh
case "$*" in *" create token "*) exec REAL_KUBECTL "$@" ;; esac
case "$*" in *"port-forward --address=127.0.0.1 deployment/netaware-controller :metrics") ;; *) exit 1 ;; esac
test -n "$PAGE_PORT" || { echo 'warning: old'; echo 'Error from server (NotFound)' >&2; exit 1; }
echo "Forwarding from 127.0.0.1:$PAGE_PORT -> 9851"
exec sleep 600
"""


def options(control_plane: ControlPlane) -> argparse.Namespace:
    return argparse.Namespace(kubeconfig=str(control_plane.kubeconfig), context="", no_browser=True)


async def test_the_page_opens_once_with_its_key_and_the_command_reports_failures(
    serve_page: ServePage,
    control_plane: ControlPlane,
    client: Client,
    component: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL.replace("REAL_KUBECTL", str(control_plane.kubectl)))
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    url = await serve_page(PageConfig())
    async with AsyncExitStack() as stack:
        session = Session(client, None, None, component, exit_stack=stack)
        with pytest.raises(PageError, match=r"port-forward: Error from server \(NotFound\)$"):
            await PageCommand().run(session, options(control_plane))
        monkeypatch.setenv("PAGE_PORT", url.rpartition(":")[2])
        opened = await PageCommand().run(session, options(control_plane))
        root = opened.address.partition("?")[0]
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        jar = aiohttp.CookieJar(unsafe=True)
        browser = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, cookie_jar=jar))
        other = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        for wrong in (root, f"{root}?key=guessed", f"{root}api/v1/overview"):
            async with browser.get(wrong) as refused:
                assert refused.status == 403
        async with browser.get(opened.address) as document:
            assert document.status == 200
            assert "script-src 'sha256-" in document.headers["Content-Security-Policy"]
            assert str(document.url) == root, "the key stays out of the address bar"
            assert not any(len(cookie.value) > 200 for cookie in jar), "the token stays out of the browser"
        async with other.get(opened.address) as again:
            assert again.status == 403, "the key is good once"
        async with browser.get(f"{root}metrics") as metrics:
            assert metrics.status == 404, "only the page's own paths"
        async with browser.get(f"{root}api/v1/overview") as overview:
            assert (await overview.json())["readAt"] > 0
        async with browser.get(f"{root}api/v1/overview", headers={"If-None-Match": overview.headers["ETag"]}) as again:
            assert again.status in {200, 304}
        await client.delete(SERVICE_ACCOUNTS, PAGE_ACCOUNT, namespace=component)
        with pytest.raises(PageError, match=r"the page requires a token: run.*not found"):
            await PageCommand().run(session, options(control_plane))
