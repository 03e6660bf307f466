"""All subcommands, in the order of the help text."""

from __future__ import annotations

from collections.abc import Sequence

from controller.cli.bandwidth import Bandwidth
from controller.cli.command import Command
from controller.cli.convert import Convert
from controller.cli.costs import Costs
from controller.cli.deschedule import Deschedule
from controller.cli.explain import Explain
from controller.cli.graph import GraphOf
from controller.cli.latency import Latency
from controller.cli.simulate import Simulate
from controller.cli.status import Status

COMMANDS: Sequence[Command] = (
    Status(),
    Costs(),
    Latency(),
    GraphOf(),
    Explain(),
    Bandwidth(),
    Simulate(),
    Deschedule(),
    Convert(),
)
