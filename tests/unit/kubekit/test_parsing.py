"""Quantities, times and label selectors are parsed as by apimachinery, and durations with their units."""

from __future__ import annotations

import pytest

from kubekit import quantity, selectors
from kubekit.durations import parse_duration
from kubekit.errors import ConfigError, QuantityError, SelectorError
from kubekit.selectors import LabelSelector, MatchExpression
from kubekit.wire import parse_time


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30),
        ("1M", 10**6),
        ("0.5", 1),
        ("1e3", 1000),
        ("1E", 10**18),
        (".5k", 500),
        ("+5", 5),
        ("-5M", -5 * 10**6),
        ("-1500m", -2),
        ("-9223372036854775808", -(2**63)),
        (250, 250),
    ],
)
def test_integers_round_away_from_zero_as_by_quantity_value(text: str | int, value: int) -> None:
    assert quantity.parse_int(text) == value


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("250m", 250), ("0.1", 100), ("1u", 1), ("2k", 2_000_000)])
def test_millis_round_up_as_by_quantity_milli_value(text: str, milli: int) -> None:
    assert quantity.parse_milli(text) == milli


@pytest.mark.parametrize("text", ["", "ten", "10 M", "1KB", "1e", "--1", "0x10", "1e99999", "Mi", "NaN", "1ki"])
def test_errors_of_invalid_quantities_quote_the_text(text: str) -> None:
    with pytest.raises(QuantityError, match="quantity") as caught:
        quantity.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["1e30", "-1e30", "9223372036854775807.5"])
def test_values_beyond_64_bits_are_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="64 bits"):
        quantity.parse_int(text)


def test_durations_have_units_and_several_parts() -> None:
    seconds_by_text = {"90s": 90, "5m": 300, "2d": 172_800, "2w": 1_209_600, "14ms": 0.014, "250us": 0.00025}
    seconds_by_text |= {"1m30s": 90, "1.5h": 5400, "0.5s": 0.5, ".5s": 0.5, " 90s ": 90}
    assert {text: parse_duration(text, "f") for text in seconds_by_text} == seconds_by_text
    assert parse_duration(2, "f") == 2


@pytest.mark.parametrize("invalid", ["15", "1 m", "", "m", "-1s", "nan", float("nan"), float("inf"), "9" * 400 + "s"])
def test_errors_of_invalid_durations_name_the_field(invalid: str | float) -> None:
    with pytest.raises(ConfigError, match=r"^f: "):
        parse_duration(invalid, "f")


def test_errors_of_durations_out_of_range_name_the_limits() -> None:
    assert parse_duration("1m", "f", minimum_s=60, maximum_s=60) == 60
    for text in ("59s", "61s"):
        with pytest.raises(ConfigError, match=rf"^f: '{text}' is out of range \(at least 60 s, at most 60 s\)"):
            parse_duration(text, "f", minimum_s=60, maximum_s=60)


def test_a_time_without_an_offset_is_refused() -> None:
    assert parse_time("1970-01-01T01:00:00+01:00") == parse_time("1970-01-01T00:00:00Z") == 0
    for invalid in ("1970-01-01", "1970-01-01T00:00:00", "now"):
        with pytest.raises(ValueError, match=invalid):
            parse_time(invalid)


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("app=web", {"app": "web"}, True),
        ("app=", {"app": ""}, True),
        ("app==web", {"app": "db"}, False),
        ("app!=web", {}, True),
        ("app!=web", {"app": "web"}, False),
        ("tier in (a, b)", {"tier": "b"}, True),
        ("tier in (a, b)", {}, False),
        ("tier notin (a,b)", {}, True),
        ("tier notin (a,b)", {"tier": "a"}, False),
        ("app", {"app": ""}, True),
        ("!app", {"app": ""}, False),
        ("app=web,!legacy,tier in (a)", {"app": "web", "tier": "a"}, True),
        ("example.com/x=1", {"example.com/x": "1"}, True),
    ],
)
def test_selectors_in_text_are_parsed_and_matched(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert selectors.parse_selector(selector).matches(labels) is matches


@pytest.mark.parametrize("malformed", ["=x", "a b", "tier in a", "tier in (a", "app=we/b", "a,,b"])
def test_malformed_selectors_are_refused(malformed: str) -> None:
    with pytest.raises(SelectorError):
        selectors.parse_selector(malformed)


@pytest.mark.parametrize(
    ("labels", "matches"),
    [
        ({"app": "web", "present": "1"}, True),
        ({"app": "web", "present": "1", "tier": "x"}, False),
        ({"app": "web", "present": "1", "absent": ""}, False),
        ({"app": "web"}, False),
    ],
)
def test_label_selectors_combine_labels_and_expressions(labels: dict[str, str], matches: bool) -> None:
    expressions = [
        MatchExpression("tier", "NotIn", ["x"]),
        MatchExpression("absent", "DoesNotExist"),
        MatchExpression("present", "Exists"),
    ]
    assert selectors.compile_selector(LabelSelector({"app": "web"}, expressions)).matches(labels) is matches


def test_an_empty_selector_selects_everything() -> None:
    assert selectors.compile_selector(LabelSelector()).matches({"app": "web"})


@pytest.mark.parametrize(
    "expression", [MatchExpression("a", "Near"), MatchExpression("a", "In"), MatchExpression("a", "Exists", ["x"])]
)
def test_wrong_match_expressions_are_refused(expression: MatchExpression) -> None:
    with pytest.raises(SelectorError):
        selectors.compile_selector(LabelSelector(match_expressions=[expression]))
