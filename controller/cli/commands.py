"""All subcommands, in the order of the help text. A command is imported when it is used: importing all takes most of a second."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from controller.cli.command import Command


class Summary(NamedTuple):
    """A subcommand that is not imported yet: its name, its line in the list of commands, and its class."""

    name: str
    help: str
    module: str
    type_: str

    def load(self) -> Command:
        """Import it."""
        found: Command = getattr(import_module(f"controller.cli.{self.module}"), self.type_)()
        return found


SUMMARIES: Sequence[Summary] = (
    Summary("status", "is it working: every part and every finding on one screen", "status", "ShowStatus"),
    Summary("diagnose", "what is wrong, its cause, and what fixes it", "diagnose", "Diagnose"),
    Summary("page", "open the page in the browser: what is wrong, costs, placement, live", "page", "OpenPage"),
    Summary("costs", "costs, or latencies, between zones as a heat map", "costs", "ShowCosts"),
    Summary("latency", "the newest sample between two zones, both ways", "latency", "Latency"),
    Summary("graph", "an AppGroup as a tree: order, placement, cost of each dependency", "graph", "GraphOf"),
    Summary("explain", "why a pod is where it is, and what a zone's loss takes from a group", "explain", "Explain"),
    Summary("bandwidth", "bandwidth asked, allocated, enforced and used, by node or by pod", "bandwidth", "Bandwidth"),
    Summary("simulate", "where an AppGroup would land now: the default scheduler against ours", "simulate", "Simulate"),
    Summary("deschedule", "--dry-run: which pods would move, why and where to", "deschedule", "Deschedule"),
    Summary("propose", "write AppGroups from measured traffic", "propose", "Propose"),
    Summary("money", "what traffic between zones costs, and whose it is", "money", "MoneyOf"),
    Summary("convert", "turn older spellings of AppGroup and NetworkTopology into accepted ones", "convert", "Convert"),
)
ALIASES = {"why": "diagnose"}
HELP = {summary.name: summary.help for summary in SUMMARIES}


def load_all() -> Sequence[Command]:
    """Import every command."""
    return tuple(summary.load() for summary in SUMMARIES)
