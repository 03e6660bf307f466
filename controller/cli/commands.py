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
    Summary("status", "all parts and findings on one screen", "status", "ShowStatus"),
    Summary("diagnose", "findings, their causes, and what fixes them", "diagnose", "Diagnose"),
    Summary("page", "open the page in the browser: findings, costs, placement, live", "page", "OpenPage"),
    Summary("costs", "costs, or latencies, between zones", "costs", "ShowCosts"),
    Summary("latency", "the newest sample between two zones, both ways", "latency", "Latency"),
    Summary("graph", "an AppGroup: order, placement, cost of each dependency", "graph", "GraphOf"),
    Summary(
        "explain", "the places that a pod could be on, with the cost of each dependency there", "explain", "Explain"
    ),
    Summary("bandwidth", "bandwidth requested, allocated and limited, by node or by pod", "bandwidth", "Bandwidth"),
    Summary("simulate", "where the default scheduler and ours would place an AppGroup", "simulate", "Simulate"),
    Summary("deschedule", "--dry-run: which pods would move, why and where to", "deschedule", "Deschedule"),
    Summary("propose", "write AppGroups from measured traffic", "propose", "Propose"),
    Summary("money", "price of traffic between zones, and whose it is", "money", "MoneyOf"),
    Summary("convert", "turn older spellings of AppGroup and NetworkTopology into accepted ones", "convert", "Convert"),
)
ALIASES = {"why": "diagnose"}


def load_command(name: str) -> Command:
    """Import the command of that name, or of that alias."""
    return next(summary for summary in SUMMARIES if summary.name == ALIASES.get(name, name)).load()
