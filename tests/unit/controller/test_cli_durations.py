"""Every flag that takes a time reads the same texts."""

from __future__ import annotations

import pytest

from controller.cli import main
from controller.cli.commands import load_all
from controller.cli.parser import build_parser


def test_a_time_is_read_the_same_whichever_flag_it_is_given_to() -> None:
    """What a time may look like is of tests/unit/kubekit/test_durations.py."""
    for given, seconds in (("1m30s", 90), ("1.5h", 5400)):
        found = build_parser(load_all()).parse_args(["propose", "--window", given, "--timeout", given])
        assert [found.window, found.timeout] == [seconds, seconds]
        assert isinstance(found.window, int)


@pytest.mark.parametrize("text", ["timeout=soon", "timeout=2d", "timeout=0", "window=0s", "window=6", "window=13w"])
def test_what_is_no_time_or_out_of_range_is_told_with_the_flag(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["propose", f"--{text}"])
    flag, _, given = text.partition("=")
    assert f"argument --{flag}: '{given}' is " in capsys.readouterr().err
