"""Sends datagrams to every destination in this node's plan, paused during netperf runs, and evaluates the answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple

from agent.probing.plan_source import PlanSource
from kubekit import logs
from kubekit.waiting import Backoff
from netperf.histogram import Histogram
from netperf.measurement import Measurement
from netperf.plans import Probe
from netperf.probers.datagrams import DatagramStream, DatagramTarget, DatagramWindow
from netperf.probers.failure import ProbeFailedError
from netperf.probers.tcp_ping import tcp_ping
from netperf.quality import MIN_DATAGRAMS

log = logs.get("agent.probing")

MAX_WINDOW_ROUNDS = 3
"""Maximum number of rounds for which a window with too few datagrams stays open."""
MAX_P99_WINDOWS = 10
"""Maximum number of windows for a p99: as many of the newest as have 100 datagrams together."""
MIN_SENT_DATAGRAMS = 3
"""Number of datagrams without an answer after which a pair has failed."""
IDLE_INTERVAL_S = 60.0
"""Length of a round while there is no plan, and therefore no destination."""


class WindowResult(NamedTuple):
    """A pair's measurement by datagrams (None if too few came back, or if the window stays open), and the number of answers."""

    measurement: Measurement | None
    answer_count: int


class BackgroundProber:
    """Sends one node's datagrams and evaluates the answers."""

    def __init__(self, plan_source: PlanSource) -> None:
        self._plan_source = plan_source
        self._stream: DatagramStream | None = None
        self._recent_histograms: dict[DatagramTarget, deque[Histogram]] = {}

    def set_paused(self, *, is_paused: bool) -> None:
        """Pause sending during a netperf run, which needs the CPU, or resume it."""
        if self._stream is not None:
            self._stream.is_paused = is_paused

    def close_window(self, probe: Probe) -> WindowResult:
        """Evaluate a pair's window and open a new one; a window with some answers but too few stays open for `MAX_WINDOW_ROUNDS`."""
        window, plan, now_s = self._window_of(probe), self._plan_source.plan, time.monotonic()
        if window is None or self._stream is None or plan is None:
            return WindowResult(None, 0)
        answer_count = self._count_answers(window)
        may_stay_open = now_s - window.opened_at_s < MAX_WINDOW_ROUNDS * plan.interval_s
        if 0 < window.rtt_histogram.count < MIN_DATAGRAMS and may_stay_open:
            return WindowResult(None, answer_count)
        target = self._target_of(probe)
        self._stream.close_window(target)
        histograms = self._recent_histograms.setdefault(target, deque(maxlen=MAX_P99_WINDOWS))
        histograms.append(window.rtt_histogram)
        return WindowResult(window.to_measurement(now_s, histograms) if answer_count else None, answer_count)

    async def have_datagrams_returned(self, probe: Probe) -> bool:
        """Whether datagrams of a pair came back in this window; False without a window or plan, or if too few were sent to tell.

        Raises:
            ProbeFailedError: none came back; ``has_answered`` says whether the host answers a TCP connection, since UDP may be filtered.
        """
        window, plan = self._window_of(probe), self._plan_source.plan
        if window is None or plan is None:
            return False
        if self._count_answers(window):
            return True
        if window.sent_count < MIN_SENT_DATAGRAMS:
            return False
        await tcp_ping(probe.destination.address, plan.settings.control_port)
        raise ProbeFailedError("timeout", "no datagram came back, but the host answers", has_answered=True)

    def apply_plan(self) -> None:
        """Send to the destinations of the current plan from now on."""
        targets = {self._target_of(probe) for probe in self._plan_source.own_probes}
        self._recent_histograms = {
            target: histograms for target, histograms in self._recent_histograms.items() if target in targets
        }
        if self._stream is not None:
            plan = self._plan_source.plan
            self._stream.set_targets(targets, plan.interval_s if plan is not None else IDLE_INTERVAL_S)

    async def run(self, address: str, passphrase: bytes) -> None:
        """Send from this address until cancelled. Retries while the address cannot be used."""
        backoff = Backoff()
        while True:
            self._stream = DatagramStream(address, passphrase)
            self.apply_plan()
            try:
                await self._stream.run()
            except OSError as error:
                log.log_change("datagrams", str(error.strerror), "cannot send datagrams", address=address, error=error)
            finally:
                self._stream = None
            await asyncio.sleep(backoff.next_delay_s())

    def _count_answers(self, window: DatagramWindow) -> int:
        """Count a window's answers; 0 if none came within the last round, because a window may stay open for several rounds."""
        round_s = self._plan_source.plan.interval_s if self._plan_source.plan is not None else 0.0
        return window.answer_count if time.monotonic() - window.answered_at_s <= round_s else 0

    def _window_of(self, probe: Probe) -> DatagramWindow | None:
        return self._stream.current_window(self._target_of(probe)) if self._stream is not None else None

    def _target_of(self, probe: Probe) -> DatagramTarget:
        """The address and port that a probe sends to; without a plan port 0, to which no window belongs."""
        plan = self._plan_source.plan
        return DatagramTarget(probe.destination.address, plan.settings.datagram_port if plan is not None else 0)
