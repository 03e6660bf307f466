"""All subcommands. A command is imported when a command line names it, because importing all is slow."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.cli.command import Command

HELP_BY_COMMAND: Mapping[str, str] = {
    "status": "all parts and findings on one screen",
    "diagnose": "findings, their causes and fixes",
    "page": "open the web page: findings, costs, placement",
    "costs": "costs or round trips between zones",
    "latency": "cost and round trips between two zones, both ways",
    "graph": "an AppGroup: order, placement, cost of each dependency",
    "explain": "zones and nodes for a pod, and their costs",
    "bandwidth": "requests, capacity and limits, by node or by pod",
    "simulate": "placement of an AppGroup by the default scheduler and by netaware",
    "deschedule": "which pods would move, why and where to",
    "propose": "AppGroups from measured traffic",
    "money": "price of traffic between zones",
    "convert": "update older spellings of AppGroup and NetworkTopology",
}
"""Command -> its line in the help, in the help's order."""
COMMAND_BY_ALIAS = {"why": "diagnose"}


def load_command(name: str) -> Command:
    """Import and create a command by its name or alias."""
    module = COMMAND_BY_ALIAS.get(name, name)
    command: Command = getattr(import_module(f"controller.cli.{module}"), f"{module.capitalize()}Command")()
    return command
