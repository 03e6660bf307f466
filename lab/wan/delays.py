"""Decides when a packet of the emulated network arrives, or that it is lost. Pure.

A packet takes half of the round trip, plus a uniformly distributed time up to half of the jitter. Packets of a pair of nodes stay in
order, unlike in netem.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

# A full queue drops new packets.
MAX_PACKETS = 20_000


@dataclass(frozen=True)
class LinkDirection:
    """One direction of a link: a packet takes ``delay_s`` to ``delay_s + jitter_s``; ``loss`` is the share of lost packets."""

    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass
class Counters:
    """Counts of packets. ``late_s`` is the longest time by which a packet left the queue after its due time."""

    forwarded: int = 0
    lost: int = 0
    dropped: int = 0
    late_s: float = 0.0


class DelayQueue:
    """Packets under way, ordered by the time at which they are due.

    Args:
        sites: the site of each node, by the node's index.
        links: both directions of every link, by (origin site, destination site).
        rng: source of loss and jitter.
    """

    def __init__(self, sites: Sequence[str], links: Mapping[tuple[str, str], LinkDirection], rng: Random) -> None:
        self._sites, self._links, self._rng = list(sites), dict(links), rng
        self._due: list[tuple[float, int, int, bytes]] = []
        self._order = 0
        self._last_due: dict[tuple[int, int], float] = {}
        self.counters = Counters()

    def set_link(self, origin: str, destination: str, link: LinkDirection) -> None:
        """Change one direction; packets under way keep their delay."""
        self._links[origin, destination] = link

    def enqueue(self, now_s: float, source: int, target: int, packet: bytes) -> bool:
        """Add a packet from node ``source`` to node ``target``; returns False if it is lost or dropped."""
        sites = self._sites[source], self._sites[target]
        link = self._links[sites]
        if link.loss and self._rng.random() < link.loss:
            self.counters.lost += 1
            return False
        if len(self._due) >= MAX_PACKETS:
            self.counters.dropped += 1
            return False
        due_s = now_s + link.delay_s
        if link.jitter_s:
            due_s += self._rng.uniform(0.0, link.jitter_s)
        flow = source, target
        due_s = max(due_s, self._last_due.get(flow, 0.0))
        self._last_due[flow] = due_s
        self._order += 1
        heapq.heappush(self._due, (due_s, self._order, target, packet))
        return True

    def next_due_s(self) -> float | None:
        """When the next packet is due; None if no packet is under way."""
        return self._due[0][0] if self._due else None

    def pop_due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Remove and return the due packets as (target node, packet), in the order of arrival."""
        released: list[tuple[int, bytes]] = []
        due = self._due
        if due and due[0][0] <= now_s:
            self.counters.late_s = max(self.counters.late_s, now_s - due[0][0])
        while due and due[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(due)
            released.append((target, packet))
        self.counters.forwarded += len(released)
        return released
