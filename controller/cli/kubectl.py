"""Runs kubectl for `page`: forwards a port, and creates a token, with kubectl's log-in."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from kubekit.errors import KubekitError
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE

READY_TIMEOUT_S, END_TIMEOUT_S = 15.0, 5.0
TOKEN_LIFE = "8h"
_FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")


class KubectlError(KubekitError):
    """kubectl did not do what it was asked for; the text is the last thing that it said."""


class PortForward(NamedTuple):
    """A port-forward that runs: the URL on this machine, and the task that ends when kubectl does."""

    url: str
    ended: asyncio.Task[None]


@asynccontextmanager
async def port_forward(kubectl: Sequence[str], namespace: str, target: str, port: str) -> AsyncIterator[PortForward]:
    """Run it for the time of the block, to the named port of a pod of ``target``; ``kubectl`` has the flags that say which cluster.

    Raises:
        KubectlError: kubectl ends, or forwards nothing in time.
    """
    # In a session of its own: an interrupt from the keyboard is ours to handle, and kubectl ends after us.
    process = await asyncio.create_subprocess_exec(
        *kubectl,
        *("--namespace", namespace, "port-forward", "--address=127.0.0.1", target, f":{port}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        local = await _port_of(process.stdout)
        draining = asyncio.create_task(_drain(process.stdout))
        try:
            yield PortForward(f"http://127.0.0.1:{local}", draining)
        finally:
            draining.cancel()
    finally:
        await _end(process)


async def create_page_token(kubectl: Sequence[str], namespace: str) -> tuple[str, str]:
    """A token of the page's ServiceAccount, and why there is none; one of them is empty."""
    process = await asyncio.create_subprocess_exec(
        *kubectl,
        *("--namespace", namespace, "create", "token", PAGE_ACCOUNT),
        *(f"--audience={PAGE_AUDIENCE}", f"--duration={TOKEN_LIFE}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            output, errors = (text.decode(errors="replace").strip() for text in await process.communicate())
    except TimeoutError:
        return "", f"kubectl create token: nothing within {READY_TIMEOUT_S:g} s"
    finally:
        await _end(process)
    return ("", errors.rpartition("\n")[2] or "kubectl failed") if process.returncode else (output, "")


async def _port_of(output: asyncio.StreamReader) -> int:
    last = "it said nothing"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while read := await output.readline():
                line = read.decode(errors="replace").strip()
                if found := _FORWARDING.match(line):
                    return int(found[1])
                last = line or last  # Log-in plugins print empty lines.
    except TimeoutError as error:
        raise KubectlError(f"kubectl port-forward: nothing within {READY_TIMEOUT_S:.0f} s: {last}") from error
    raise KubectlError(f"kubectl port-forward: {last}")


async def _drain(output: asyncio.StreamReader) -> None:
    """Read a line for each connection, so that the pipe never fills."""
    while await output.readline():
        pass


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
