"""`convert`: turns AppGroups and NetworkTopologies with older API groups or field names into accepted ones."""

from __future__ import annotations

import argparse
import asyncio

import msgspec
import yaml
from rich.console import RenderableType

from controller.cli.cluster_file import read_documents
from controller.cli.command import Command
from controller.cli.session import Session
from controller.convert.documents import Document
from controller.convert.spellings import Change, convert_documents


class ConversionResult(msgspec.Struct, frozen=True):
    """All objects of the files, and the changes to them."""

    objects: list[Document]
    changes: list[Change]


class ConvertCommand(Command):
    examples = (("convert -f old.yaml", "print it with accepted names, for kubectl apply -f -"),)
    description = (
        "Reads YAML or JSON, and prints AppGroups and NetworkTopologies with the API group and field names that the API server "
        "accepts; other objects stay unchanged. Lists the changes on standard error. Needs no cluster."
    )
    prints_documents = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        help_text = "file to convert; - is standard input"
        parser.add_argument("-f", "--filename", action="append", required=True, metavar="FILE", help=help_text)

    def reads_cluster(self, options: argparse.Namespace) -> bool:
        return False

    async def run(self, session: Session, options: argparse.Namespace) -> ConversionResult:
        documents = await asyncio.to_thread(read_documents, options.filename, "--filename")
        objects, changes = convert_documents(documents)
        session.notes += [f"changed: {change}" for change in changes]
        if not changes:
            session.notes.append("nothing was changed")
        return ConversionResult(objects, changes)

    def render(self, answer: ConversionResult, options: argparse.Namespace, width: int) -> RenderableType:
        """YAML documents, ready for kubectl."""
        return yaml.safe_dump_all(answer.objects, sort_keys=False, allow_unicode=True, width=120)
