"""Label selectors match as kubectl's do."""

from __future__ import annotations

import pytest

from kubekit import selectors
from kubekit.errors import SelectorError
from kubekit.selectors import LabelSelector, MatchExpression


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
def test_malformed_text_is_refused(malformed: str) -> None:
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
def test_objects_combine_labels_and_expressions(labels: dict[str, str], matches: bool) -> None:
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
def test_wrong_expressions_are_refused(expression: MatchExpression) -> None:
    with pytest.raises(SelectorError):
        selectors.compile_selector(LabelSelector(match_expressions=[expression]))
