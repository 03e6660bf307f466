"""The error of a failed probe, and the reasons of failures."""

from __future__ import annotations

from typing import Literal

from kubekit.errors import KubekitError

FailureReason = Literal[
    "refused",  # nothing listens on the port
    "unreachable",  # no route, or an error of the network
    "timeout",  # no connection or no end within the deadline
    "unauthenticated",  # the peer refused the passphrase
    "too-few-samples",  # no percentile could be computed
    "unknown-selector",  # this netperf does not support an output selector
    "no-netperf",  # netperf is not installed, or cannot be started
    "reset",  # the peer closed the connection during the run
    "failed",  # anything else
]


class ProbeFailedError(KubekitError):
    """A probe has no measurement.

    Attributes:
        reason: fit for a metric label.
        detail: text for users; may be empty.
        has_answered: False if the path may be broken, by default for ``timeout`` and ``unreachable``. True if the other host answered, or
            if netperf could not run, so that a local fault never makes a pair unreachable.
    """

    def __init__(self, reason: FailureReason, detail: str = "", *, has_answered: bool | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail
        self.has_answered = reason not in {"timeout", "unreachable"} if has_answered is None else has_answered
