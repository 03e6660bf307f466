"""All subcommands. A command is imported when it is used: importing all takes most of a second."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.cli.command import Command

HELP: Mapping[str, str] = {
    "status": "all parts and findings on one screen",
    "diagnose": "findings, their causes and fixes",
    "page": "open the web page: findings, costs, placement",
    "costs": "costs or round trips between zones",
    "latency": "the newest sample between two zones, both ways",
    "graph": "an AppGroup: order, placement, cost of each dependency",
    "explain": "zones and nodes that a pod could be on, and their costs",
    "bandwidth": "requests, capacity and limits, by node or by pod",
    "simulate": "where the default scheduler and ours would place an AppGroup",
    "deschedule": "which pods would move, why and where to (--dry-run only)",
    "propose": "write AppGroups from measured traffic",
    "money": "price of traffic between zones, by dependency and group",
    "convert": "update older spellings of AppGroup and NetworkTopology",
}
"""Name of each command, in the order of the help text, and its line there."""
ALIASES = {"why": "diagnose"}


def load_command(name: str) -> Command:
    """Import the command of that name, or of that alias."""
    module = ALIASES.get(name, name)
    command: Command = getattr(import_module(f"controller.cli.{module}"), f"{module.capitalize()}Command")()
    return command
