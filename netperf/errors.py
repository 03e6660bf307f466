"""Reasons for refusing measurement data, for counters and conditions.

An object that is invalid as a whole raises an error; a single invalid key or probe becomes a `Refusal`. Callers count both by ``reason``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubekit.errors import KubekitError

SHOWN_KEY_LENGTH, SHOWN_DETAIL_LENGTH = 80, 200
OBJECT_LIMIT_BYTES = 2**20 - 2**16
"""The API server allows 1 MiB of data per ConfigMap; keep a margin."""


class Refusal(msgspec.Struct, frozen=True):
    """One key, probe or node that is not used, and why.

    Attributes:
        key: the key, probe or node, cut to `SHOWN_KEY_LENGTH`.
        reason: one of a few short names, for a metric label.
        detail: text for users, with the field and the expected value, cut to `SHOWN_DETAIL_LENGTH`.
        source: the origin node in the key; empty if there is none.
    """

    key: str
    reason: str
    detail: str = ""
    source: str = ""


def refuse(key: str, reason: str, detail: str = "", source: str = "") -> Refusal:
    """A `Refusal` with its texts cut for logs."""
    shown = key if len(key) <= SHOWN_KEY_LENGTH else key[: SHOWN_KEY_LENGTH - 1] + "…"
    return Refusal(shown, reason, detail[:SHOWN_DETAIL_LENGTH], source)


class PlanRefusedError(KubekitError):
    """A plan object is invalid as a whole; the current plan stays in use.

    Attributes:
        reason: ``missing``, ``half-written`` (no complete JSON), ``bad-field``, ``wrong-zone`` or ``past-epoch``.
        detail: text for users.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"plan refused, {reason}: {detail}")
        self.reason, self.detail = reason, detail


class TooLargeError(KubekitError):
    """An object would exceed what the API server stores in one ConfigMap."""


def size_bytes(data: Mapping[str, str | None]) -> int:
    """Size of a ConfigMap's keys and values in UTF-8."""
    return sum(
        len(key.encode("utf-8", "replace")) + len((value or "").encode("utf-8", "replace"))
        for key, value in data.items()
    )


def check_size(name: str, data: Mapping[str, str | None], fix: str) -> int:
    """Check the size of a ConfigMap's ``data``; returns it in bytes.

    Args:
        name: name of the object.
        data: keys and values.
        fix: the way to make the object smaller, for the message.

    Raises:
        TooLargeError: the size is above `OBJECT_LIMIT_BYTES`.
    """
    size = size_bytes(data)
    if size > OBJECT_LIMIT_BYTES:
        raise TooLargeError(f"ConfigMap {name} would hold {size} bytes, over {OBJECT_LIMIT_BYTES}: {fix}")
    return size
