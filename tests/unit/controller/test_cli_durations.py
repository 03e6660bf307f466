"""Every flag that takes a time reads the same texts."""

from __future__ import annotations

import pytest

from controller.cli.commands import load_all
from controller.cli.parser import build_parser

FLAGS = {
    "timeout": ["status"],
    "window": ["propose"],
}


def parsed(flag: str, text: str) -> float:
    found: float = getattr(build_parser(load_all()).parse_args([*FLAGS[flag], f"--{flag}", text]), flag)
    return found


def test_a_time_is_read_the_same_whichever_flag_it_is_given_to() -> None:
    """What a time may look like is of tests/unit/kubekit/test_durations.py."""
    assert [parsed(flag, "1m30s") for flag in FLAGS] == [90] * len(FLAGS)
    assert isinstance(parsed("window", "1.5h"), int)
    assert parsed("timeout", "0.5") == 0.5


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("timeout", "soon"),
        ("timeout", "2d"),
        ("timeout", "0"),
        ("window", "0s"),
        ("window", "6"),
        ("window", "30s"),
        ("window", "13w"),
    ],
)
def test_what_is_no_time_or_out_of_range_is_told_with_the_flag(
    capsys: pytest.CaptureFixture[str], flag: str, text: str
) -> None:
    with pytest.raises(SystemExit):
        parsed(flag, text)
    assert f"argument --{flag}: '{text}' is " in capsys.readouterr().err
