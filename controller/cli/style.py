"""Styles, tables and numbers for a terminal.

Each coloured state has a sign, for colour-blind readers and logs. Orange is wrong, green is good; both are from the Okabe-Ito palette,
whose colours differ for every common kind of colour blindness.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rich.table import Table
from rich.text import Text

from controller.appgroups.status import DependencyVerdict

BAD, GOOD, FAINT, STRONG = "#d55e00", "#009e73", "dim", "bold"
COLUMN_GAP = 2
"""Spaces between columns of a table."""
SIGN_AND_STYLE_BY_VERDICT: Mapping[DependencyVerdict, tuple[str, str]] = {
    "met": ("✓", GOOD),
    "violated": ("✗", BAD),
    "unknown": ("?", ""),
    "idle": ("·", FAINT),
}
"""Verdict on a dependency -> sign, style."""


def make_table(*headers: str, numeric: Collection[str] = ()) -> Table:
    """A table without rows, as kubectl prints it: bold headers, no lines; columns with headers in ``numeric`` are right-aligned."""
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style=STRONG, show_edge=False)
    for header in headers:
        is_numeric = header in numeric
        # A narrow terminal folds names but no numbers, because a folded number is misread.
        table.add_column(header, justify="right" if is_numeric else "left", overflow="fold", no_wrap=is_numeric)
    return table


def format_number(value: float | None) -> str:
    """Two decimals below 1, one below 10, none above or for a whole number; a dash for None."""
    if value is None:
        return "-"
    if value >= 10 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def format_milliseconds(value_us: float | None) -> str:
    """Microseconds as ``5.2 ms``; a dash for None."""
    return "-" if value_us is None else f"{format_number(value_us / 1000)} ms"


def format_rate(value_bps: float | None) -> str:
    """Bits per second as ``1.2 Gbit/s``; a dash for None."""
    if value_bps is None:
        return "-"
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        # From 999.5 of the smaller unit, three figures round up to 1 of this unit.
        if abs(value_bps) >= 0.9995 * size:
            return f"{value_bps / size:.3g} {unit}"
    return f"{value_bps:.0f} bit/s"


def format_short_rate(value_bps: float | None) -> str:
    """Bits per second as ``1.2G``, like a Kubernetes quantity; a dash for None."""
    return format_rate(value_bps).removesuffix("bit/s").replace(" ", "")


def format_age(seconds: float | None) -> str:
    """Seconds as kubectl writes ages: ``42s``, ``3m``, ``5h``, ``2d``; a dash for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    # Each unit is used up to twice the next one.
    for unit, unit_s, limit_s in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if whole < limit_s:
            return f"{whole // unit_s}{unit}"
    return f"{whole // 86400}d"


def format_counts(counts: Mapping[str, int]) -> str:
    """Names with their counts above 1, as ``z1 ×2, z2``."""
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())


def format_percent(part: float, whole: float) -> str:
    """A share of ``whole``, which is not 0, as ``12%``; ``<1%`` if it would be rounded to 0."""
    ratio = part / whole
    return "<1%" if 0 < ratio <= 0.005 else f"{ratio:.0%}"


def format_coloured_percent(part: float, whole: float | None) -> Text:
    """A share as `format_percent` writes it, orange above 100 %; a dash if ``whole`` is unknown, empty if it is 0."""
    if not whole:
        return Text("-" if whole is None else "", style=FAINT)
    return Text(format_percent(part, whole), style=BAD if part > whole else "")


def format_money(amount: float | None, currency: str) -> str:
    """An amount with its currency; a dash for None."""
    return "-" if amount is None else f"{amount:,.2f} {currency}"
