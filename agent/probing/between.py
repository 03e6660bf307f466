"""What goes on between the runs of netperf: paced datagrams to every destination of this node's plan.

The pairs of nodes of rank 0 have a turn, which takes their datagrams along. The others are measured by datagrams alone: once a
round, at a moment of this node's own, what came back is made an outcome. Where nothing came back, one connection tells whether
the host is there at all: UDP may be filtered, an agent may have hung, or the path may be dead.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable

from kubekit import logs
from kubekit.waiting import Backoff, comes
from netperf.plans import Probe, ZonePlan
from netperf.probers.datagrams import DatagramStream, EchoTarget
from netperf.probers.netperf import knock
from netperf.probers.prober import ProbeFailedError
from netperf.sample import FEWEST_DATAGRAMS, Measurement

log = logs.get("agent.probing")

LONGEST_ROUNDS = 3
"""A window stays open for so many rounds until it can tell something."""
LEAST_SENT = 3
"""Fewer datagrams that do not come back say nothing."""

Conclude = Callable[[Probe, ProbeFailedError | None], None]


class BetweenRuns:
    """Datagrams of one node.

    Args:
        node: own name.
        conclude: told once a round of each pair that has no runs; with why nothing came back, where nothing did.
    """

    def __init__(self, node: str, conclude: Conclude) -> None:
        self._node, self._conclude = node, conclude
        self._stream: DatagramStream | None = None
        self._plan: ZonePlan | None = None
        self._changed = asyncio.Event()

    def follow(self, plan: ZonePlan | None) -> None:
        """Send to the destinations of this plan from now on."""
        self._plan = plan
        self._aim()
        self._changed.set()
        self._changed = asyncio.Event()

    def pause(self, paused: bool) -> None:
        """Send none while a run has the CPU."""
        if self._stream is not None:
            self._stream.paused = paused

    def close_window(self, probe: Probe) -> tuple[Measurement | None, int]:
        """See `agent.probing.rounds.Between`."""
        if self._stream is None or self._plan is None:
            return None, 0
        target, now_s = self._target(self._plan, probe), time.monotonic()
        window = self._stream.peek(target)
        if window is None:
            return None, 0
        if (
            0 < window.rtts.count < FEWEST_DATAGRAMS
            and now_s - window.opened_s < LONGEST_ROUNDS * self._plan.interval_s
        ):
            return None, window.returned  # too few to tell yet: it goes on
        self._stream.close_window(target)
        return window.measurement(now_s), window.returned

    async def serve(self, address: str, secret: bytes) -> None:
        """Send from this address until cancelled; an address that cannot be used is tried again."""
        backoff = Backoff()
        while True:
            self._stream = DatagramStream(address, secret)
            self._aim()
            try:
                await self._stream.run()
            except OSError as error:
                log.change("datagrams", str(error.strerror), "cannot send datagrams", address=address, error=error)
            finally:
                self._stream = None
            await asyncio.sleep(backoff.next())

    async def run(self) -> None:
        """Conclude once a round about each pair without runs, until cancelled."""
        while True:
            changed, plan = self._changed, self._plan
            own = plan.of_node(self._node) if plan is not None else ()
            others = [probe for probe in own if probe.rank]
            if plan is None or not others:
                await changed.wait()
            elif not await comes(changed, self._until_moment_s(plan)):
                # Together: ten dead hosts must not take ten times as long as one.
                await asyncio.gather(*(self._look(plan, probe) for probe in others))

    async def _look(self, plan: ZonePlan, probe: Probe) -> None:
        stream = self._stream
        window = stream.peek(self._target(plan, probe)) if stream is not None else None
        if window is None or (not window.returned and window.sent < LEAST_SENT):
            return
        if window.returned:
            self._conclude(probe, None)
            return
        try:
            await knock(probe.destination.address, plan.settings.port)
            failure = ProbeFailedError("timeout", "datagrams do not come back, the host answers", alive=True)
        except ProbeFailedError as error:
            failure = error
        if self._plan is plan:
            self._conclude(probe, failure)

    def _until_moment_s(self, plan: ZonePlan) -> float:
        digest = hashlib.blake2b(self._node.encode(), digest_size=4).digest()
        phase = int.from_bytes(digest, "big") / 2**32
        rounds = time.time() / plan.interval_s - phase
        return (math.floor(rounds) + 1 - rounds) * plan.interval_s

    def _aim(self) -> None:
        if self._stream is not None:
            plan = self._plan
            targets = [self._target(plan, probe) for probe in plan.of_node(self._node)] if plan is not None else []
            self._stream.aim(targets, plan.interval_s if plan is not None else 60.0)

    @staticmethod
    def _target(plan: ZonePlan, probe: Probe) -> EchoTarget:
        return EchoTarget(probe.destination.address, plan.settings.echo_port)
