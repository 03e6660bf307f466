"""The interface of a prober, and the names of what can go wrong."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

from kubekit.errors import KubekitError
from netperf.plans import ProbeSettings
from netperf.sample import Measurement, ProberName, Test

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
        name: one of `FailureName`, fit for a metric label: ``refused``, nobody listens; ``unreachable``, no route;
            ``timeout``, no end within the deadline; ``unauthenticated``, the other end did not like our passphrase;
            ``too-few-samples``, no percentile could be told; ``unknown-selector``, this netperf lacks one we need;
            ``no-netperf``, there is no such program; ``reset``, the peer went away during the run; ``failed``, else.
        alive: the other host answered all the same, so the path is not dead.
    """

    def __init__(self, name: FailureName, detail: str = "", *, alive: bool | None = None) -> None:
        super().__init__(f"{name}: {detail}" if detail else name)
        self.name, self.detail = name, detail
        self.alive = name not in {"timeout", "unreachable"} if alive is None else alive


class Prober(Protocol):
    """Measures round trips, or throughput, to one address.

    Attributes:
        name: as it is written into samples.
        tests: what it can run.
    """

    name: ClassVar[ProberName]
    tests: ClassVar[tuple[Test, ...]]

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        """Run once.

        Args:
            address: literal IP address of the other end.
            settings: test, duration and ports, from the plan.

        Raises:
            ProbeFailedError: there is no measurement; `ProbeFailedError.name` says why.
        """
        ...
