"""Runs one command: its answer goes to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from controller.cli.command import Command
from controller.cli.commands import load_command
from controller.cli.parser import parse
from kubekit import logs
from kubekit.errors import ConfigError, KubekitError
from kubekit.text import printable

if TYPE_CHECKING:
    from controller.cli.output import Screen
    from controller.cli.session import Session

EXIT_ANSWERED, EXIT_FAILED, EXIT_USAGE, EXIT_FINDINGS, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
PROMETHEUS_VARIABLE = "NETAWARE_PROMETHEUS"
SILENCE_S = 2.0
"""After this time a note says what the command waits for."""


def run(argv: Sequence[str]) -> int:
    """Parse, ask, print; return the exit code."""
    options = parse(argv)
    logs.set_up(level="error")
    command = load_command(options.command)
    return _guarded(lambda: asyncio.run(_run(command, options)))


def _guarded(work: Callable[[], int]) -> int:
    """Turns an error into one line on stderr and an exit code."""
    try:
        return work()
    except KubekitError as error:
        # The API server's messages may contain users' text.
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except BrokenPipeError:
        # The reader closed the pipe, as in `... | head`; without this Python raises again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ANSWERED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED


async def _run(command: Command, options: argparse.Namespace) -> int:
    from controller.cli.output import open_screen

    screen = open_screen()
    async with AsyncExitStack() as stack:
        session = await _connect(command, options, stack)
        answer = await _ask(screen, session, command, options)
        screen.print_answer(command, answer, options)
        _print_notes(screen, session)
        sys.stdout.flush()
        await command.keep_open(session, answer, options)
        return EXIT_FINDINGS if command.has_findings(answer) and options.exit_code else EXIT_ANSWERED


async def _ask(screen: Screen, session: Session, command: Command, options: argparse.Namespace) -> object:
    """The command's answer; notes on stderr that the API server has not answered yet."""
    asking = asyncio.ensure_future(command.run(session, options))
    try:
        await asyncio.wait({asking}, timeout=SILENCE_S)
        if not asking.done() and command.asks_cluster(options) and not session.client.has_response:
            screen.note(f"no answer from {session.server} yet; waits {options.timeout:g} s for one")
        return await asking
    finally:
        asking.cancel()


async def _connect(command: Command, options: argparse.Namespace, stack: AsyncExitStack) -> Session:
    from controller.cli.kubeconfig import connect
    from controller.cli.session import Session
    from controller.prometheus import PrometheusClient
    from kubekit.client import Client
    from kubekit.config import ClusterConfig

    cluster = ClusterConfig("http://offline.invalid")
    if command.asks_cluster(options):
        cluster = await asyncio.to_thread(connect, options.kubeconfig or None, options.context or None)
    patience = {"timeout_s": options.timeout, "list_timeout_s": options.timeout}
    client = await stack.enter_async_context(Client(cluster, user_agent="kubectl-netaware", **patience))
    address = options.prometheus or os.environ.get(PROMETHEUS_VARIABLE, "")
    prometheus = None
    if address:
        field = "--prometheus" if options.prometheus else PROMETHEUS_VARIABLE
        prometheus = await stack.enter_async_context(PrometheusClient(address, field=field))
    namespace = None if options.all_namespaces else options.namespace or cluster.namespace
    return Session(
        client,
        prometheus,
        namespace,
        options.netaware_namespace,
        server=cluster.server,
        stack=stack,
    )


def _print_notes(screen: Screen, session: Session) -> None:
    for what, why in session.notes.items():
        screen.note(f"{what}: {why}")
    for remark in session.remarks:
        screen.note(remark)
