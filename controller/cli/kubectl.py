"""Runs kubectl for `page`: forwards a port and creates a token, with kubectl's own log-in."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from kubekit.errors import KubekitError
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE

READY_TIMEOUT_S = 60.0
"""Time for kubectl to answer, including an interactive log-in."""
STOP_TIMEOUT_S = 5.0
TOKEN_LIFETIME = "8h"
_FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")


class KubectlError(KubekitError):
    """kubectl failed; the text is its last line of output."""


class PortForward(NamedTuple):
    """A running port-forward: its URL on this machine, and a task that ends when kubectl ends."""

    url: str
    ended: asyncio.Task[None]


@asynccontextmanager
async def port_forward(kubectl: Sequence[str], namespace: str, target: str, port: str) -> AsyncIterator[PortForward]:
    """Forwards a free local port to a named port of a pod of ``target`` within the block.

    Args:
        kubectl: the command with the flags that choose the cluster.
        namespace: of ``target``.
        target: such as ``deployment/NAME``.
        port: its name.

    Raises:
        KubectlError: kubectl ends, or forwards nothing in time.
    """
    words = (*kubectl, "--namespace", namespace, "port-forward", "--address=127.0.0.1", target, f":{port}")
    async with _running(words, stderr=asyncio.subprocess.STDOUT) as process:
        assert process.stdout is not None
        local = await _port_of(process.stdout)
        draining = asyncio.create_task(_drain(process.stdout))
        try:
            yield PortForward(f"http://127.0.0.1:{local}", draining)
        finally:
            draining.cancel()


async def create_page_token(kubectl: Sequence[str], namespace: str) -> tuple[str, str]:
    """A token of the page's ServiceAccount, and the error if there is none; one of them is empty."""
    words = (*kubectl, "--namespace", namespace, "create", "token", PAGE_ACCOUNT)
    flags = (f"--audience={PAGE_AUDIENCE}", f"--duration={TOKEN_LIFETIME}")
    async with _running((*words, *flags), stderr=asyncio.subprocess.PIPE) as process:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                output, errors = (text.decode(errors="replace").strip() for text in await process.communicate())
        except TimeoutError:
            return "", f"kubectl create token: nothing within {READY_TIMEOUT_S:g} s"
    return ("", errors.rpartition("\n")[2] or "kubectl failed") if process.returncode else (output, "")


@asynccontextmanager
async def _running(words: Sequence[str], *, stderr: int) -> AsyncIterator[asyncio.subprocess.Process]:
    # In a session of its own, because Ctrl-C must not end kubectl before us.
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        await _stop(process)


async def _port_of(output: asyncio.StreamReader) -> int:
    last = "no output"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            # Log-in plugins print empty lines among their instructions.
            while data := await output.readline():
                line = data.decode(errors="replace").strip()
                if found := _FORWARDING.match(line):
                    return int(found[1])
                last = line or last
    except TimeoutError as error:
        raise KubectlError(f"kubectl port-forward: nothing within {READY_TIMEOUT_S:.0f} s: {last}") from error
    raise KubectlError(f"kubectl port-forward: {last}")


async def _drain(output: asyncio.StreamReader) -> None:
    """Read kubectl's line for each connection, so that the pipe never fills."""
    while await output.readline():
        pass


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
