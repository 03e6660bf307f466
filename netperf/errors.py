"""Reasons for refusing measurement data, for counters and conditions.

Bad data never stops a program: whole objects raise one of these errors, single keys or probes become a `Refusal`,
and callers count them by ``reason``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubekit.errors import KubekitError

SHOWN_KEY_LENGTH = 80
OBJECT_LIMIT_BYTES = 2**20 - 2**16
"""The API server allows 1 MiB of data per ConfigMap; keep a margin."""


class Refusal(msgspec.Struct, frozen=True):
    """One key, probe or node that was left out, and why.

    Attributes:
        key: what was refused, cut to 80 characters, since anyone may have written it.
        reason: a short name with few values, fit for a metric label.
        detail: for people; names the field and what was expected.
        source: the node that it names as its origin, if any.
    """

    key: str
    reason: str
    detail: str = ""
    source: str = ""


def refuse(key: str, reason: str, detail: str = "", source: str = "") -> Refusal:
    """A `Refusal` whose texts are cut to a length that is fit to log."""
    shown = key if len(key) <= SHOWN_KEY_LENGTH else key[: SHOWN_KEY_LENGTH - 1] + "…"
    return Refusal(shown, reason, detail[:200], source)


class PlanRefusedError(KubekitError):
    """A plan object cannot be used as a whole; the current plan stays.

    Attributes:
        reason: ``missing``, ``half-written``, ``bad-field``, ``wrong-zone`` or ``past-epoch``.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"plan refused, {reason}: {detail}")
        self.reason, self.detail = reason, detail


class TooLargeError(KubekitError):
    """An object would exceed what the API server stores in one ConfigMap.

    Attributes:
        name: the object.
        size_bytes: what keys and values would come to.
        limit_bytes: what we allow.
    """

    def __init__(self, name: str, size_bytes: int, limit_bytes: int, fix: str) -> None:
        super().__init__(f"ConfigMap {name} would hold {size_bytes} bytes, over {limit_bytes}: {fix}")
        self.name, self.size_bytes, self.limit_bytes = name, size_bytes, limit_bytes


def size_bytes(data: Mapping[str, str | None]) -> int:
    """Size of a ConfigMap's keys and values in UTF-8."""
    return sum(
        len(key.encode("utf-8", "replace")) + len((value or "").encode("utf-8", "replace"))
        for key, value in data.items()
    )


def check_size(name: str, data: Mapping[str, str | None], fix: str) -> int:
    """The size of a ConfigMap's ``data`` in bytes.

    Args:
        name: of the object.
        data: keys and values.
        fix: what to do about an object that is too large.

    Raises:
        TooLargeError: it is over our limit, a margin below the API server's 1 MiB of data.
    """
    size = size_bytes(data)
    if size > OBJECT_LIMIT_BYTES:
        raise TooLargeError(name, size, OBJECT_LIMIT_BYTES, fix)
    return size
