"""The error of a failed probe, and the names of failures."""

from __future__ import annotations

from typing import Literal

from kubekit.errors import KubekitError

FailureName = Literal[
    "refused",
    "unreachable",
    "timeout",
    "unauthenticated",
    "too-few-samples",
    "unknown-selector",
    "no-netperf",
    "reset",
    "failed",
]


class ProbeFailedError(KubekitError):
    """A probe has no measurement.

    Attributes:
        name: reason, fit for a metric label: ``refused``, nothing listens; ``unreachable``, no route; ``timeout``, no end within the
            deadline; ``unauthenticated``, the peer refused the passphrase; ``too-few-samples``, no percentile could be computed;
            ``unknown-selector``, this netperf does not support a selector; ``no-netperf``, netperf is not installed; ``reset``, the
            peer closed the connection during the run; ``failed``, anything else.
        detail: text for users.
        has_answered: whether the other host answered, so that the path works; by default all but ``timeout`` and ``unreachable``.
    """

    def __init__(self, name: FailureName, detail: str = "", *, has_answered: bool | None = None) -> None:
        super().__init__(f"{name}: {detail}" if detail else name)
        self.name, self.detail = name, detail
        self.has_answered = name not in {"timeout", "unreachable"} if has_answered is None else has_answered
