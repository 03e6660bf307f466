"""Byte counters by client workload and server, from dumps of live connections and from events of ended ones. Pure.

A total is the bytes of ended connections plus the bytes so far of live ones. No single connection is remembered, so memory grows
only with the number of client-server pairs. A connection that ends during a dump counts from the next dump on, so a total may be too
low once; if it is too low twice, the kernel dropped events (`Total.update`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.traffic.conntrack import Entry

MAX_EDGES = 2000
"""Most edges of a node; 110 pods that each call 15 others have 1,650. Further ones share `OVERFLOW_EDGE`."""
EDGE_EXPIRY_S = 3600.0
"""An edge without traffic is forgotten after this time."""
ADDRESS_EXPIRY_S = 600.0
"""How long an address still counts for its deleted pod, whose connections may end later than the pod."""
OUTSIDE = "outside"
"""Server of all edges to public addresses."""


class Workload(NamedTuple):
    """A workload by namespace, kind and name."""

    namespace: str
    kind: str
    name: str


class Edge(NamedTuple):
    """A client workload of this node, the server's address, and its port; `OUTSIDE` and 0 for public addresses."""

    client: Workload
    server: str
    port: int


OVERFLOW_EDGE = Edge(Workload("", "", ""), "", 0)
"""Stands for all edges after the first `MAX_EDGES`."""


class Reading(NamedTuple):
    """The result of one complete round.

    Attributes:
        read_at_s: when the table was read, seconds since the epoch.
        totals: edge, bytes from client to server, and bytes back, since the agent started or the edge appeared.
    """

    read_at_s: float
    totals: Sequence[tuple[Edge, int, int]]


class Total:
    """Bytes in one direction of an edge, as a counter that never falls.

    Attributes:
        ended, live: bytes of ended and of live connections.
        offset: added to both, for bytes before the start and bytes in lost events.
        exported: value of the counter.
        low_reading: the first value below ``exported``; None if the latest was not below.
    """

    __slots__ = ("ended", "exported", "live", "low_reading", "offset")

    def __init__(self) -> None:
        self.ended = self.live = self.offset = self.exported = 0
        self.low_reading: int | None = None

    def reset(self) -> None:
        """Start counting from here: bytes moved before are not counted."""
        self.offset = -(self.ended + self.live)

    def update(self) -> None:
        """Export the new total. After a second low reading events were dropped, and the counter continues from the first one."""
        value = self.ended + self.live + self.offset
        if value < self.exported and self.low_reading is None:
            self.low_reading = value
            return
        if value < self.exported and self.low_reading is not None:
            lost = self.exported - self.low_reading
            self.offset += lost
            value += lost
        self.low_reading = None
        self.exported = max(self.exported, value)


class _EdgeState:
    __slots__ = ("changed_at_s", "is_live", "request", "response")

    def __init__(self, now_s: float) -> None:
        self.request, self.response = Total(), Total()
        self.changed_at_s, self.is_live = now_s, True


class EdgeTotals:
    """Byte totals of all edges of a node.

    A round is ``begin_round``, ``add_live`` for each live connection, and ``end_round``. Call ``add_ended`` at any time.

    Attributes:
        workloads: address -> workload, of this node's pods that have a network of their own.
        servers: addresses of this node that answered a call.
        uncounted: live connections of pods whose bytes the kernel does not count, in the last complete round.
        reading: result of the last complete round.
    """

    def __init__(self) -> None:
        self.workloads: dict[bytes, Workload] = {}
        self.servers: set[bytes] = set()
        self.uncounted = 0
        self.reading = Reading(0.0, ())
        self._deleted_at_s: dict[bytes, float] = {}
        self._states: dict[Edge, _EdgeState] = {}
        self._pending: list[tuple[Edge, int, int]] = []  # edge, request and response bytes of ended connections
        self._server_names: dict[bytes, str] = {}
        self._is_first_round = True
        self._now_s = self._read_at_s = 0.0
        self._uncounted_so_far = 0

    def set_workloads(self, workloads: Mapping[bytes, Workload], now_s: float) -> None:
        """Set the workloads of the node's addresses. An address of a deleted pod is kept for `ADDRESS_EXPIRY_S`, unless another pod gets it."""
        for address in self.workloads.keys() - workloads.keys():
            if now_s - self._deleted_at_s.setdefault(address, now_s) > ADDRESS_EXPIRY_S:
                del self.workloads[address], self._deleted_at_s[address]
                self.servers.discard(address)
        for address, workload in workloads.items():
            self._deleted_at_s.pop(address, None)
            self.workloads[address] = workload

    def add_ended(self, entry: Entry) -> None:
        """Add an ended connection, which counts from the next round on."""
        edge = self._edge_of(entry)
        if edge is not None and entry.request_bytes is not None:
            self._pending.append((edge, entry.request_bytes, entry.response_bytes or 0))

    def begin_round(self, now_s: float, read_at_s: float) -> None:
        """Prepare for the connections of a dump. ``read_at_s`` is ``now_s`` in seconds since the epoch."""
        self._now_s, self._read_at_s, self._uncounted_so_far = now_s, read_at_s, 0
        for state in self._states.values():
            state.request.live = state.response.live = 0
            state.is_live = False
        for edge, request, response in self._pending:
            state = self._state_of(edge)
            state.request.ended += request
            state.response.ended += response
        self._pending.clear()

    def add_live(self, entry: Entry) -> None:
        """Add a live connection from the dump."""
        edge = self._edge_of(entry)
        if edge is None:
            return
        if entry.request_bytes is None:
            self._uncounted_so_far += 1
            return
        state = self._state_of(edge)
        state.is_live = True
        state.request.live += entry.request_bytes
        state.response.live += entry.response_bytes or 0

    def end_round(self) -> None:
        """Update the totals after a dump, and forget edges without traffic for `EDGE_EXPIRY_S`."""
        self.uncounted = self._uncounted_so_far
        for edge, state in list(self._states.items()):
            before = state.request.exported + state.response.exported
            for total in (state.request, state.response):
                if self._is_first_round:
                    total.reset()
                total.update()
            if state.is_live or state.request.exported + state.response.exported != before:
                state.changed_at_s = self._now_s
            elif self._now_s - state.changed_at_s > EDGE_EXPIRY_S:
                del self._states[edge]
        self._is_first_round = False
        totals = [(edge, state.request.exported, state.response.exported) for edge, state in self._states.items()]
        self.reading = Reading(self._read_at_s, totals)
        if len(self._server_names) > 4 * MAX_EDGES:
            self._server_names.clear()

    def responding_servers(self) -> Iterator[tuple[bytes, Workload]]:
        """Yields the addresses of this node's existing pods that answered a call, with their workloads.

        Iterates over a copy, because a thread collects metrics during a round.
        """
        for address in self.servers.copy():
            workload = self.workloads.get(address)
            if workload is not None and address not in self._deleted_at_s:
                yield address, workload

    def _state_of(self, edge: Edge) -> _EdgeState:
        state = self._states.get(edge)
        if state is None:
            if len(self._states) >= MAX_EDGES:
                edge = OVERFLOW_EDGE
            state = self._states.get(edge) or self._states.setdefault(edge, _EdgeState(self._now_s))
        return state

    def _edge_of(self, entry: Entry) -> Edge | None:
        """The edge of a connection; None unless the client is on this node, because only its node counts the connection."""
        if entry.server in self.workloads:
            self.servers.add(entry.server)
        client = self.workloads.get(entry.client)
        if client is None:
            return None
        server = self._server_names.get(entry.server)
        if server is None:
            server = self._server_names[entry.server] = _server_name(entry.server)
        return Edge(client, server, entry.port if server != OUTSIDE else 0)


def _server_name(address: bytes) -> str:
    """The address as text; `OUTSIDE` for public addresses, because their number has no bound."""
    parsed = ipaddress.ip_address(address)
    return OUTSIDE if parsed.is_global else str(parsed)
