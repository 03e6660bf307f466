"""Names of probe failures."""

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
    """A run gave no measurement.

    Attributes:
        name: one of `FailureName`, fit for a metric label: ``refused``, nothing listens; ``unreachable``, no route;
            ``timeout``, no end within the deadline; ``unauthenticated``, the other end refused our passphrase;
            ``too-few-samples``, no percentile could be computed; ``unknown-selector``, this netperf lacks one we need;
            ``no-netperf``, there is no such program; ``reset``, the peer went away during the run; ``failed``, else.
        alive: the other host answered all the same, so the path is not dead.
    """

    def __init__(self, name: FailureName, detail: str = "", *, alive: bool | None = None) -> None:
        super().__init__(f"{name}: {detail}" if detail else name)
        self.name, self.detail = name, detail
        self.alive = name not in {"timeout", "unreachable"} if alive is None else alive
