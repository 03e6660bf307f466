"""`page`: opens the controller's page in a browser."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import webbrowser

import aiohttp
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.kubectl import READY_TIMEOUT_S, PageError, PortForward, create_page_token, port_forward
from controller.cli.local_proxy import LocalProxy
from controller.cli.session import Session
from controller.cli.style import FAINT, STRONG


class PageAddress(msgspec.Struct, frozen=True):
    """The address of the page, with the one-time key of `LocalProxy`."""

    address: str


class PageCommand(Command):
    examples = (("page", "open it in the browser"), ("page --no-browser", "only print the address"))
    description = (
        "Runs kubectl port-forward to a controller, prints an address with a one-time key, and opens it in the browser. "
        "Ends with Ctrl-C, or with the controller. Creates a token of the ServiceAccount netaware-page, which the page requires "
        "unless page.auth is none."
    )

    _port_forward: PortForward

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no-browser", action="store_true", help="only print the address")

    def reads_cluster(self, options: argparse.Namespace) -> bool:
        """False: kubectl connects to the API server."""
        return False

    async def run(self, session: Session, options: argparse.Namespace) -> PageAddress:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise PageError("there is no kubectl on PATH; install it, the page needs its port-forward")
        flags = (("--kubeconfig", options.kubeconfig), ("--context", options.context))
        command = [kubectl, *(f"{flag}={value}" for flag, value in flags if value)]
        enter_context = session.exit_stack.enter_async_context
        self._port_forward = await enter_context(port_forward(command, session.netaware_namespace))
        token = token_error = ""
        try:
            token = await create_page_token(command, session.netaware_namespace)
        except PageError as error:
            # The page needs no token if page.auth is none.
            token_error = str(error)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READY_TIMEOUT_S)
        proxy = LocalProxy(await enter_context(aiohttp.ClientSession(self._port_forward.url, timeout=timeout)), token)
        try:
            refusal = await proxy.fetch_token_error()
        except (aiohttp.ClientError, OSError) as error:
            raise PageError(str(error) or type(error).__name__) from error
        if refusal:
            raise PageError(f"the page requires a token: {'; '.join(filter(None, (refusal, token_error)))}")
        return PageAddress(await enter_context(proxy.serve()))

    def render(self, answer: PageAddress, options: argparse.Namespace, width: int) -> RenderableType:
        return Group(Text(answer.address, style=STRONG), Text("end with Ctrl-C", style=FAINT))

    async def keep_open(self, session: Session, answer: PageAddress, options: argparse.Namespace) -> None:
        """Open the browser, and wait until a signal arrives; raises PageError when the port-forward ends."""
        task = asyncio.current_task()
        assert task is not None
        # Windows has no signal handlers; there a signal ends the program.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        # Without a display, `webbrowser` would start a text browser in this terminal.
        has_display = sys.platform in {"darwin", "win32"} or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        if not options.no_browser and has_display:
            await asyncio.to_thread(webbrowser.open, answer.address)
        await self._port_forward.exit_task
        raise PageError("the connection to the controller has ended; run the command again")
