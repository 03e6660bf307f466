"""`kubectl netaware page` opens the page with a one-time key and without a token; the port-forward is simulated."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from controller.cli.kubectl import PageError
from controller.cli.page import PageAddress, PageCommand
from controller.cli.session import Session
from kubekit.client import Client
from kubekit.wire import SERVICE_ACCOUNTS
from lab.controlplane import ControlPlane
from netperf.contract import PAGE_ACCOUNT

KUBECTL = """#!/bin/sh
# Tokens are real; of other calls only the port-forward succeeds.
case "$*" in *" create token "*) exec REAL_KUBECTL "$@" ;; esac
case "$*" in *"port-forward --address=127.0.0.1 deployment/netaware-controller :metrics") ;; *) exit 1 ;; esac
test -n "$PAGE_PORT" || { echo 'warning: old'; echo 'Error from server (NotFound)' >&2; exit 1; }
echo "Forwarding from 127.0.0.1:$PAGE_PORT -> 9851"
exec sleep 600
"""
"""A kubectl that creates tokens, and whose port-forward names the port PAGE_PORT, or fails if PAGE_PORT is not set."""
MAX_COOKIE_LENGTH = 200
"""Tokens are longer."""

RunPage = Callable[[], Awaitable[PageAddress]]


@pytest_asyncio.fixture
async def run_page(
    control_plane: ControlPlane, client: Client, page_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunPage]:
    """``await run_page()`` runs the command until the end of the test."""
    (tmp_path / "kubectl").write_text(KUBECTL.replace("REAL_KUBECTL", str(control_plane.kubectl)))
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = argparse.Namespace(kubeconfig=str(control_plane.kubeconfig), context="", no_browser=True)
    async with AsyncExitStack() as stack:
        session = Session(client, None, None, page_namespace, exit_stack=stack)
        yield partial(PageCommand().run, session, options)


@pytest.fixture
def forwarded_page(page_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page to which kubectl forwards a port."""
    monkeypatch.setenv("PAGE_PORT", page_url.rpartition(":")[2])


@asynccontextmanager
async def open_browser() -> AsyncIterator[aiohttp.ClientSession]:
    timeout, jar = aiohttp.ClientTimeout(total=30), aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=jar) as browser:
        yield browser


async def read_status(browser: aiohttp.ClientSession, url: str) -> int:
    async with browser.get(url) as response:
        return response.status


@pytest.mark.usefixtures("forwarded_page")
async def test_the_key_opens_the_page_for_one_browser_without_the_token(run_page: RunPage) -> None:
    address = (await run_page()).address
    root = address.partition("?")[0]
    async with open_browser() as browser, open_browser() as other_browser:
        for url_without_key in (root, f"{root}?key=guessed", f"{root}api/v1/overview"):
            assert await read_status(browser, url_without_key) == 403
        async with browser.get(address) as document:
            assert document.status == 200
            assert "script-src 'sha256-" in document.headers["Content-Security-Policy"]
            assert str(document.url) == root, "the key stays out of the address bar"
            assert max(len(cookie.value) for cookie in browser.cookie_jar) < MAX_COOKIE_LENGTH
        assert await read_status(other_browser, address) == 403, "the key is valid once"

        assert await read_status(browser, f"{root}metrics") == 404, "only the page's own paths are forwarded"
        async with browser.get(f"{root}api/v1/overview") as overview:
            assert (await overview.json())["readAt"] > 0
            assert "ETag" in overview.headers


async def test_an_error_of_the_port_forward_is_reported(run_page: RunPage) -> None:
    with pytest.raises(PageError, match=r"port-forward: Error from server \(NotFound\)$"):
        await run_page()


@pytest.mark.usefixtures("forwarded_page")
async def test_a_missing_token_is_reported_with_its_cause(
    run_page: RunPage, client: Client, page_namespace: str
) -> None:
    await client.delete(SERVICE_ACCOUNTS, PAGE_ACCOUNT, namespace=page_namespace)
    with pytest.raises(PageError, match=r"the page requires a token: run.*not found"):
        await run_page()
