"""`page`: the page of the controller in a browser, without a port-forward by hand."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import webbrowser
from collections.abc import Sequence

import aiohttp
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.controller_pods import ControllerPod
from controller.cli.local_proxy import LocalProxy
from controller.cli.page_token import PageToken
from controller.cli.port_forward import READY_TIMEOUT_S, PortForward, PortForwardError, port_forward
from controller.cli.session import NotFoundError, Session
from controller.cli.style import FAINT, STRONG
from kubekit.errors import ApiError
from kubekit.lease import Lease
from kubekit.wire import LEASES, PODS
from netperf.contract import CONTROLLER, CONTROLLER_POD_SELECTOR


class Opened(msgspec.Struct, frozen=True):
    """Where the page is now. ``address`` has the proxy's key, which is good once."""

    address: str
    pod: str


def in_order_of_trust(pods: Sequence[ControllerPod], holder: str) -> list[ControllerPod]:
    """The pods to ask: the leader first, then those that are ready and not about to go, and the others since they may
    answer. Pure.
    """

    def trust(pod: ControllerPod) -> tuple[bool, bool, str]:
        name, stays = pod.metadata.name, pod.metadata.deletion_timestamp is None
        return not holder.startswith(f"{name}-"), not (pod.ready and stays), name

    return sorted(pods, key=trust)


class OpenPage(Command):
    """See `controller.cli.command.Command`."""

    name = "page"
    examples = (
        ("page", "open it in the browser"),
        ("page --no-browser --port 9851", "print the address, at a port of yours"),
    )
    description = (
        "Finds a controller, runs kubectl port-forward to it, prints the address, which opens the page once, and opens the "
        "browser. Goes on until it is interrupted or the controller goes. "
        "Where the page asks for a log-in (page.auth), a token of the ServiceAccount netaware-page is asked for and shown to it."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Port and browser."""
        parser.add_argument(
            "--port", type=port_number, default=0, metavar="N", help="port on this machine (default: any)"
        )
        parser.add_argument("--no-browser", action="store_true", help="print the address and leave the browser alone")

    async def ask(self, session: Session, options: argparse.Namespace) -> Opened:
        """Forward a port, and serve the proxy."""
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise PortForwardError("there is no kubectl on PATH, whose port-forward leads to the page")
        reasons = []
        for pod in await _pods(session):
            name, port = pod.metadata.name, await session.port_of(pod)
            try:
                forward = await session.stack.enter_async_context(
                    port_forward([kubectl, *flags_of(options)], session.home, name, port)
                )
            except PortForwardError as error:
                reasons.append(f"{name}: {error}")
                continue
            return await self._serve(session, forward, name, options.port)
        raise PortForwardError("\n  ".join(reasons) or f"there is no pod of {CONTROLLER} in namespace {session.home}")

    async def _serve(self, session: Session, forward: PortForward, pod: str, port: int) -> Opened:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READY_TIMEOUT_S)
        asking = await session.stack.enter_async_context(aiohttp.ClientSession(forward.url, timeout=timeout))
        token = PageToken(session.client, session.home)
        proxy = LocalProxy(asking, token.get)
        try:
            refused = await proxy.refusal()
        except (aiohttp.ClientError, OSError) as error:
            raise PortForwardError(f"{pod}: {str(error) or type(error).__name__}") from error
        if refused:
            why = f"; no token to be had: {token.refused}" if token.refused else ""
            raise PortForwardError(f"the page lets nobody in without a token: {refused}{why}")
        self._ended = forward.ended
        return Opened(await session.stack.enter_async_context(proxy.running(port)), pod)

    def show(self, answer: Opened, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The address on a line of its own."""
        return Group(Text(answer.address, style=STRONG), Text(f"pod {answer.pod}; end with Ctrl-C", style=FAINT))

    async def stay(self, session: Session, answer: Opened, options: argparse.Namespace) -> None:  # noqa: ARG002
        """Open the browser, and wait for a signal, or for the end of the port-forward."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not on Windows, where an interrupt ends the program as any other.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, stopped.set)
        if not options.no_browser and has_screen():
            await asyncio.to_thread(webbrowser.open, answer.address)
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({waiting, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._ended.done():
            raise PortForwardError(f"the way to pod {answer.pod} has ended; run the command again")


async def _pods(session: Session) -> list[ControllerPod]:
    home, holder = session.home, ""
    with contextlib.suppress(ApiError):
        lease = await session.client.get(LEASES, CONTROLLER, Lease, namespace=home)
        holder = lease.spec.holder_identity or ""
    try:
        pods = await session.client.list(PODS, ControllerPod, namespace=home, label_selector=CONTROLLER_POD_SELECTOR)
    except ApiError as error:
        if error.forbidden:
            raise NotFoundError(f"pods of namespace {home} may not be listed: {error}") from error
        raise
    return in_order_of_trust(pods, holder)


def flags_of(options: argparse.Namespace) -> list[str]:
    """What tells kubectl to use the same cluster. Pure."""
    given = (("--kubeconfig", options.kubeconfig), ("--context", options.context))
    return [f"{flag}={value}" for flag, value in given if value]


def has_screen() -> bool:
    """Whether a browser has somewhere to appear: not in a bare terminal, where it would take the terminal."""
    return sys.platform in {"darwin", "win32"} or any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY"))


def port_number(text: str) -> int:
    """A TCP port, 0 for any."""
    if not text.isdecimal() or int(text) > 65535:
        msg = f"{text!r} is no port"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
