"""Delays repeated repairs, and finds limits that another program disputes. No I/O; callers pass the time.

A repair is repeated with exponential back-off, whether it failed or another program removed the limit. A limit that had to be set
repeatedly within a short time is disputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.bandwidth.state import Action, LimitEgress, LimitIngress
from kubekit.waiting import backoff_delay_s

FIRST_WAIT_S = 5.0
MAX_WAIT_S = 300.0
DISPUTE_WINDOW_S = 600.0
"""Attempts at a limit are forgotten when the last one, successful or not, is this old."""
DISPUTED_AFTER = 3
"""A limit is disputed when it was set this often before its attempts are forgotten."""

RepairKey = tuple[type[Action], str]
"""Class of the action, and name of its device."""


class _Attempts(msgspec.Struct):
    """Attempts at one kind of repair of one device.

    Attributes:
        target: the limit to set, or the action that removes it.
        count: number of attempts.
        set_at_s: times of the successful ones; before each but the first, another program had removed the limit.
        last_at_s, due_at_s: times of the last attempt and of the earliest next one.
    """

    target: object
    count: int = 0
    set_at_s: list[float] = []
    last_at_s: float = 0.0
    due_at_s: float = 0.0


class RepairBackoff:
    """Remembers attempts to repair limits."""

    def __init__(self) -> None:
        self._attempts: dict[RepairKey, _Attempts] = {}

    def due_actions(self, actions: Sequence[Action], now_s: float) -> list[Action]:
        """Actions to execute now.

        An action that differs from the last one of its device, for example after a new annotation, is due at once.
        """
        self._forget_old(now_s)
        return [
            action
            for action in actions
            if (attempts := self._attempts.get(_key_of(action))) is None
            or attempts.target != _target_of(action)
            or attempts.due_at_s <= now_s
        ]

    def record_attempt(self, action: Action, now_s: float, *, has_succeeded: bool) -> float:
        """Record an attempt; returns in how many seconds the next one is due."""
        key = _key_of(action)
        attempts = self._attempts.get(key)
        if attempts is None or attempts.target != _target_of(action):
            attempts = self._attempts[key] = _Attempts(_target_of(action))
        attempts.count += 1
        if has_succeeded and isinstance(action, LimitIngress | LimitEgress):
            attempts.set_at_s.append(now_s)
        wait_s = backoff_delay_s(attempts.count, FIRST_WAIT_S, MAX_WAIT_S)
        attempts.last_at_s, attempts.due_at_s = now_s, now_s + wait_s
        return wait_s

    def disputes(self, now_s: float) -> Mapping[RepairKey, str]:
        """Descriptions of disputed limits."""
        self._forget_old(now_s)
        return {
            key: f"set {len(attempts.set_at_s)} times in {attempts.set_at_s[-1] - attempts.set_at_s[0]:.0f} s, "
            "because another program removes or replaces it"
            for key, attempts in self._attempts.items()
            if len(attempts.set_at_s) >= DISPUTED_AFTER
        }

    def _forget_old(self, now_s: float) -> None:
        oldest_s = now_s - DISPUTE_WINDOW_S
        self._attempts = {key: attempts for key, attempts in self._attempts.items() if attempts.last_at_s > oldest_s}


def _key_of(action: Action) -> RepairKey:
    return type(action), action.device_name


def _target_of(action: Action) -> object:
    """What an action sets. Repairs of a limit's filter and of its tbf have the same target, so they count together."""
    return action.params if isinstance(action, LimitIngress | LimitEgress) else action
