"""Backs off repairs, and decides when a limit is disputed by another writer. Pure.

A repair that fails is retried with exponential back-off. A limit of ours that is repeatedly removed soon after it was set is
disputed, and is repaired with a back-off too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.bandwidth.state import Action, LimitEgress, LimitIngress
from kubekit.waiting import backoff_s

FIRST_WAIT_S = 5.0
MAX_WAIT_S = 300.0
HELD_S = 600.0
"""A limit that was not removed or replaced for this long is not disputed any more."""
DISPUTED_AFTER = 3
"""A limit is disputed when it was set this often, with less than `HELD_S` between attempts."""


class _Record(msgspec.Struct):
    """Repairs and replacements of one limit.

    Attributes:
        wanted: the limit to set.
        tries: attempts so far.
        set_at_s: times at which it was set; each later one means that it had been removed.
        tried_at_s, due_s: times of the last attempt and the earliest next one.
    """

    wanted: object
    tries: int = 0
    set_at_s: list[float] = []
    tried_at_s: float = 0.0
    due_s: float = 0.0


RepairKey = tuple[str, str]


class RepairBackoff:
    """Remembers repairs."""

    def __init__(self) -> None:
        self._records: dict[RepairKey, _Record] = {}

    def due(self, actions: Sequence[Action], now_s: float) -> list[Action]:
        """Repairs to do now. A repair that differs from the last one of its device, for example after a new annotation, is due at
        once.
        """
        self._forget(now_s)
        return [
            action
            for action in actions
            if (record := self._records.get(_key_of(action))) is None
            or record.wanted != _wanted(action)
            or record.due_s <= now_s
        ]

    def record(self, action: Action, now_s: float, *, done: bool) -> float:
        """Record an attempt; returns in how many seconds the next one is due."""
        key = _key_of(action)
        record = self._records.get(key)
        if record is None or record.wanted != _wanted(action):
            record = self._records[key] = _Record(_wanted(action))
        record.tries += 1
        if done and isinstance(action, LimitIngress | LimitEgress):
            record.set_at_s.append(now_s)
        wait_s = backoff_s(record.tries, FIRST_WAIT_S, MAX_WAIT_S)
        record.tried_at_s, record.due_s = now_s, now_s + wait_s
        return wait_s

    def disputed(self, now_s: float) -> Mapping[RepairKey, str]:
        """Limits that were set repeatedly, by kind of action and device, with the reason."""
        self._forget(now_s)
        return {
            key: f"set {len(record.set_at_s)} times in {record.set_at_s[-1] - record.set_at_s[0]:.0f} s, "
            "because another program removes or replaces it"
            for key, record in self._records.items()
            if len(record.set_at_s) >= DISPUTED_AFTER
        }

    def _forget(self, now_s: float) -> None:
        self._records = {key: record for key, record in self._records.items() if now_s - record.tried_at_s < HELD_S}


def _key_of(action: Action) -> RepairKey:
    return type(action).__name__, action.name


def _wanted(action: Action) -> object:
    """The limit that an action sets: repairs of its filter and of its bucket are attempts at the same one."""
    return action.params if isinstance(action, LimitIngress | LimitEgress) else action
