"""Delays repeated repairs, and finds limits that another program disputes. No I/O; callers pass the time.

A repair is repeated with exponential back-off, whether it failed or another program removed the limit. A limit is disputed when it was
set `DISPUTE_THRESHOLD` times before its attempts were forgotten: `DISPUTE_WINDOW_S` after the last one, successful or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.bandwidth.state import Action, SetEgressLimit, SetIngressLimit
from agent.disputes import DISPUTE_THRESHOLD, DISPUTE_WINDOW_S, FIRST_BACKOFF_S, MAX_BACKOFF_S
from kubekit.waiting import backoff_delay_s

RepairKey = tuple[type[Action], str]
"""Class of the action, and name of its device."""


class _Attempts(msgspec.Struct):
    """Attempts at one kind of repair of one device.

    Attributes:
        target: the limit to set, or the action that removes it.
        count: number of attempts.
        set_count: how often the limit was set; each time but the first, another program had removed it.
        last_at_s, due_at_s: times of the last attempt and of the earliest next one.
    """

    target: object
    count: int = 0
    set_count: int = 0
    last_at_s: float = 0.0
    due_at_s: float = 0.0


class RepairBackoff:
    """Remembers attempts to repair limits, and when the next one is due."""

    def __init__(self) -> None:
        self._attempts_by_key: dict[RepairKey, _Attempts] = {}

    def select_due(self, actions: Sequence[Action], now_s: float) -> list[Action]:
        """Select the actions to execute now.

        An action that differs from the last one of its kind on its device, for example after a new annotation, is due at once.
        """
        self._forget_old_attempts(now_s)
        return [
            action
            for action in actions
            if (attempts := self._attempts_by_key.get(_key_of(action))) is None
            or attempts.target != _target_of(action)
            or attempts.due_at_s <= now_s
        ]

    def record_attempt(self, action: Action, now_s: float, *, has_succeeded: bool) -> float:
        """Record an attempt; returns the delay until the next one is due, in seconds."""
        key = _key_of(action)
        attempts = self._attempts_by_key.get(key)
        if attempts is None or attempts.target != _target_of(action):
            attempts = self._attempts_by_key[key] = _Attempts(_target_of(action))
        attempts.count += 1
        if has_succeeded and isinstance(action, SetIngressLimit | SetEgressLimit):
            attempts.set_count += 1
        wait_s = backoff_delay_s(attempts.count, FIRST_BACKOFF_S, MAX_BACKOFF_S)
        attempts.last_at_s, attempts.due_at_s = now_s, now_s + wait_s
        return wait_s

    def describe_disputes(self, now_s: float) -> Mapping[RepairKey, str]:
        """Describe the disputed limits."""
        self._forget_old_attempts(now_s)
        return {
            key: f"set {attempts.set_count} times, because another program removes or replaces it"
            for key, attempts in self._attempts_by_key.items()
            if attempts.set_count >= DISPUTE_THRESHOLD
        }

    def _forget_old_attempts(self, now_s: float) -> None:
        oldest_s = now_s - DISPUTE_WINDOW_S
        self._attempts_by_key = {
            key: attempts for key, attempts in self._attempts_by_key.items() if attempts.last_at_s > oldest_s
        }


def _key_of(action: Action) -> RepairKey:
    return type(action), action.device_name


def _target_of(action: Action) -> object:
    """The limit that an action sets, or the action. Repairs of a limit's filter and of its tbf have one target, so they count together."""
    return action.params if isinstance(action, SetIngressLimit | SetEgressLimit) else action
