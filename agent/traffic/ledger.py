"""Bytes by client and server, from dumps of live connections and from the ends of others. Pure.

A total is what ended connections moved plus what live ones have moved so far, so nothing is remembered of a single
connection: memory goes with who talks to whom, not with 100,000 connections. A connection that ends while a dump is being read
is taken into the next one, so that it never counts twice; a total that is lower for once is therefore not believed, and one
that is lower twice means that ends were not told (`Total.settle`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.traffic.conntrack import Entry

MAX_EDGES = 2000
"""Of one node; a node with 110 pods that each call 15 others has 1,650. What is beyond is counted together."""
FORGET_S = 3600.0
KEEP_GONE_S = 600.0
"""A pod's connections end in the table some time after the pod; until then they are still its own."""
OUTSIDE = "outside"


class PodEnd(NamedTuple):
    """Whose pod an address of this node is."""

    namespace: str
    kind: str
    name: str


class Edge(NamedTuple):
    """A client workload of this node, the address that answers, and the port there; `OUTSIDE` and 0 beyond private addresses."""

    client: PodEnd
    server: str
    port: int


OVERFLOW_EDGE = Edge(PodEnd("", "", ""), "", 0)
"""All edges after the first `MAX_EDGES`."""


class Reading(NamedTuple):
    """What one round found, whole: never a part of one round with a part of the next.

    Attributes:
        read_at_s: when the table was read, seconds since the epoch.
        totals: edge, bytes from client to server, and back, since the agent started or the edge appeared.
    """

    read_at_s: float
    totals: Sequence[tuple[Edge, int, int]]


class Total:
    """One direction of an edge, as a counter that never falls."""

    __slots__ = ("ended", "live", "low", "offset", "shown")

    def __init__(self) -> None:
        self.ended = self.live = self.offset = self.shown = 0
        self.low: int | None = None

    def begin(self) -> None:
        """What was moved before anyone looked is not counted."""
        self.offset = -(self.ended + self.live)

    def settle(self) -> int:
        """Show what was read. Gives the bytes by which a second low reading shows that ends were not told, else 0."""
        value = self.ended + self.live + self.offset
        lost = 0
        if value < self.shown and self.low is not None:
            lost = self.shown - self.low
            self.offset += lost
            value += lost
            self.low = None
        elif value < self.shown:
            self.low = value
        else:
            self.low = None
        self.shown = max(self.shown, value)
        return lost


class _State:
    __slots__ = ("alive", "changed_s", "request", "response")

    def __init__(self, now_s: float) -> None:
        self.request, self.response = Total(), Total()
        self.changed_s, self.alive = now_s, True


class Ledger:
    """All edges of one node. ``begin_round``, ``take_live`` for each connection, ``end_round``; ``take_ended`` at any time.

    Attributes:
        pods: address -> whose it is; of pods with a network of their own, on this node.
        servers: addresses of this node that answered somebody.
        uncounted: live connections of pods that the kernel counts no bytes for, in the last round.
        untold_bytes: of connections whose end was not told; they are in no total any more when a counter goes on.
        reading: of the last round that was ended.
    """

    def __init__(self) -> None:
        self.pods: dict[bytes, PodEnd] = {}
        self.servers: set[bytes] = set()
        self.uncounted = self.untold_bytes = 0
        self.reading = Reading(0.0, ())
        self._gone: dict[bytes, float] = {}
        self._states: dict[Edge, _State] = {}
        self._pending: list[tuple[Edge, int, int]] = []
        self._names: dict[bytes, str] = {}
        self._first = True
        self._now_s = self._read_at_s = 0.0
        self._counting_uncounted = 0

    def follow(self, pods: Mapping[bytes, PodEnd], now_s: float) -> None:
        """Take the node's pods; addresses that are gone stay known for a while unless another pod has them."""
        for address in self.pods.keys() - pods.keys():
            if now_s - self._gone.setdefault(address, now_s) > KEEP_GONE_S:
                del self.pods[address], self._gone[address]
                self.servers.discard(address)
        for address, end in pods.items():
            self._gone.pop(address, None)
            self.pods[address] = end

    def take_ended(self, entry: Entry) -> None:
        """A connection ended; counts from the next round on."""
        edge = self._edge(entry)
        if edge is not None and entry.request_bytes is not None:
            self._pending.append((edge, entry.request_bytes, entry.response_bytes or 0))

    def begin_round(self, now_s: float, read_at_s: float) -> None:
        """Before a dump: what ended until now will not be in it. ``read_at_s`` is the same moment in seconds since the epoch."""
        self._now_s, self._read_at_s, self._counting_uncounted = now_s, read_at_s, 0
        for state in self._states.values():
            state.request.live = state.response.live = 0
            state.alive = False
        for edge, request, response in self._pending:
            state = self._state(edge)
            state.request.ended += request
            state.response.ended += response
        self._pending.clear()

    def take_live(self, entry: Entry) -> None:
        """One connection of the dump."""
        edge = self._edge(entry)
        if edge is None:
            return
        if entry.request_bytes is None:
            self._counting_uncounted += 1
            return
        state = self._state(edge)
        state.alive = True
        state.request.live += entry.request_bytes
        state.response.live += entry.response_bytes or 0

    def end_round(self) -> None:
        """After a dump: totals move on, and edges that were quiet for an hour go."""
        self.uncounted = self._counting_uncounted
        for edge, state in list(self._states.items()):
            before = state.request.shown + state.response.shown
            for total in (state.request, state.response):
                if self._first:
                    total.begin()
                self.untold_bytes += total.settle()
            if state.alive or state.request.shown + state.response.shown != before:
                state.changed_s = self._now_s
            elif self._now_s - state.changed_s > FORGET_S:
                del self._states[edge]
        self._first = False
        totals = [(edge, state.request.shown, state.response.shown) for edge, state in self._states.items()]
        self.reading = Reading(self._read_at_s, totals)
        if len(self._names) > 4 * MAX_EDGES:
            self._names.clear()

    def answering(self) -> Iterator[tuple[bytes, PodEnd]]:
        """Addresses of this node that answered somebody, of pods that are still there.

        Of a copy: metrics are collected in a thread, while a round goes on.
        """
        for address in self.servers.copy():
            end = self.pods.get(address)
            if end is not None and address not in self._gone:
                yield address, end

    def _state(self, edge: Edge) -> _State:
        found = self._states.get(edge)
        if found is None:
            if len(self._states) >= MAX_EDGES:
                edge = OVERFLOW_EDGE
            found = self._states.get(edge) or self._states.setdefault(edge, _State(self._now_s))
        return found

    def _edge(self, entry: Entry) -> Edge | None:
        """None unless a pod of this node asks: its node counts the connection, so two nodes never both do."""
        if entry.server in self.pods:
            self.servers.add(entry.server)
        client = self.pods.get(entry.client)
        if client is None:
            return None
        server = self._names.get(entry.server)
        if server is None:
            server = self._names[entry.server] = _name(entry.server)
        return Edge(client, server, entry.port if server != OUTSIDE else 0)


def _name(address: bytes) -> str:
    """As text; public addresses, of which there is no end, all together."""
    found = ipaddress.ip_address(address)
    return OUTSIDE if found.is_global else str(found)
