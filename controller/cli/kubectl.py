"""Runs kubectl for `page`: forwards a port, and creates tokens, with kubectl's log-in."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from kubekit.errors import KubekitError
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE

READY_TIMEOUT_S, END_TIMEOUT_S = 15.0, 5.0
TOKEN_LIFE_S = 600
"""The shortest that the API server issues."""
_TOKEN_FLAGS = (f"--audience={PAGE_AUDIENCE}", f"--duration={TOKEN_LIFE_S}s")
RENEW_AFTER_S, RETRY_AFTER_S = 360.0, 30.0
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
    process = await _start(kubectl, "--namespace", namespace, "port-forward", "--address=127.0.0.1", target, f":{port}")
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


class PageToken:
    """Short-lived tokens of the page's ServiceAccount.

    Attributes:
        refused: why there is no token; empty if there is one.
    """

    def __init__(self, kubectl: Sequence[str], namespace: str) -> None:
        self._command = (*kubectl, "--namespace", namespace, "create", "token", PAGE_ACCOUNT)
        self._token, self._renew_at, self.refused = "", float("-inf"), ""
        self._lock = asyncio.Lock()

    async def get(self) -> str:
        """The token; empty without one, and then the page says whether it needs one."""
        async with self._lock:
            if time.monotonic() >= self._renew_at:
                process = await _start(self._command, *_TOKEN_FLAGS, stderr=asyncio.subprocess.PIPE)
                output, errors = (text.decode(errors="replace").strip() for text in await process.communicate())
                well = process.returncode == 0
                self._token, self.refused = (output, "") if well else (self._token, errors.rpartition("\n")[2])
                self._renew_at = time.monotonic() + (RENEW_AFTER_S if well else RETRY_AFTER_S)
            return self._token


async def _start(
    kubectl: Sequence[str], *arguments: str, stderr: int = asyncio.subprocess.STDOUT
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *kubectl,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


async def _port_of(output: asyncio.StreamReader) -> int:
    last = "it said nothing"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while line := (await output.readline()).decode(errors="replace").strip():
                if found := _FORWARDING.match(line):
                    return int(found[1])
                last = line
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
