"""Completion: what may follow, in the format that kubectl (and every cobra program) uses between program and shell.

One candidate per line, a description behind a tab, and a last line ``:4`` which says "no file names". kubectl 1.26 or later calls
``kubectl_complete-netaware`` for it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

from controller.cli.command import Command
from controller.cli.kubeconfig import connect
from controller.cli.parser import build_parser
from controller.cluster.resources import APPGROUPS
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.wire import NAMESPACES, NODES, PODS, Node, Object
from netperf.contract import ZONE_LABEL

PATIENCE_S = 2.0
NO_FILES, FILES = ":4", ":0"

_RESOURCES = {"appgroups": APPGROUPS, "pods": PODS, "nodes": NODES, "namespaces": NAMESPACES}


def answer(words: Sequence[str], commands: Sequence[Command]) -> int:
    """Print what may follow ``words``, whose last one is what has been typed of the next."""
    typed = words[-1] if words else ""
    lines = [line for line in _candidates(list(words[:-1]), typed, commands) if line.startswith(typed)]
    files = bool(words[:-1]) and words[-2] in {"-f", "--filename", "--kubeconfig"}
    sys.stdout.write("\n".join([*sorted(set(lines)), FILES if files else NO_FILES]) + "\n")
    return 0


def _candidates(before: list[str], typed: str, commands: Sequence[Command]) -> Iterator[str]:
    parser = build_parser(commands)
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))  # noqa: SLF001
    chosen = next((word for word in before if word in subparsers.choices), None)
    active = subparsers.choices[chosen] if chosen is not None else parser
    pending = _taking_value(active, before[-1]) if before else None
    if pending is not None:
        yield from _values(pending, before)
        return
    if typed.startswith("-"):
        for action in active._actions:  # noqa: SLF001
            yield from (f"{flag}\t{_plain(action.help)}" for flag in action.option_strings if flag.startswith("--"))
        return
    if chosen is None:
        for choice in subparsers._choices_actions:  # noqa: SLF001
            yield f"{choice.dest}\t{_plain(choice.help)}"
        return
    for action in active._actions:  # noqa: SLF001
        if not action.option_strings and action.choices:
            yield from (str(choice) for choice in action.choices)
    command = next((c for c in commands if c.name == chosen), None)
    if command is not None and command.completes:
        yield from _names(command.completes, before)


def _plain(text: str | None) -> str:
    return " ".join((text or "").split())


def _taking_value(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """The flag that ``word`` is, if a value has to follow it."""
    action = parser._option_string_actions.get(word)  # noqa: SLF001
    return action if action is not None and action.nargs != 0 else None


def _values(action: argparse.Action, before: list[str]) -> Iterator[str]:
    if action.choices:
        yield from (str(choice) for choice in action.choices)
    elif action.dest == "namespace":
        yield from _names("namespaces", before)


def _names(kind: str, before: list[str]) -> list[str]:
    """Names of objects in the cluster; none when it does not answer quickly."""
    given = {flag: before[i + 1] for i, flag in enumerate(before[:-1]) if flag.startswith("-")}
    with suppress(KubekitError, TimeoutError):
        return asyncio.run(_ask(kind, given))
    return []


async def _ask(kind: str, given: dict[str, str]) -> list[str]:
    cluster = await asyncio.to_thread(connect, given.get("--kubeconfig"), given.get("--context"))
    namespace = given.get("-n") or given.get("--namespace") or cluster.namespace
    async with asyncio.timeout(PATIENCE_S), Client(cluster, timeout_s=PATIENCE_S) as client:
        if kind == "zones":
            nodes = await client.list(NODES, Node)
            return [zone for node in nodes if (zone := node.metadata.label(ZONE_LABEL))]
        wanted = _RESOURCES[kind]
        found = await client.list(wanted, Object, namespace=namespace if wanted.namespaced else None)
        return [item.metadata.name for item in found]
