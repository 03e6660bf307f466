"""Figures of benchmarks and their budgets."""

from __future__ import annotations

Figures = dict[str, dict[str, object]]
"""Name -> result of `figure`."""


def figure(
    value: float, unit: str, budget: float | None = None, reference: str = "", *, at_least: bool = False
) -> dict[str, object]:
    """A benchmark's result; ``budget`` is its maximum, or with ``at_least`` its minimum. ``reference`` is what to compare it with."""
    ok, limit = None, ""
    if budget is not None:
        ok = value >= budget if at_least else value <= budget
        limit = f"{'>=' if at_least else '<='} {budget:g}"
    return {"value": round(value, 4), "unit": unit, "budget": limit, "ok": ok, "reference": reference}
