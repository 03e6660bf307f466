"""Mutants are what they say: one mistake each, of every kind that `make mutants` promises."""

from __future__ import annotations

import ast

from tests.mutants.operators import mutants_of

SOURCE = '''"""A module."""
LIMIT: int = 3

def rule(values: list[int]) -> int:
    """Text that nobody runs."""
    total = 0
    for value in values:
        if value < LIMIT and value:
            total += abs(value)
    print(total)
    return total + 1
'''


def test_every_kind_of_mistake_is_made_and_each_alone() -> None:
    found = list(mutants_of(SOURCE))
    said = {(mutant.operator, mutant.change) for mutant in found}
    assert {
        ("comparison", "value < LIMIT -> value >= LIMIT"),
        ("boundary", "value < LIMIT -> value <= LIMIT"),
        ("arithmetic", "total + 1 -> total - 1"),
        ("arithmetic", "total += abs(value) -> total -= abs(value)"),
        ("constant", "3 -> 4"),
        ("negated condition", "value < LIMIT and value -> value < LIMIT or value"),
        ("removed call", "abs(value) -> value"),
        ("removed statement", "print(total) -> pass"),
        ("removed statement", "return total + 1 -> return"),
    } <= said
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in found:
        changed = mutant.source.splitlines()
        assert len(changed) == len(whole)
        assert sum(one != other for one, other in zip(changed, whole, strict=True)) == 1, mutant.name
    assert not any("Text that nobody runs" in change or "list[int]" in change for _, change in said)
    assert {mutant.where for mutant in found} == {"", "rule"}
