"""Help: every command has examples that its own grammar takes, and names the options of all commands in one place."""

from __future__ import annotations

import re
import shlex

import pytest

from controller.cli.command import Command
from controller.cli.commands import COMMANDS
from controller.cli.parser import EPILOG, build_parser


def help_of(command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        build_parser(COMMANDS).parse_args([command.name, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: str(c.name))
def test_every_example_is_right_usage(command: Command) -> None:
    assert command.examples
    for line, what in command.examples:
        options = build_parser(COMMANDS).parse_args(shlex.split(line))
        assert options.command == command.name
        assert what


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: str(c.name))
def test_help_has_the_commands_own_options_and_one_block_of_the_others(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, capsys, monkeypatch)
    assert f"kubectl netaware {command.examples[0][0]}" in text
    assert text.count("--kubeconfig") == 1, "once, in the block of what every command has"
    assert ("--watch" in text) == command.watchable
    assert max(map(len, text.splitlines())) <= 120


def test_the_first_helps_examples_are_right_usage() -> None:
    lines = re.findall(r"kubectl netaware (.*?)\s{3,}", EPILOG)
    assert lines
    for line in lines:
        build_parser(COMMANDS).parse_args(shlex.split(line))
