"""Runs commands of `kubectl netaware` without a cluster, and renders their answers."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any, cast

import msgspec

from controller.cli.command import Command
from controller.cli.commands import load_command
from controller.cli.output import Screen
from controller.cli.parser import parse
from controller.cli.session import Session
from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit.client import Client
from tests.unit.controller.components import HOME, FakeClient

APPGROUPS = "appgroup.diktyo.x-k8s.io/v1alpha1"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class SnapshotSession(Session):
    """A session with this snapshot, of a cluster whose other objects cannot be found."""

    def __init__(self, snapshot: ClusterSnapshot, namespace: str | None = None, **options: Any) -> None:
        super().__init__(cast("Client", FakeClient((), None)), None, namespace, HOME, **options)
        self._snapshot = snapshot

    async def read_snapshot(self, *, everything: bool = False, **_: bool) -> ClusterSnapshot:
        unknown = ControlPlaneStatus(is_lease_conclusive=False)
        return msgspec.structs.replace(self._snapshot, control_plane=unknown if everything else None)


def load_command_with_options(*argv: str) -> tuple[Command, argparse.Namespace]:
    """The command of an argv, and its options."""
    options = parse(argv)
    return load_command(options.command), options


def render_answer(answer: object, *argv: str) -> str:
    """A terminal's output for an answer of a command."""
    command, options = load_command_with_options(*argv)
    Screen(out := Terminal()).print_answer(command, answer, options)
    return out.getvalue()


async def render_command(snapshot: ClusterSnapshot, *argv: str, stream: io.StringIO | None = None) -> str:
    """The output of a command about this cluster, on a terminal or this stream."""
    command, options = load_command_with_options(*argv)
    out = Terminal() if stream is None else stream
    answer = await command.run(SnapshotSession(snapshot, options.namespace or None), options)
    Screen(out).print_answer(command, answer, options)
    return out.getvalue()


async def run_command(session: Session, *argv: str) -> Any:
    """The answer of a command."""
    command, options = load_command_with_options(*argv)
    return await command.run(session, options)


def write_group_file(folder: Path, *objects: Any) -> str:
    """Write an AppGroup and other objects to a file; returns its path."""
    file = folder / "group.json"
    file.write_text(json.dumps([{**body, "apiVersion": body.get("apiVersion") or APPGROUPS} for body in objects]))
    return str(file)


def write_kubeconfig(folder: Path, server: str) -> str:
    """Write a kubeconfig without credentials; returns its path."""
    (folder / "config").write_text(
        f"{{current-context: c, clusters: [{{name: c, cluster: {{server: '{server}'}}}}],"
        " contexts: [{name: c, context: {cluster: c}}]}"
    )
    return str(folder / "config")
