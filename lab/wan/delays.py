"""Decides when packets of the emulated network arrive, or that they are lost; without input, output or clock.

A packet takes half of the round trip, plus a uniformly distributed time up to half of the jitter. Packets from one node to another stay
in order, unlike in netem.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

# A queue of this length drops new packets.
MAX_PACKETS = 20_000


@dataclass(frozen=True)
class LinkDirection:
    """One direction of a link: a packet takes ``delay_s`` to ``delay_s + jitter_s``; ``loss`` is the share of lost packets, 0 to 1."""

    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0


class DelayQueue:
    """Packets under way, ordered by the time at which they are due.

    Args:
        zones: zone of each node, by the node's index.
        links: (origin zone, destination zone) -> this direction of their link.
        random: source of loss and jitter.
    """

    def __init__(self, zones: Sequence[str], links: Mapping[tuple[str, str], LinkDirection], random: Random) -> None:
        self._zones, self._links, self._random = list(zones), dict(links), random
        # Due time, sequence number (for a stable order), target node, packet.
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._sequence = 0
        self._last_due_s: dict[tuple[int, int], float] = {}

    def set_link(self, origin: str, destination: str, link: LinkDirection) -> None:
        """Change one direction; packets under way keep their delay."""
        self._links[origin, destination] = link

    def enqueue(self, now_s: float, source: int, target: int, packet: bytes) -> None:
        """Add a packet from node ``source`` to node ``target``, unless it is lost or dropped."""
        zones = self._zones[source], self._zones[target]
        link = self._links[zones]
        if len(self._heap) >= MAX_PACKETS or (link.loss and self._random.random() < link.loss):
            return
        due_s = now_s + link.delay_s
        if link.jitter_s:
            due_s += self._random.uniform(0.0, link.jitter_s)
        due_s = max(due_s, self._last_due_s.get((source, target), 0.0))
        self._last_due_s[source, target] = due_s
        self._sequence += 1
        heapq.heappush(self._heap, (due_s, self._sequence, target, packet))

    def next_due_s(self) -> float | None:
        """Return when the next packet is due; None if no packet is under way."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Remove and return the due packets as (target node, packet), in the order of arrival."""
        due_packets: list[tuple[int, bytes]] = []
        while self._heap and self._heap[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._heap)
            due_packets.append((target, packet))
        return due_packets
