"""Runs a command line: its answer goes to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from enum import IntEnum
from typing import TYPE_CHECKING

from controller.cli.command import Command
from controller.cli.commands import load_command
from controller.cli.parser import parse
from kubekit import logs
from kubekit.errors import ConfigError, KubekitError
from kubekit.text import make_printable

if TYPE_CHECKING:
    from controller.cli.session import Session

PROMETHEUS_VARIABLE = "NETAWARE_PROMETHEUS"


class ExitCode(IntEnum):
    """Exit codes; `controller.cli.parser.EPILOG` describes them."""

    SUCCESS = 0
    FAILURE = 1
    USAGE = 2
    FINDINGS = 3
    INTERRUPTED = 130


def run(argv: Sequence[str]) -> int:
    """Run a command line; returns the exit code. An error is one line on standard error; argparse prints usage errors."""
    options = parse(argv)
    logs.configure(level="error")
    try:
        return asyncio.run(_run_command(load_command(options.command), options))
    except KubekitError as error:
        # The API server's messages may contain users' text.
        print(f"error: {make_printable(str(error))}", file=sys.stderr)
        return ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.FAILURE
    except BrokenPipeError:
        # The reader closed the pipe, as in `... | head`; without this Python raises again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.SUCCESS
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitCode.INTERRUPTED


async def _run_command(command: Command, options: argparse.Namespace) -> ExitCode:
    from controller.cli.output import Screen

    screen = Screen()
    async with AsyncExitStack() as stack:
        session = await _open_session(command, options, stack)
        answer = await command.run(session, options)
        screen.print_answer(command, answer, options)
        read_errors = (f"{topic}: {reason}" for topic, reason in session.read_errors.items())
        for note in (*read_errors, *session.notes):
            screen.print_note(note)
        sys.stdout.flush()
        await command.keep_open(session, answer, options)
        # Only commands whose answers have findings have --exit-code.
        has_findings = options.exit_code and any(finding.severity != "info" for finding in answer.findings)
        return ExitCode.FINDINGS if has_findings else ExitCode.SUCCESS


async def _open_session(command: Command, options: argparse.Namespace, stack: AsyncExitStack) -> Session:
    from controller.cli.kubeconfig import find_cluster_config
    from controller.cli.session import Session
    from controller.prometheus import PrometheusClient
    from kubekit.client import Client
    from kubekit.config import ClusterConfig

    # Commands that need no cluster get a client that they never use.
    cluster = ClusterConfig("http://offline.invalid")
    if command.reads_cluster(options):
        cluster = await asyncio.to_thread(find_cluster_config, options.kubeconfig or None, options.context or None)
    client = Client(cluster, user_agent="kubectl-netaware", timeout_s=options.timeout, list_timeout_s=options.timeout)
    await stack.enter_async_context(client)
    address = options.prometheus or os.environ.get(PROMETHEUS_VARIABLE, "")
    prometheus = None
    if address:
        field = "--prometheus" if options.prometheus else PROMETHEUS_VARIABLE
        prometheus = PrometheusClient(address, field=field)
    namespace = None if options.all_namespaces else options.namespace or cluster.namespace
    return Session(client, prometheus, namespace, options.netaware_namespace, exit_stack=stack)
