"""One way to read a duration, and a time."""

from __future__ import annotations

import pytest

from kubekit.durations import seconds
from kubekit.errors import ConfigError
from kubekit.wire import parse_time


def test_every_unit_is_read_and_parts_are_added_up() -> None:
    texts = ("90s", "5m", "1m30s", "1.5h", "2d", "2w", "14ms", "0.5s", "250us", ".5s", " 90s ")
    assert [seconds(text, "f") for text in texts] == [
        90, 300, 90, 5400, 172_800, 1_209_600, 0.014, 0.5, 0.00025, 0.5, 90,
    ]  # fmt: skip
    assert seconds(2, "f") == 2


@pytest.mark.parametrize(
    "wrong", ["15", "1 m", "", "m", "-1s", "1m 30s", "nan", float("nan"), float("inf"), "9" * 400 + "s"]
)
def test_what_is_no_duration_is_reported_with_its_field(wrong: str | float) -> None:
    with pytest.raises(ConfigError, match=r"^f: "):
        seconds(wrong, "f")


def test_the_limits_are_reported() -> None:
    assert seconds("1m", "f", minimum_s=60, maximum_s=60) == 60
    for text in ("59s", "61s"):
        with pytest.raises(ConfigError, match=rf"^f: '{text}' is out of range \(at least 1m, at most 1m\)"):
            seconds(text, "f", minimum_s=60, maximum_s=60)


def test_a_time_has_an_offset() -> None:
    assert parse_time("1970-01-01T01:00:00+01:00") == parse_time("1970-01-01T00:00:00Z") == 0
    for wrong in ("1970-01-01", "1970-01-01T00:00:00", "now"):
        with pytest.raises(ValueError, match=wrong):
            parse_time(wrong)
