"""What every command is: arguments, a question to the cluster, and ways to show the answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from rich.console import RenderableType

from controller.cli.session import Session

Row = Sequence[object]
Completes = Literal["", "appgroups", "pods", "nodes", "zones"]


class Command(Protocol):
    """One subcommand. The driver asks, shows the answer in the format wanted, and asks again under ``--watch``.

    Attributes:
        name: the subcommand.
        help: half a sentence for the list of commands.
        description: what it shows and how to read it.
        watchable: whether it takes ``--watch``.
        completes: kind of objects that the shell's Tab key should offer for its arguments.
    """

    name: str
    help: str
    description: str
    watchable: bool
    completes: Completes

    def online(self, options: argparse.Namespace) -> bool:
        """Whether the cluster is asked at all."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    async def ask(self, session: Session, options: argparse.Namespace) -> Any:
        """Get the answer, a struct or plain data, which ``-o json`` and ``-o yaml`` print as it is.

        Raises:
            KubekitError: no answer; the text says why.
        """

    def show(self, answer: Any, options: argparse.Namespace, width: int) -> RenderableType:
        """The answer for a person, at most ``width`` columns wide where that can be helped."""

    def rows(self, answer: Any, options: argparse.Namespace) -> tuple[Sequence[str], Iterable[Row]] | None:
        """Header and rows of ``-o csv``; None when the answer is no table."""

    def is_bad(self, answer: Any) -> bool:
        """Whether ``--exit-code`` should say that something is wrong."""
