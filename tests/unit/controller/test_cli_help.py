"""Help: every command has examples that its own grammar takes, and names the options of all commands in one place."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

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


@pytest.mark.parametrize("command", load_all(), ids=lambda c: str(c.name))
def test_help_has_the_commands_own_options_and_one_block_of_the_others(
    command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        build_parser(load_all()).parse_args([command.name, "--help"])
    text = capsys.readouterr().out
    assert f"kubectl netaware {command.examples[0][0]}" in text
    assert text.count("--kubeconfig") == 1, "once, in the block of what every command has"
    assert max(map(len, text.splitlines())) <= 120
