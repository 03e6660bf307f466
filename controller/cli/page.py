"""`page`: the page of the controller in a browser, without a port-forward by hand."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.connecting import NoWayError, PodPort, WayToConnect, open_way
from controller.cli.controller_pods import ControllerPod
from controller.cli.front_door import FrontDoor
from controller.cli.page_token import Ticket
from controller.cli.session import NotFoundError, Session
from controller.cli.style import FAINT, STRONG
from kubekit.errors import ApiError
from kubekit.lease import Lease
from kubekit.wire import LEASES, PODS
from netperf.contract import CONTROLLER, CONTROLLER_POD_SELECTOR


class Opened(msgspec.Struct, frozen=True):
    """Where the page is now. ``address`` has the key of the door: whoever knows it sees the page."""

    address: str
    pod: str
    way: str


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
    help = "open the page in the browser: what is wrong, costs, placement, live"
    examples = (
        ("page", "open it in the browser"),
        ("page --no-browser --port 9851", "print the address, at a port of yours"),
    )
    description = (
        "Finds a controller, opens a way to it (kubectl's port-forward, or the API server's proxy where that does not work), "
        "prints the address and opens the browser. Goes on until it is interrupted, with another controller when this one goes. "
        "Where the page asks for a log-in (page.auth), a token of the ServiceAccount netaware-page is asked for and shown to it."
    )
    watchable = False

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Port and browser."""
        parser.add_argument(
            "--port", type=port_number, default=0, metavar="N", help="port on this machine (default: any)"
        )
        parser.add_argument("--no-browser", action="store_true", help="print the address and leave the browser alone")

    async def ask(self, session: Session, options: argparse.Namespace) -> Opened:
        """Open the door."""
        finder = await session.stack.enter_async_context(_Finder(session, flags_of(options)))
        ticket = Ticket(session.client, session.home)
        door = FrontDoor(finder.find, ticket.get)
        if refused := await door.find():
            why = f"; no token to be had: {ticket.refused}" if ticket.refused else ""
            raise NoWayError(f"the page lets nobody in without a token: {refused}{why}")
        address = await session.stack.enter_async_context(door.running(options.port))
        return Opened(address, finder.pod, finder.way)

    def show(self, answer: Opened, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The address on a line of its own."""
        return Group(
            Text(answer.address, style=STRONG),
            Text(f"pod {answer.pod} by {answer.way}; end with Ctrl-C", style=FAINT),
        )

    async def stay(self, session: Session, answer: Opened, options: argparse.Namespace) -> None:  # noqa: ARG002
        """Open the browser, and wait for a signal."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not on Windows, where an interrupt ends the program as any other.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, ended.set)
        if not options.no_browser and has_screen():
            await asyncio.to_thread(webbrowser.open, answer.address)
        await ended.wait()


class _Finder(AsyncExitStack):
    """Holds one way open at a time.

    Attributes:
        pod, way: what is asked now, and how.
    """

    pod = way = ""

    def __init__(self, session: Session, flags: Sequence[str]) -> None:
        super().__init__()
        self._session, self._flags = session, flags

    async def find(self) -> WayToConnect:
        """A way to a controller that answers, after closing the one before.

        Raises:
            KubekitError: there is no pod, or none answers.
        """
        await self.aclose()
        session, reasons = self._session, []
        for pod in in_order_of_trust(await self._pods(), await self._holder()):
            try:
                at = PodPort(session.home, pod.metadata.name, await session.port_of(pod))
                ask, self.way = await open_way(self, session.client, self._flags, at)
            except NoWayError as error:
                reasons.append(str(error))
                continue
            self.pod = pod.metadata.name
            return ask
        raise NoWayError("\n  ".join(reasons) or f"there is no pod of {CONTROLLER} in namespace {session.home}")

    async def _pods(self) -> list[ControllerPod]:
        home = self._session.home
        try:
            return await self._session.client.list(
                PODS, ControllerPod, namespace=home, label_selector=CONTROLLER_POD_SELECTOR
            )
        except ApiError as error:
            if error.forbidden:
                raise NotFoundError(f"pods of namespace {home} may not be listed: {error}") from error
            raise

    async def _holder(self) -> str:
        with contextlib.suppress(ApiError):
            lease = await self._session.client.get(LEASES, CONTROLLER, Lease, namespace=self._session.home)
            return lease.spec.holder_identity or ""
        return ""


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
