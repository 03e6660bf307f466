"""Ways from here to a controller's pod: kubectl's port-forward where there is a kubectl, else the API server's proxy.

A port-forward goes through the kubelet and so needs no route from the API server to pods, which many hosted control planes do
not have. The proxy needs no kubectl, and no kubelet that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Protocol

import aiohttp

from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.wire import PODS

READY_TIMEOUT_S, END_TIMEOUT_S = 15.0, 5.0
_FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")


class NoWayError(KubekitError):
    """A pod cannot be reached this way."""


class PodPort(NamedTuple):
    """What to reach."""

    namespace: str
    pod: str
    port: int


class WayToConnect(Protocol):
    """Asks one pod for one path; the answer may be of any status and is read as it comes."""

    def __call__(
        self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """GET ``path``."""
        ...


def forwarded_port(line: str) -> int | None:
    """The local port that a line of ``kubectl port-forward`` names; None for other lines. Pure."""
    found = _FORWARDING.match(line)
    return int(found[1]) if found else None


@asynccontextmanager
async def by_port_forward(command: Sequence[str], at: PodPort) -> AsyncIterator[WayToConnect]:
    """Run ``kubectl port-forward`` for the time of the block.

    Args:
        command: kubectl and the flags that say which cluster.
        at: the pod and its port.

    Raises:
        NoWayError: kubectl ends, or forwards nothing in time; the text is its last line.
    """
    arguments = [
        *command,
        "--namespace",
        at.namespace,
        "port-forward",
        "--address=127.0.0.1",
        f"pod/{at.pod}",
        f":{at.port}",
    ]
    # In a session of its own: an interrupt from the keyboard is ours to handle, and kubectl ends after us.
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        local = await _port_of(process.stdout)
        draining = asyncio.ensure_future(_drain(process.stdout))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READY_TIMEOUT_S)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{local}", timeout=timeout) as session:

            def ask(
                path: str, *, params: Mapping[str, str], headers: Mapping[str, str]
            ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
                return session.get(path, params=params, headers=headers)

            try:
                yield ask
            finally:
                draining.cancel()
    finally:
        await _end(process)


async def _port_of(output: asyncio.StreamReader) -> int:
    last = "it said nothing"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while line := (await output.readline()).decode(errors="replace").strip():
                if (port := forwarded_port(line)) is not None:
                    return port
                last = line
    except TimeoutError as error:
        raise NoWayError(f"kubectl port-forward: nothing within {READY_TIMEOUT_S:.0f} s: {last}") from error
    raise NoWayError(f"kubectl port-forward: {last}")


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


@asynccontextmanager
async def by_proxy(client: Client, at: PodPort) -> AsyncIterator[WayToConnect]:
    """Through the API server's proxy to the pod, with the rights and log-in of the kubeconfig."""
    root = PODS.path(at.namespace, f"{at.pod}:{at.port}", "proxy")

    def ask(
        path: str, *, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return client.stream(root + path, params=params, headers=headers)

    yield ask


async def open_way(
    stack: AsyncExitStack, client: Client, flags: Sequence[str], at: PodPort
) -> tuple[WayToConnect, str]:
    """The first way on which the pod answers, and what it is called; open until ``stack`` is closed.

    Raises:
        NoWayError: none; the text has the reason of each.
    """
    kubectl = shutil.which("kubectl")
    ways: list[tuple[str, AbstractAsyncContextManager[WayToConnect]]] = []
    if kubectl is not None:
        ways.append(("kubectl port-forward", by_port_forward([kubectl, *flags], at)))
    ways.append(("proxy of the API server", by_proxy(client, at)))
    reasons = []
    for name, way in ways:
        async with AsyncExitStack() as tried:
            try:
                ask = await tried.enter_async_context(way)
                async with asyncio.timeout(READY_TIMEOUT_S), ask("/healthz", params={}, headers={}) as answer:
                    if answer.status == 200:
                        stack.push_async_exit(tried.pop_all())
                        return ask, name
                    said = (await answer.text(errors="replace")).strip().splitlines() or [""]
                    reasons.append(f"{name}: {answer.status} {said[0][:300]}")
            except NoWayError as error:
                reasons.append(str(error))
            except (KubekitError, aiohttp.ClientError, TimeoutError, OSError) as error:
                reasons.append(f"{name}: {str(error) or type(error).__name__}")
    raise NoWayError(f"pod {at.namespace}/{at.pod} cannot be reached; " + "; ".join(reasons))
