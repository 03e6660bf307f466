"""How much of their bandwidth pods use, from the byte counters of the devices that carry their limits.

One read of ``/proc/net/dev`` (proc(5)) for all devices, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.bandwidth.state import Judgement
from agent.bandwidth.wanted import Direction

DEVICES = Path("/proc/net/dev")
_RECEIVED, _SENT = 0, 8
"""Columns of /proc/net/dev after the name."""

Key = tuple[str, Direction]
"""Pod uid and direction."""


class _Count(NamedTuple):
    at_s: float
    device: str
    size_bytes: int


def parse_counters(text: str) -> dict[str, tuple[int, int]]:
    """Bytes received and sent so far, by device, from ``/proc/net/dev``; lines that make no sense are left out."""
    counters: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        columns = rest.split()
        if colon and len(columns) > _SENT and columns[_RECEIVED].isdigit() and columns[_SENT].isdigit():
            counters[name.strip()] = int(columns[_RECEIVED]), int(columns[_SENT])
    return counters


class Usage:
    """Mean rates between the last two readings."""

    def __init__(self) -> None:
        self._counts: dict[Key, _Count] = {}
        self.rates: dict[Key, float] = {}
        """Bytes per second by pod uid and direction; only pods that were there at both readings."""

    def read(self, judgements: Sequence[Judgement], now_s: float, path: Path = DEVICES) -> None:
        """Read the counters and compare them with those of the last time."""
        self.take(judgements, parse_counters(path.read_text()), now_s)

    def take(self, judgements: Sequence[Judgement], counters: Mapping[str, tuple[int, int]], now_s: float) -> None:
        """Take counters at a monotonic time in seconds."""
        counts: dict[Key, _Count] = {}
        rates: dict[Key, float] = {}
        for judgement in judgements:
            device = judgement.device
            if device not in counters:
                continue
            key = (judgement.pod.uid, judgement.direction)
            received, sent = counters[device]
            # What comes out of a pod is received by its veth; an intermediate device sends what its limit let through.
            counts[key] = count = _Count(now_s, device, received if judgement.received else sent)
            before = self._counts.get(key)
            if before is not None and before.device == device and before.at_s < now_s:
                rates[key] = max(0, count.size_bytes - before.size_bytes) / (now_s - before.at_s)
        self._counts, self.rates = counts, rates
