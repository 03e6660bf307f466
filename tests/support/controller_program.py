"""A verb of the controller as a program beside a control plane."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from lab.controlplane import ControlPlane, credentials_of, free_ports
from lab.programs import Program


@asynccontextmanager
async def controller_program(plane: ControlPlane, verb: str, *flags: str) -> AsyncIterator[tuple[Program, str]]:
    """``python -m controller <verb>``, ready; its process and its address."""
    port = free_ports(1)[0]
    argv = [sys.executable, "-m", "controller", verb, f"--credentials={credentials_of(plane.kubeconfig)}", *flags]
    started = plane.programs.start(f"{verb}-{uuid.uuid4().hex[:6]}", [*argv, f"--listen=127.0.0.1:{port}"])
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(150):
            while not await _is_ready(session, url):
                await asyncio.sleep(0.1)
        yield started, url
    finally:
        await plane.programs.stop(started)


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
