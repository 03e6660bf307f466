"""Parses durations: ``90s``, ``5m``, ``1m30s``, ``1.5h``, ``2d``, ``2w``, ``14ms``, ``500us``."""

from __future__ import annotations

import re

from kubekit.errors import ConfigError

_SECONDS_BY_UNIT = {"us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART_PATTERN = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(us|ms|[smhdw])")
_DURATION_PATTERN = re.compile(rf"(?:{_PART_PATTERN.pattern})+")


def parse_duration(value: str | float, field: str, *, minimum_s: float = 0.0, maximum_s: float = float("inf")) -> float:
    """Parse a duration to seconds; a number is in seconds already.

    Raises:
        ConfigError: the value is not a duration, or out of range; the message names ``field``, a flag or a field in a file.
    """
    duration_s = None
    if not isinstance(value, str):
        duration_s = float(value)
    elif _DURATION_PATTERN.fullmatch(value.strip()):
        duration_s = sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in _PART_PATTERN.findall(value))
    if duration_s is None:
        raise ConfigError(
            field, f"{value!r} is not a duration", "write a number and its unit, such as 5ms, 90s, 1h30m or 7d"
        )
    if not minimum_s <= duration_s <= maximum_s or duration_s == float("inf"):
        at_most = f", at most {maximum_s:g} s" if maximum_s < float("inf") else ""
        raise ConfigError(field, f"{value!r} is out of range", f"at least {minimum_s:g} s{at_most}")
    return duration_s
