"""Backs off repairs, and decides when a limit is disputed by another writer. Pure.

A repair that fails is tried again ever less often. One that holds costs nothing. A limit of ours that is gone again soon
after it was set, time and again, is disputed: we wait longer each time, so that neither the node nor the other suffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.bandwidth.state import Action, LimitEgress, LimitIngress

FIRST_WAIT_S = 5.0
MAX_WAIT_S = 300.0
HELD_S = 600.0
"""A limit that stayed for so long is nobody's bone of contention any more."""
DISPUTED_AFTER = 3
"""How many times the same limit is to be set within `HELD_S` before it counts as disputed."""


class _Record(msgspec.Struct):
    """Repairs and replacements of one limit.

    Attributes:
        wanted: what was to be reached.
        tries: how often.
        set_s: when it was reached; a limit that is to be set again was taken away since.
        tried_at_s, due_s: the last time, and not before then again.
    """

    wanted: object
    tries: int = 0
    set_s: list[float] = []
    tried_at_s: float = 0.0
    due_s: float = 0.0


Place = tuple[str, str]


class RepairBackoff:
    """Remembers repairs."""

    def __init__(self) -> None:
        self._records: dict[Place, _Record] = {}

    def due(self, actions: Sequence[Action], now_s: float) -> list[Action]:
        """Repairs to do now. One that differs from the last at its place, for example after a new annotation, is always due."""
        self._forget(now_s)
        return [
            action
            for action in actions
            if (record := self._records.get(_place(action))) is None
            or record.wanted != _wanted(action)
            or record.due_s <= now_s
        ]

    def note(self, action: Action, now_s: float, *, done: bool) -> float:
        """An action was tried; in how many seconds it may be tried again."""
        place = _place(action)
        record = self._records.get(place)
        if record is None or record.wanted != _wanted(action):
            record = self._records[place] = _Record(_wanted(action))
        record.tries += 1
        if done and isinstance(action, LimitIngress | LimitEgress):
            record.set_s.append(now_s)
        wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(record.tries - 1, 10))
        record.tried_at_s, record.due_s = now_s, now_s + wait_s
        return wait_s

    def disputed(self, now_s: float) -> Mapping[Place, str]:
        """Limits that had to be set again and again, by kind of action and device, with the reason in words."""
        self._forget(now_s)
        return {
            place: f"set {len(record.set_s)} times in {record.set_s[-1] - record.set_s[0]:.0f} s, "
            "because somebody removes or replaces it"
            for place, record in self._records.items()
            if len(record.set_s) >= DISPUTED_AFTER
        }

    def _forget(self, now_s: float) -> None:
        self._records = {place: record for place, record in self._records.items() if now_s - record.tried_at_s < HELD_S}


def _place(action: Action) -> Place:
    return type(action).__name__, action.name


def _wanted(action: Action) -> object:
    """A limit may need its filter one time and its bucket the next; it is the same limit."""
    return action.params if isinstance(action, LimitIngress | LimitEgress) else action
