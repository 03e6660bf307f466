"""Runs kubectl for `page`: forwards a port and creates a token, with the user's log-in of kubectl."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from kubekit.errors import KubekitError
from netperf.contract import CONTROLLER, PAGE_ACCOUNT, PAGE_AUDIENCE

READY_TIMEOUT_S = 60.0
"""Time for kubectl to answer, including a log-in in the browser."""
STOP_TIMEOUT_S = 5.0
"""Time for kubectl to end before it is killed."""
TOKEN_LIFETIME = "8h"
_LOGIN_HINT = "if the log-in needs a terminal, run `kubectl get namespaces` first"
_FORWARDING_LINE = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")


class PageError(KubekitError):
    """The page cannot be opened or shown any longer: kubectl is missing, failed or ended, or the controller refuses or does not answer."""


class PortForward(NamedTuple):
    """A running port-forward: its URL on this machine, and a task that ends when kubectl does."""

    url: str
    exit_task: asyncio.Task[None]


@asynccontextmanager
async def port_forward(kubectl: Sequence[str], namespace: str) -> AsyncIterator[PortForward]:
    """Forwards a free local port to the page of a controller in ``namespace`` within the block.

    ``kubectl`` is the command with the flags that choose the cluster.

    Raises:
        PageError: kubectl ends, or forwards nothing within `READY_TIMEOUT_S`.
    """
    target = (f"deployment/{CONTROLLER}", ":metrics")
    arguments = (*kubectl, "--namespace", namespace, "port-forward", "--address=127.0.0.1", *target)
    async with _run_kubectl(arguments, stderr=asyncio.subprocess.STDOUT) as process:
        assert process.stdout is not None
        port = await _read_local_port(process.stdout)
        exit_task = asyncio.create_task(_drain_output(process.stdout))
        try:
            yield PortForward(f"http://127.0.0.1:{port}", exit_task)
        finally:
            exit_task.cancel()


async def create_page_token(kubectl: Sequence[str], namespace: str) -> str:
    """Create a token of the page's ServiceAccount. Raises PageError if kubectl fails or does not answer in `READY_TIMEOUT_S`."""
    flags = (f"--audience={PAGE_AUDIENCE}", f"--duration={TOKEN_LIFETIME}")
    arguments = (*kubectl, "--namespace", namespace, "create", "token", PAGE_ACCOUNT, *flags)
    async with _run_kubectl(arguments, stderr=asyncio.subprocess.PIPE) as process:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                output, errors = (text.decode(errors="replace").strip() for text in await process.communicate())
        except TimeoutError as error:
            raise PageError(f"kubectl create token: no answer within {READY_TIMEOUT_S:g} s; {_LOGIN_HINT}") from error
    if process.returncode:
        raise PageError(errors.rpartition("\n")[2] or "kubectl create token failed")
    return output


@asynccontextmanager
async def _run_kubectl(arguments: Sequence[str], *, stderr: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs kubectl within the block, and stops it at the end."""
    # In a session of its own, because Ctrl-C must not end kubectl before us.
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _read_local_port(output: asyncio.StreamReader) -> int:
    last_line = "no output"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            # Log-in plugins print empty lines among their instructions.
            while data := await output.readline():
                line = data.decode(errors="replace").strip()
                if match := _FORWARDING_LINE.match(line):
                    return int(match[1])
                last_line = line or last_line
    except TimeoutError as error:
        message = f"kubectl port-forward: not ready within {READY_TIMEOUT_S:g} s: {last_line}; {_LOGIN_HINT}"
        raise PageError(message) from error
    raise PageError(f"kubectl port-forward: {last_line}")


async def _drain_output(output: asyncio.StreamReader) -> None:
    """Read until kubectl ends. It prints a line for each connection, which would fill the pipe."""
    while await output.readline():
        pass
