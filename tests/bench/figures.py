"""Figures of benchmarks and their budgets."""

from __future__ import annotations

from typing import TypedDict


class Figure(TypedDict):
    """A benchmark's result; ``ok`` is None without a budget."""

    value: float
    unit: str
    budget: str
    ok: bool | None
    reference: str


Figures = dict[str, Figure]


def make_figure(
    value: float, unit: str, budget: float | None = None, reference: str = "", *, at_least: bool = False
) -> Figure:
    """A figure; ``budget`` is its maximum, or its minimum if ``at_least``. ``reference`` is what to compare it with."""
    ok, limit = None, ""
    if budget is not None:
        ok = value >= budget if at_least else value <= budget
        limit = f"{'>=' if at_least else '<='} {budget:g}"
    return Figure(value=round(value, 4), unit=unit, budget=limit, ok=ok, reference=reference)
