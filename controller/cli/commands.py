"""All subcommands, in the order of the help text."""

from __future__ import annotations

from collections.abc import Sequence

from controller.cli.bandwidth import Bandwidth
from controller.cli.command import Command
from controller.cli.convert import Convert
from controller.cli.costs import ShowCosts
from controller.cli.deschedule import Deschedule
from controller.cli.explain import Explain
from controller.cli.graph import GraphOf
from controller.cli.latency import Latency
from controller.cli.money import MoneyOf
from controller.cli.page import OpenPage
from controller.cli.propose import Propose
from controller.cli.simulate import Simulate
from controller.cli.status import ShowStatus
from controller.cli.why import Why

COMMANDS: Sequence[Command] = (
    ShowStatus(),
    Why(),
    OpenPage(),
    ShowCosts(),
    Latency(),
    GraphOf(),
    Explain(),
    Bandwidth(),
    Simulate(),
    Deschedule(),
    Propose(),
    MoneyOf(),
    Convert(),
)
