"""Help: every command has examples that its own grammar takes."""

from __future__ import annotations

import re
import shlex

from controller.cli.commands import load_all
from controller.cli.parser import EPILOG, build_parser


def test_every_example_is_right_usage() -> None:
    first = re.findall(r"kubectl netaware (.*?)\s{3,}", EPILOG)
    lines = [(shlex.split(line)[0], line) for line in first]
    lines += [(command.name, line) for command in load_all() for line, _ in command.examples]
    wrong = [line for name, line in lines if build_parser(load_all()).parse_args(shlex.split(line)).command != name]
    assert wrong == []
    assert first
    assert all(command.examples for command in load_all())
