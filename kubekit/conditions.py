"""Builds, merges and compares status conditions; lastTransitionTime changes only with the status of a condition."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubekit.text import cut_bytes, make_printable
from kubekit.wire import Condition, format_time

MAX_MESSAGE_BYTES = 8192
"""Longest message of a condition; the API server accepts four times as many bytes."""


def make_condition(type_: str, *, holds: bool | None, reason: str, message: str = "", generation: int = 0) -> Condition:
    """A condition without a time. Its status is Unknown if ``holds`` is None; its message is one line of at most `MAX_MESSAGE_BYTES`."""
    status = "Unknown" if holds is None else str(holds)
    message = cut_bytes(make_printable(message), MAX_MESSAGE_BYTES)
    return Condition(type=type_, status=status, reason=reason, message=message, observed_generation=generation)


def merge_conditions(old: Sequence[Condition] | None, new: Sequence[Condition], now_s: float) -> list[Condition]:
    """Conditions of ``old``, with those of ``new`` added or in their place; sorted by type.

    A time stays while the status is the same, so a result that is merged again does not change. Times of ``new`` are ignored.
    """
    condition_by_type = {c.type: c for c in old or ()}
    for condition in new:
        previous = condition_by_type.get(condition.type)
        transition_time = format_time(now_s)
        if previous is not None and previous.status == condition.status and previous.last_transition_time:
            transition_time = previous.last_transition_time
        condition_by_type[condition.type] = msgspec.structs.replace(condition, last_transition_time=transition_time)
    return [condition_by_type[type_] for type_ in sorted(condition_by_type)]


def find_condition(conditions: Sequence[Condition] | None, type_: str) -> Condition | None:
    """The condition of a type; None if it is absent."""
    return next((c for c in conditions or () if c.type == type_), None)


def find_changed_conditions(before: Sequence[Condition] | None, after: Sequence[Condition] | None) -> list[Condition]:
    """Conditions of ``after`` that are new, or have another status or reason than in ``before``."""
    old = {c.type: (c.status, c.reason) for c in before or ()}
    return [c for c in after or () if old.get(c.type) != (c.status, c.reason)]
