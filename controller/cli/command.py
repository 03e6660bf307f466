"""The interface of a command: its arguments, its answer, and how the answer is shown."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from controller.cli.session import Session


class Command(ABC):
    """One subcommand: ``run`` returns the answer, which is printed as data (``-o json``) or as ``render`` shows it.

    Attributes:
        description: text for ``--help``: what the command shows and how to read it.
        examples: arguments of ``kubectl netaware``, each with its effect.
        prints_documents: whether ``render`` returns documents for other programs, in which texts stay unchanged.
    """

    description: ClassVar[str]
    examples: ClassVar[Sequence[tuple[str, str]]]
    prints_documents: ClassVar[bool] = False

    def configure(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027
        """Add the command's own arguments; none by default."""

    @abstractmethod
    async def run(self, session: Session, options: argparse.Namespace) -> Any:
        """Return the answer, a struct or plain data, which ``-o json`` and ``-o yaml`` print whole.

        Raises:
            KubekitError: there is no answer; the text gives the reason.
        """

    @abstractmethod
    def render(self, answer: Any, options: argparse.Namespace, width: int) -> RenderableType:
        """Return the answer as text or tables, if possible at most ``width`` columns wide."""

    def reads_cluster(self, options: argparse.Namespace) -> bool:
        """Whether ``run`` reads the API server with these arguments."""
        return True

    async def keep_open(self, session: Session, answer: Any, options: argparse.Namespace) -> None:  # noqa: B027
        """Run after the answer is printed; the command ends when this returns, by default at once."""
