"""Figures of benchmarks and their budgets."""

from __future__ import annotations

Figures = dict[str, dict[str, object]]


def figure(
    value: float, unit: str, budget: float | None = None, reference: str = "", *, at_least: bool = False
) -> dict[str, object]:
    """A figure; ``budget`` is its maximum, or with ``at_least`` its minimum."""
    ok = None if budget is None else value >= budget if at_least else value <= budget
    limit = "" if budget is None else f"{'>=' if at_least else '<='} {budget:g}"
    return {"value": round(value, 4), "unit": unit, "budget": limit, "ok": ok, "reference": reference}
