"""Sends authenticated datagrams at a constant mean rate and measures their round trips.

A datagram is sent even if the previous one has no answer yet, so a stall of the path delays all datagrams of that time. The round trip
ends at the kernel's receive timestamp. The responder delay in the answer is subtracted, which leaves the time on the path and in the
network stacks. A few datagrams a second take a thousandth of a core.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from netperf.histogram import Histogram
from netperf.measurement import MAX_LATENCY_US, REQUIRED_TRANSACTIONS, Measurement
from netperf.probers.datagram_codec import Datagram, decode_datagram, derive_key, encode_datagram
from netperf.probers.timestamps import MAX_BATCH, now_ns, open_udp, receive

MAX_RATE_PER_S, MAX_DESTINATION_RATE_PER_S = 10.0, 4.0
"""Highest mean number of datagrams a second of one agent: to all destinations together, and to each."""
DATAGRAMS_PER_ROUND = 120.0
"""Datagrams to each destination in a round, unless a limit is lower; a p99 needs 100."""
LOST_AFTER_S = 3.0
"""A datagram without an answer counts as lost after this time."""
MAX_USABLE_DELAY_US = 20_000.0
"""An answer with a longer responder delay is not used, because the delay is only the peer's claim."""
CLOCK_STEP_LIMIT_NS = 10**6
"""A round trip is not used if the wall clock was set by more than this meanwhile."""


class DatagramTarget(NamedTuple):
    """Destination of datagrams: a literal address and the responder's port."""

    address: str
    port: int


class DatagramWindow:
    """Answers of one destination since the window was opened.

    Attributes:
        opened_at_s: monotonic time of the opening.
        sent_count: number of datagrams sent.
        answer_count: number of answers, except those with an unusable round trip (see `CLOCK_STEP_LIMIT_NS`).
        answered_at_s: monotonic time of the newest answer; that of the opening without one.
        delayed_count: number of answers with a responder delay above `MAX_USABLE_DELAY_US`, which are not used.
        lost_count: number of datagrams without an answer within `LOST_AFTER_S`.
        rtt_histogram: round trips without the responder delay.
        responder_delay_histogram: responder delays of all answers.
    """

    def __init__(self, opened_at_s: float) -> None:
        self.opened_at_s = self.answered_at_s = opened_at_s
        self.sent_count = self.answer_count = self.delayed_count = self.lost_count = 0
        self.rtt_histogram, self.responder_delay_histogram = Histogram(), Histogram()
        self._last_us: float | None = None
        self._jitter_sum_us = 0.0

    def record(self, rtt_us: float, responder_delay_us: float) -> None:
        """Count an answer: its round trip without the responder delay, and that delay."""
        self.answer_count += 1
        self.answered_at_s = time.monotonic()
        self.responder_delay_histogram.record(max(responder_delay_us, 0.001))
        if responder_delay_us > MAX_USABLE_DELAY_US:
            self.delayed_count += 1
            return
        if self._last_us is not None:
            self._jitter_sum_us += abs(rtt_us - self._last_us)
        self._last_us = rtt_us
        self.rtt_histogram.record(rtt_us)

    def to_measurement(self, now_s: float, recent_rtts: Sequence[Histogram] = ()) -> Measurement | None:
        """The measurement of the window; None if it has fewer than two usable answers.

        Args:
            now_s: monotonic time.
            recent_rtts: round trips of this window and of earlier ones, newest last. If this window has too few for a p99, earlier ones
                are added, newest first, until there are enough: ``p99_us`` and ``transactions`` are then of all these windows.
        """
        rtts = self.rtt_histogram
        if rtts.count < 2:
            return None
        p99_us, transactions = rtts.percentile_us(99), rtts.count
        merged = Histogram()
        for window_rtts in reversed(recent_rtts):
            merged.merge(window_rtts)
            if merged.count >= REQUIRED_TRANSACTIONS["p99"] > rtts.count:
                # Earlier windows may be faster, but readers refuse a p99 below the p90.
                p99_us = max(merged.percentile_us(99) or 0.0, rtts.percentile_us(90) or 0.0)
                transactions = merged.count
                break
        finished_count = self.answer_count + self.lost_count
        return Measurement(
            prober="datagrams",
            test="UDP_RR",
            min_us=rtts.min_us,
            max_us=rtts.max_us,
            p50_us=rtts.percentile_us(50),
            p90_us=rtts.percentile_us(90),
            p99_us=p99_us,
            transactions=transactions,
            duration_s=max(0.0, now_s - self.opened_at_s),
            loss_ratio=self.lost_count / finished_count,
            jitter_us=self._jitter_sum_us / (rtts.count - 1),
            responder_delay_us=self.responder_delay_histogram.percentile_us(90),
            delayed_ratio=self.delayed_count / self.answer_count,
        )


class _SentDatagram(NamedTuple):
    target: DatagramTarget
    wall_ns: int
    monotonic_ns: int


class DatagramStream:
    """Sends datagrams to several destinations in turn, except while ``is_paused``, and keeps a window of answers for each.

    ``address`` is the node's own, a literal. The responders have the same ``passphrase``.
    """

    def __init__(self, address: str, passphrase: bytes) -> None:
        self._address, self._key = address, derive_key(passphrase)
        self._session = secrets.token_bytes(8)
        self._windows: dict[DatagramTarget, DatagramWindow] = {}
        self._targets: list[DatagramTarget] = []
        self._target_index = self._last_number = 0
        self._unanswered: OrderedDict[int, _SentDatagram] = OrderedDict()
        self._interval_s = 60.0
        self._targets_changed = asyncio.Event()
        self.is_paused = False

    def set_targets(self, targets: Iterable[DatagramTarget], interval_s: float) -> None:
        """Set the destinations, and the length of a round. The windows of unchanged destinations continue; others are dropped."""
        self._targets = sorted(set(targets))
        now_s = time.monotonic()
        self._windows = {t: self._windows.get(t) or DatagramWindow(now_s) for t in self._targets}
        self._interval_s = interval_s
        self._targets_changed.set()

    @property
    def rate_per_s(self) -> float:
        """Mean number of datagrams a second to all destinations together."""
        destination_rate = min(MAX_DESTINATION_RATE_PER_S, DATAGRAMS_PER_ROUND / self._interval_s)
        return min(MAX_RATE_PER_S, len(self._targets) * destination_rate)

    def current_window(self, target: DatagramTarget) -> DatagramWindow | None:
        """The open window of a destination; None for an unknown destination."""
        self._expire(time.monotonic_ns())
        return self._windows.get(target)

    def close_window(self, target: DatagramTarget) -> DatagramWindow | None:
        """Close the window of a destination and open the next one; returns the closed window, None for an unknown destination."""
        self._expire(time.monotonic_ns())
        window = self._windows.get(target)
        if window is not None:
            self._windows[target] = DatagramWindow(time.monotonic())
        return window

    async def run(self) -> None:
        """Send and receive until cancelled.

        Raises:
            OSError: the address is not one of this node.
        """
        loop = asyncio.get_running_loop()
        with open_udp(self._address) as udp:
            loop.add_reader(udp, self._receive, udp)
            try:
                while True:
                    if not self._targets:
                        self._targets_changed.clear()
                        await self._targets_changed.wait()
                        continue
                    if not self.is_paused:
                        self._send(udp)
                    # Jitter, because the path may have periodic delays.
                    await asyncio.sleep(random.uniform(0.5, 1.5) / self.rate_per_s if self._targets else 0.0)
            finally:
                loop.remove_reader(udp)

    def _send(self, udp: socket.socket) -> None:
        self._expire(time.monotonic_ns())
        self._target_index = (self._target_index + 1) % len(self._targets)
        target = self._targets[self._target_index]
        self._last_number += 1
        request = encode_datagram(self._key, b"client", Datagram(self._session, self._last_number))
        self._unanswered[self._last_number] = _SentDatagram(target, now_ns(), time.monotonic_ns())
        self._windows[target].sent_count += 1
        with suppress(OSError):  # no route, or an ICMP error for an earlier datagram: it counts as lost
            udp.sendto(request, tuple(target))

    def _receive(self, udp: socket.socket) -> None:
        for _ in range(MAX_BATCH):
            try:
                data, received_ns, _ = receive(udp)
            except BlockingIOError:
                return
            except OSError:
                continue
            answer = decode_datagram(self._key, b"server", data)
            if answer is None or answer.session != self._session:
                continue
            sent = self._unanswered.pop(answer.number, None)
            window = self._windows.get(sent.target) if sent is not None else None
            if sent is not None and window is not None:
                self._record(window, sent, received_ns, answer.responder_delay_ns)

    @staticmethod
    def _record(window: DatagramWindow, sent: _SentDatagram, received_ns: int, responder_delay_ns: int) -> None:
        # Both timestamps are of the wall clock. The monotonic clock shows whether it was set in between.
        clock_step_ns = (now_ns() - sent.wall_ns) - (time.monotonic_ns() - sent.monotonic_ns)
        rtt_us = (received_ns - sent.wall_ns - responder_delay_ns) / 1000
        if abs(clock_step_ns) < CLOCK_STEP_LIMIT_NS and 0 < rtt_us <= MAX_LATENCY_US:
            window.record(rtt_us, responder_delay_ns / 1000)

    def _expire(self, monotonic_ns: int) -> None:
        """Count datagrams without an answer as lost after `LOST_AFTER_S`."""
        while self._unanswered:
            number, sent = next(iter(self._unanswered.items()))
            if monotonic_ns - sent.monotonic_ns < LOST_AFTER_S * 1e9:
                return
            del self._unanswered[number]
            window = self._windows.get(sent.target)
            if window is not None:
                window.lost_count += 1
