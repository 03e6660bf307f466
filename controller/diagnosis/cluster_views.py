"""Views of zones, agents and bandwidth, as ``-o json`` and the page show them. An unknown value is null, never 0."""

from __future__ import annotations

from typing import Literal

import msgspec

PairBasis = Literal["measured", "mirrored", "stale", "inferred", "unreachable", "given", "absent"]
"""Source of a cost: see `netperf.costs`; ``given`` if the user wrote the weight, ``absent`` if there is no cost."""
AgentState = Literal["up", "down", "excluded"]
HARMLESS_VERDICTS = frozenset({"enforced", "not-applicable", "other-enforcer"})
"""Verdicts of the agent on limits that work or are not its task; all others mean a limit without effect."""


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of views: in JSON, names are in camelCase, and all fields are written."""


class ZoneView(View, frozen=True):
    """A zone: the values of its nodes' labels; ``region`` is empty without one."""

    name: str
    region: str


class PairView(View, frozen=True):
    """One directed pair of zones.

    Attributes:
        origin, destination: names of the zones.
        cost: cost in the weight that `NetworkView.weight_name` names; null if that has none.
        basis: source of the cost.
        p50_us, p90_us, p99_us, jitter_us, loss_ratio: round trips as they count for costs, from one sample of either direction: that of
            the node pair from which the cost comes, else the newest.
        measured_at: time of that sample, unix seconds; at most this machine's time.
        quality_flags: why that sample is not trusted; empty if it is.
        prober: source of the round trips: ``netperf``, ``datagrams`` or ``external``.
        origin_node, destination_node: nodes of that sample.
        bandwidth_capacity_bps, bandwidth_allocated_bps: bandwidthCapacity and bandwidthAllocated of the NetworkTopology.
    """

    origin: str
    destination: str
    cost: int | None = None
    basis: PairBasis = "absent"
    p50_us: float | None = None
    p90_us: float | None = None
    p99_us: float | None = None
    jitter_us: float | None = None
    loss_ratio: float | None = None
    measured_at: float | None = None
    quality_flags: tuple[str, ...] = ()
    prober: str | None = None
    origin_node: str | None = None
    destination_node: str | None = None
    bandwidth_capacity_bps: int | None = None
    bandwidth_allocated_bps: int | None = None

    @property
    def zones(self) -> tuple[str, str]:
        """Origin and destination."""
        return self.origin, self.destination

    @property
    def is_overcommitted(self) -> bool:
        """Whether dependencies have allocated more than the capacity; False if the capacity is unknown."""
        capacity_bps, allocated_bps = self.bandwidth_capacity_bps, self.bandwidth_allocated_bps or 0
        return capacity_bps is not None and allocated_bps > capacity_bps

    @property
    def percentiles_us(self) -> dict[str, float | None]:
        """Round trips by percentile, the lowest first."""
        return {"p50": self.p50_us, "p90": self.p90_us, "p99": self.p99_us}


class NetworkView(View, frozen=True):
    """Zones, and costs and latencies between them.

    Attributes:
        topology: ``namespace/name`` of the NetworkTopology; null when there is none.
        weight_name: name of the weight from which costs are shown; null if there is none.
        unit_us: latency for one unit of a cost in NetperfCosts.
        percentile: percentile of the latency from which NetperfCosts are computed.
        zones: sorted by region and name.
        pairs: every ordered pair of zones, by origin and then by destination, both in the order of ``zones``.
        interval_s: length of a probing round; null without a probe plan.
        measured_at: time of the newest sample, unix seconds; null without samples.
        is_unused: whether the scheduler ignores these costs.
    """

    topology: str | None = None
    weight_name: str | None = None
    unit_us: float = 1000.0
    percentile: str = "p90"
    zones: tuple[ZoneView, ...] = ()
    pairs: tuple[PairView, ...] = ()
    interval_s: float | None = None
    measured_at: float | None = None
    is_unused: bool = False

    @property
    def pairs_by_zones(self) -> dict[tuple[str, str], PairView]:
        """The pairs by origin and destination."""
        return {pair.zones: pair for pair in self.pairs}


class AgentView(View, frozen=True):
    """A node and its agent.

    Attributes:
        node, zone: names; ``zone`` is empty without one.
        state: ``up``; ``down`` if the node should be measured but its agent does not work; ``excluded`` from measurement if the
            node is not Ready, cordoned or without a zone.
        reason: why the agent is not up, or the problem that it reports; empty if it reports none.
        version, prober: what the agent announces; empty if it announces nothing.
        probes: number of node pairs that it measures as origin.
        newest_at: time of the newest sample or failure that the agent wrote, unix seconds; null without one.
    """

    node: str
    zone: str
    state: AgentState = "up"
    reason: str = ""
    version: str = ""
    prober: str = ""
    probes: int = 0
    newest_at: float | None = None


class PodBandwidthView(View, frozen=True):
    """Bandwidth of one pod, bits per second.

    Attributes:
        namespace, name, node: the pod's; ``node`` is empty before the pod has one.
        requested_bps: sum of its containers' requests for ``network.aware.com/bandwidth``.
        ingress_limit, egress_limit: text of the annotation; null without one.
        ingress_limit_bps, egress_limit_bps: value of the annotation; null if it is absent or invalid.
        ingress_verdict, egress_verdict: the agent's verdict on the limit; null if unknown.
        problem: an inconsistency of request and limits; empty without one.
    """

    namespace: str
    name: str
    node: str
    requested_bps: int
    ingress_limit: str | None
    egress_limit: str | None
    ingress_limit_bps: int | None
    egress_limit_bps: int | None
    ingress_verdict: str | None
    egress_verdict: str | None
    problem: str

    @property
    def verdicts(self) -> dict[str, str]:
        """Known verdicts by direction."""
        verdicts = {"ingress": self.ingress_verdict, "egress": self.egress_verdict}
        return {direction: verdict for direction, verdict in verdicts.items() if verdict is not None}

    @property
    def ineffective_verdicts(self) -> dict[str, str]:
        """Verdicts of limits without effect, by direction."""
        return {direction: verdict for direction, verdict in self.verdicts.items() if verdict not in HARMLESS_VERDICTS}


class NodeBandwidthView(View, frozen=True):
    """Bandwidth of one node, bits per second.

    Attributes:
        node, zone: names; ``zone`` is empty without one.
        capacity_bps, allocatable_bps: from the node's status; null if it has none.
        allocated_bps: sum of its pods' requests.
        pods: number of pods with a request.
    """

    node: str
    zone: str
    capacity_bps: int | None
    allocatable_bps: int | None
    allocated_bps: int
    pods: int

    @property
    def is_overcommitted(self) -> bool:
        """Whether pods have requested more than is allocatable; False if that is unknown."""
        return self.allocatable_bps is not None and self.allocated_bps > self.allocatable_bps


class BandwidthView(View, frozen=True):
    """All nodes, sorted by name, and the pods that request or limit bandwidth, sorted by namespace and name."""

    nodes: tuple[NodeBandwidthView, ...] = ()
    pods: tuple[PodBandwidthView, ...] = ()

    @property
    def nodes_with_capacity(self) -> list[NodeBandwidthView]:
        """The nodes that publish their capacity. Only these count in totals, so that a share compares the same nodes."""
        return [node for node in self.nodes if node.allocatable_bps is not None]
