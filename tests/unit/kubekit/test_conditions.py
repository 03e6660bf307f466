"""Conditions keep their time while their status stays, and equal input gives equal output."""

from __future__ import annotations

from kubekit import conditions
from kubekit.conditions import condition, merge


def test_the_time_moves_only_with_the_status() -> None:
    first = merge(None, [condition("Ordered", holds=True, reason="Acyclic")], 0)
    again = merge(first, [condition("Ordered", holds=True, reason="Acyclic", message="new words")], 60)
    turned = merge(again, [condition("Ordered", holds=False, reason="Cycle")], 120)
    assert again[0].last_transition_time == first[0].last_transition_time == "1970-01-01T00:00:00Z"
    assert again[0].message == "new words"
    assert turned[0].last_transition_time == "1970-01-01T00:02:00Z"


def test_merging_the_same_again_changes_nothing() -> None:
    once = merge(None, [condition("B", holds=None, reason="R"), condition("A", holds=True, reason="R")], 5)
    assert merge(once, [condition("A", holds=True, reason="R"), condition("B", holds=None, reason="R")], 99) == once
    assert [c.type for c in once] == ["A", "B"]
    assert once[1].status == "Unknown"


def test_conditions_of_others_stay() -> None:
    foreign = merge(None, [condition("Foreign", holds=True, reason="Theirs")], 0)
    both = merge(foreign, [condition("Ours", holds=True, reason="Ours")], 1)
    assert conditions.find_condition(both, "Foreign") == foreign[0]
    assert conditions.find_condition(both, "Absent") is None
