"""The interface of a command: its arguments, its answer, and how to show it."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from controller.cli.session import Session


class Command(ABC):
    """One subcommand: ``run`` computes the answer, which is printed as data or as ``render`` shows it.

    Attributes:
        description: what it shows and how to read it.
        examples: lines to paste, behind ``kubectl netaware``, each with what it does.
        online: whether the cluster is asked at all.
        prints_documents: whether what it shows are documents for other programs, which keep their texts as they are.
    """

    description: ClassVar[str]
    examples: ClassVar[Sequence[tuple[str, str]]]
    online: ClassVar[bool] = True
    prints_documents: ClassVar[bool] = False

    def configure(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027
        """Add the command's own arguments; none by default."""

    @abstractmethod
    async def run(self, session: Session, options: argparse.Namespace) -> Any:
        """The answer, a struct or plain data, which ``-o json`` and ``-o yaml`` print as it is.

        Raises:
            KubekitError: no answer; the text says why.
        """

    @abstractmethod
    def render(self, answer: Any, options: argparse.Namespace, width: int) -> RenderableType:
        """The answer for a person, at most ``width`` columns wide where that can be helped."""

    def asks_cluster(self, options: argparse.Namespace) -> bool:  # noqa: ARG002
        """Whether these arguments need a cluster at all."""
        return self.online

    async def keep_open(self, session: Session, answer: Any, options: argparse.Namespace) -> None:  # noqa: B027
        """Runs after the answer was shown, for as long as it must stay open; ends at once by default."""

    def has_findings(self, answer: Any) -> bool:  # noqa: ARG002
        """Whether there are findings, for commands with ``--exit-code``."""
        return False
