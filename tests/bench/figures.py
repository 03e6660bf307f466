"""What a bench measured, and whether that keeps its budget."""

from __future__ import annotations

Figures = dict[str, dict[str, object]]


def figure(
    value: float, unit: str, budget: float | None = None, reference: str = "", *, at_least: bool = False
) -> dict[str, object]:
    """One figure; ``budget`` is the most that it may be, or with ``at_least`` the least."""
    ok = None if budget is None else value >= budget if at_least else value <= budget
    told = "" if budget is None else f"{'>=' if at_least else '<='} {budget:g}"
    return {"value": round(value, 4), "unit": unit, "budget": told, "ok": ok, "reference": reference}
