"""Byte counters by client workload and server, from dumps of live connections and from events about ended ones. No I/O.

A total is the bytes of ended connections plus the bytes so far of live ones. No single connection is remembered, so memory grows only
with the number of edges. A round is one dump of the table. A connection that ends during a round counts from the next round on, so a
total may be too low once, see `ByteTotal.export`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from agent.traffic.conntrack import Connection

MAX_EDGES = 2000
"""Maximum number of edges of a node; 110 pods that each call 15 others have 1,650. Further edges share `OVERFLOW_EDGE`."""
EDGE_EXPIRY_S = 3600.0
"""An edge without traffic is forgotten after this time."""
ADDRESS_EXPIRY_S = 600.0
"""Time for which an address still counts for its deleted pod, whose connections may end later than the pod."""
OUTSIDE = "outside"
"""Server of all edges to public addresses, because their number is unbounded."""


class WorkloadReference(NamedTuple):
    """A workload, or a pod that belongs to none, by namespace, kind and name."""

    namespace: str
    kind: str
    name: str


class TrafficEdge(NamedTuple):
    """A client workload of this node, the server's address, and its port; `OUTSIDE` and 0 for public addresses."""

    client: WorkloadReference
    server: str
    port: int


OVERFLOW_EDGE = TrafficEdge(WorkloadReference("", "", ""), "", 0)
"""Stands for all edges after the first `MAX_EDGES`."""


class EdgeBytes(NamedTuple):
    """Bytes of an edge from client to server (request) and back (response)."""

    edge: TrafficEdge
    request_bytes: int
    response_bytes: int


class RoundTotals(NamedTuple):
    """The bytes of each edge since the agent started or the edge appeared, and when they were read, seconds since the epoch."""

    read_at_s: float
    totals: Sequence[EdgeBytes]


class ByteTotal(msgspec.Struct):
    """Bytes in one direction of an edge, as a counter that never falls.

    Attributes:
        ended_bytes, live_bytes: of ended and of live connections.
        offset_bytes: added to their sum, for bytes before the start and bytes in lost events.
        exported_bytes: value of the counter.
        low_bytes: the first sum below ``exported_bytes``; None if the latest sum was not below.
    """

    ended_bytes: int = 0
    live_bytes: int = 0
    offset_bytes: int = 0
    exported_bytes: int = 0
    low_bytes: int | None = None

    def export(self) -> None:
        """Export the new sum. A second low sum means that events were dropped, so the counter continues from the first low sum."""
        sum_bytes = self.ended_bytes + self.live_bytes + self.offset_bytes
        if sum_bytes >= self.exported_bytes:
            self.exported_bytes, self.low_bytes = sum_bytes, None
        elif self.low_bytes is None:
            self.low_bytes = sum_bytes
        else:
            lost_bytes = self.exported_bytes - self.low_bytes
            self.offset_bytes += lost_bytes
            self.exported_bytes, self.low_bytes = max(self.exported_bytes, sum_bytes + lost_bytes), None


class _EdgeState(msgspec.Struct):
    """The totals of an edge, when the edge last had traffic, and whether it has live connections.

    ``must_reset``: the bytes so far were sent before the agent's start, or are counted in `OVERFLOW_EDGE`.
    """

    changed_at_s: float
    must_reset: bool
    is_live: bool = True
    request: ByteTotal = msgspec.field(default_factory=ByteTotal)
    response: ByteTotal = msgspec.field(default_factory=ByteTotal)


class EdgeTotals:
    """Byte totals of all edges of a node.

    A round is ``begin_round``, ``add_live`` for each live connection, and ``end_round``. Call ``add_ended`` at any time.

    Attributes:
        workload_by_address: workloads of this node's pods that have a network of their own, and of pods deleted recently.
        responding_addresses: addresses of this node that answered a call.
        uncounted_connections: number of live connections whose bytes the kernel does not count, in the last complete round.
        last_round: totals of the last complete round.
    """

    def __init__(self) -> None:
        self.workload_by_address: dict[bytes, WorkloadReference] = {}
        self.responding_addresses: set[bytes] = set()
        self.uncounted_connections = 0
        self.last_round = RoundTotals(0.0, ())
        self._deleted_at_s_by_address: dict[bytes, float] = {}
        self._state_by_edge: dict[TrafficEdge, _EdgeState] = {}
        # Request and response bytes of the connections that ended since the round began.
        self._ended_bytes_by_edge: dict[TrafficEdge, tuple[int, int]] = {}
        # Connections of a new edge may have begun before the agent, or be counted in `OVERFLOW_EDGE` in the last complete round.
        self._must_reset_new_edges = True
        self._now_s = self._read_at_s = 0.0
        self._uncounted_in_round = 0

    def set_workloads(self, workload_by_address: Mapping[bytes, WorkloadReference], now_s: float) -> None:
        """Set the workloads of the node's addresses.

        An address of a deleted pod is kept for `ADDRESS_EXPIRY_S`, unless another pod gets it.
        """
        for address in self.workload_by_address.keys() - workload_by_address.keys():
            if now_s - self._deleted_at_s_by_address.setdefault(address, now_s) > ADDRESS_EXPIRY_S:
                del self.workload_by_address[address], self._deleted_at_s_by_address[address]
                self.responding_addresses.discard(address)
        for address, workload in workload_by_address.items():
            self._deleted_at_s_by_address.pop(address, None)
            self.workload_by_address[address] = workload

    def add_ended(self, connection: Connection) -> None:
        """Add an ended connection, which counts from the next round on."""
        self._record_server(connection)
        edge = self._find_edge(connection)
        if edge is None or connection.request_bytes is None:
            return
        if (
            len(self._ended_bytes_by_edge) >= MAX_EDGES
            and edge not in self._ended_bytes_by_edge
            and edge not in self._state_by_edge
        ):
            edge = OVERFLOW_EDGE
        request_bytes, response_bytes = self._ended_bytes_by_edge.get(edge, (0, 0))
        self._ended_bytes_by_edge[edge] = (
            request_bytes + connection.request_bytes,
            response_bytes + (connection.response_bytes or 0),
        )

    def begin_round(self, now_s: float, read_at_s: float) -> None:
        """Begin a round; ``read_at_s`` is ``now_s`` in seconds since the epoch."""
        self._now_s, self._read_at_s, self._uncounted_in_round = now_s, read_at_s, 0
        for state in self._state_by_edge.values():
            state.request.live_bytes = state.response.live_bytes = 0
            state.is_live = False
        for edge, (request_bytes, response_bytes) in self._ended_bytes_by_edge.items():
            state = self._find_or_add_state(edge)
            state.request.ended_bytes += request_bytes
            state.response.ended_bytes += response_bytes
        self._ended_bytes_by_edge.clear()

    def add_live(self, connection: Connection) -> None:
        """Add a live connection from the dump."""
        self._record_server(connection)
        edge = self._find_edge(connection)
        if edge is None:
            return
        if connection.request_bytes is None:
            self._uncounted_in_round += 1
            return
        state = self._find_or_add_state(edge)
        state.is_live = True
        state.request.live_bytes += connection.request_bytes
        state.response.live_bytes += connection.response_bytes or 0

    def end_round(self) -> None:
        """Export the totals of the round, and forget edges without traffic for `EDGE_EXPIRY_S`."""
        self.uncounted_connections = self._uncounted_in_round
        for edge, state in list(self._state_by_edge.items()):
            exported_before = state.request.exported_bytes + state.response.exported_bytes
            for total in (state.request, state.response):
                if state.must_reset:
                    total.offset_bytes = -(total.ended_bytes + total.live_bytes)
                total.export()
            state.must_reset = False
            if state.is_live or state.request.exported_bytes + state.response.exported_bytes != exported_before:
                state.changed_at_s = self._now_s
            elif self._now_s - state.changed_at_s > EDGE_EXPIRY_S:
                del self._state_by_edge[edge]
        overflow = self._state_by_edge.get(OVERFLOW_EDGE)
        self._must_reset_new_edges = overflow is not None and overflow.is_live
        totals = [
            EdgeBytes(edge, s.request.exported_bytes, s.response.exported_bytes)
            for edge, s in self._state_by_edge.items()
        ]
        self.last_round = RoundTotals(self._read_at_s, totals)

    def responding_workloads(self) -> Iterator[tuple[bytes, WorkloadReference]]:
        """Yield the addresses of this node's existing pods that answered a call, with their workloads."""
        # A copy, because a thread collects metrics during a round.
        for address in self.responding_addresses.copy():
            workload = self.workload_by_address.get(address)
            if workload is not None and address not in self._deleted_at_s_by_address:
                yield address, workload

    def _find_or_add_state(self, edge: TrafficEdge) -> _EdgeState:
        state = self._state_by_edge.get(edge)
        if state is None and len(self._state_by_edge) >= MAX_EDGES:
            edge = OVERFLOW_EDGE
            state = self._state_by_edge.get(edge)
        if state is None:
            state = self._state_by_edge[edge] = _EdgeState(self._now_s, self._must_reset_new_edges)
        return state

    def _record_server(self, connection: Connection) -> None:
        if connection.server in self.workload_by_address:
            self.responding_addresses.add(connection.server)

    def _find_edge(self, connection: Connection) -> TrafficEdge | None:
        """Find the edge of a connection; None unless the client is on this node, because only its node counts the connection."""
        client = self.workload_by_address.get(connection.client)
        if client is None:
            return None
        server = _format_server(connection.server)
        return TrafficEdge(client, server, connection.port if server != OUTSIDE else 0)


@lru_cache(maxsize=4 * MAX_EDGES)
def _format_server(address: bytes) -> str:
    """Format the address, or return `OUTSIDE` for public addresses."""
    parsed = ipaddress.ip_address(address)
    return OUTSIDE if parsed.is_global else str(parsed)
