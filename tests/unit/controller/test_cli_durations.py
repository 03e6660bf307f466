"""Every flag that takes a time reads the same texts."""

from __future__ import annotations

import pytest

from controller.cli.commands import COMMANDS
from controller.cli.parser import build_parser

FLAGS = {
    "timeout": ["status"],
    "interval": ["status", "--watch"],
    "since": ["latency", "a", "b"],
    "window": ["propose"],
}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("5m", 300), ("1m30s", 90), ("1.5h", 5400), ("1d", 86_400)]
)
def test_a_time_is_read_the_same_whichever_flag_it_is_given_to(flag: str, text: str, expected: float) -> None:
    options = build_parser(COMMANDS).parse_args([*FLAGS[flag], f"--{flag}", text])
    assert getattr(options, flag) == expected
    assert flag != "window" or isinstance(options.window, int)


@pytest.mark.parametrize(
    ("flag", "text", "told"),
    [
        ("timeout", "soon", "'soon' is no duration (write a number and its unit"),
        ("timeout", "2d", "'2d' is out of range"),
        ("interval", "0", "'0' is out of range (above 0"),
        ("since", "0s", "'0s' is out of range (above 0"),
        ("since", "6", "'6' is no duration"),
        ("window", "30s", "'30s' is out of range (at least 1m, at most 90d)"),
        ("window", "13w", "'13w' is out of range"),
    ],
)
def test_what_is_no_time_is_told_with_the_flag_and_what_to_write(
    capsys: pytest.CaptureFixture[str], flag: str, text: str, told: str
) -> None:
    with pytest.raises(SystemExit):
        build_parser(COMMANDS).parse_args([*FLAGS[flag], f"--{flag}", text])
    error = capsys.readouterr().err
    assert f"argument --{flag}: {told}" in error


def test_seconds_need_no_unit_where_they_never_did() -> None:
    options = build_parser(COMMANDS).parse_args(["status", "--watch", "--timeout", "15", "--interval", "0.5"])
    assert (options.timeout, options.interval) == (15, 0.5)
