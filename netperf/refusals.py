"""Refused measurement data: keys and probes (`Refusal`), and whole plans (`PlanRefusedError`).

An object that is invalid as a whole raises an error; a single invalid key or probe becomes a `Refusal`. Callers count both by ``reason``.
"""

from __future__ import annotations

import msgspec

from kubekit.errors import KubekitError

MAX_SHOWN_KEY_LENGTH, MAX_SHOWN_DETAIL_LENGTH = 80, 200


class Refusal(msgspec.Struct, frozen=True):
    """One key, probe, node or zone that is not used, and why.

    Attributes:
        key: the key, probe, node or zone, cut to `MAX_SHOWN_KEY_LENGTH`.
        reason: one of a few short names, for a metric label.
        detail: text for users, cut to `MAX_SHOWN_DETAIL_LENGTH`; may be empty.
        writer: the node that wrote the key (its origin); empty if unknown, or if ``key`` is not a key of results.
    """

    key: str
    reason: str
    detail: str = ""
    writer: str = ""


def make_refusal(key: str, reason: str, detail: str = "", writer: str = "") -> Refusal:
    """A `Refusal` with its texts cut for logs."""
    return Refusal(_shorten(key, MAX_SHOWN_KEY_LENGTH), reason, _shorten(detail, MAX_SHOWN_DETAIL_LENGTH), writer)


def _shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


class PlanRefusedError(KubekitError):
    """A plan object is invalid as a whole; the current plan stays in use.

    Attributes:
        reason: ``missing``, ``bad-json`` (not JSON), ``bad-field``, ``wrong-zone`` or ``past-epoch`` (older than the current plan).
        detail: text for users.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"plan refused, {reason}: {detail}")
        self.reason, self.detail = reason, detail
