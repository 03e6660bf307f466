"""The shapes of what is shown, as JSON: ``-o json`` of the commands and the page's data are these structs.

Names are camelCase on the wire. Units are in the names. A value that is not known is null, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from controller.diagnosis.findings import Finding, Severity
from controller.groups.status import Verdict
from controller.scheduler.balance import Advice
from controller.scheduler.survival import Survival

PairBasis = Literal["measured", "mirrored", "stale", "inferred", "unreachable", "given", "absent"]
"""What a cost rests on: `netperf.costs`' words, ``given`` for a weight that the user wrote, ``absent`` for no cost."""


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base: camelCase, all fields written."""


class ZoneView(View, frozen=True):
    """A zone: its region (empty when unlabelled), its nodes, how many are Ready, how many of these have an agent."""

    name: str
    region: str
    nodes: int
    ready: int
    agents: int


class PairView(View, frozen=True):
    """One directed pair of zones.

    Attributes:
        cost: as the weight in use has it, null where it has none.
        p50_us: round trip, from the sample that stands for the pair, as are the next fields.
        transactions: round trips of that sample.
        measured_at: unix seconds, by our clock.
        doubts: why the newest sample is not trusted; empty when it is.
        prober: ``netperf``, ``datagrams`` or ``external``.
        traffic_bps: of calls from origin to destination, answers included; null where nobody measures traffic.
        month: what that costs a month; null without prices.
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
    transactions: int | None = None
    measured_at: float | None = None
    doubts: tuple[str, ...] = ()
    prober: str | None = None
    origin_node: str | None = None
    destination_node: str | None = None
    bandwidth_capacity_bps: int | None = None
    bandwidth_allocated_bps: int | None = None
    traffic_bps: float | None = None
    month: float | None = None

    @property
    def percentiles_us(self) -> dict[str, float | None]:
        """By name, the lowest first."""
        return {"p50": self.p50_us, "p90": self.p90_us, "p99": self.p99_us}


class RegionPairView(View, frozen=True):
    """Cost between two regions; null where the weight has none."""

    origin: str
    destination: str
    cost: int | None


class NetworkView(View, frozen=True):
    """The zones and what lies between them.

    Attributes:
        topology: ``namespace/name`` of the NetworkTopology; null when there is none.
        weights: name of the weight shown; null when the object has none of that name.
        weights_available: names of all its weights.
        unit_us: microseconds that one unit of a NetperfCosts cost stands for.
        percentile: which latency these costs are made from.
        zones: sorted by region and name; pairs and region_pairs follow this order, every ordered pair once.
        interval_s: length of a probing round, null without a plan.
        planned: links that are measured, one per two zones.
        measured_at: unix seconds of the newest sample.
        currency: of every ``month``; empty without prices.
        unused: the scheduler does not go by these costs; they are shown because somebody asked, or for want of others.
    """

    topology: str | None
    weights: str | None
    weights_available: tuple[str, ...]
    unit_us: float
    percentile: str
    zones: tuple[ZoneView, ...]
    pairs: tuple[PairView, ...]
    region_pairs: tuple[RegionPairView, ...]
    interval_s: float | None
    planned: int
    measured_at: float | None
    refused_keys: dict[str, int]
    currency: str = ""
    unused: bool = False


class AgentView(View, frozen=True):
    """A node and its agent.

    Attributes:
        state: ``up``; ``down``, the node is Ready but has no agent or its pod is not Ready; ``away``, the node is not
            Ready or cordoned, so that nothing is asked of its agent.
        probes: links that this node measures, as origin.
        newest_at: unix seconds of the newest sample it took part in.
    """

    node: str
    zone: str
    region: str
    state: Literal["up", "down", "away"]
    reason: str
    version: str
    prober: str
    address: str
    probes: int
    newest_at: float | None


class PodView(View, frozen=True):
    """A pod of a workload; ``node`` and ``zone`` are empty until it is bound."""

    name: str
    node: str
    zone: str
    phase: str
    gated: bool


class WorkloadView(View, frozen=True):
    """A workload of a group; ``index`` is its place in the order from 1, null when the group has none yet."""

    selector: str
    name: str
    kind: str
    index: int | None
    pods: tuple[PodView, ...]


class EdgeView(View, frozen=True):
    """A dependency and how it fares now, judged by the worst pair of its placed pods.

    Attributes:
        verdict: ``met``, ``violated``, ``unknown`` (no cost known) or ``idle`` (one side has no placed pod).
        cost: of that pair; 1 within a zone, null when none is known.
        origin, destination: the zones of that pair, empty when idle.
        p50_us: round trip between these zones; null within a zone or when unknown.
        traffic_bps: measured bits per second, both ways; null where nobody measured.
        crossing_bps: of it, what leaves its zone as the pods are placed and Services route.
        month: what it costs a month; null without prices.
    """

    dependant: str
    dependency: str
    max_cost: int
    min_bandwidth_bps: int
    verdict: Verdict
    cost: int | None
    origin: str
    destination: str
    p50_us: float | None
    traffic_bps: float | None = None
    crossing_bps: float | None = None
    month: float | None = None


class ConditionView(View, frozen=True):
    """A condition of an object's status."""

    type: str
    status: str
    reason: str
    message: str
    since: str | None


class SavingView(View, frozen=True):
    """What placement saves: the mean call over a group's dependencies, and the same with pods on nodes taken at random.

    Attributes:
        dependencies: over how many.
        cost, random_cost: in the units of the weight.
        us, random_us: round trips, microseconds.
    """

    dependencies: int
    cost: float
    random_cost: float
    us: float
    random_us: float


class ChangeView(View, frozen=True):
    """Something that changed at ``at``, unix seconds; ``about`` is its kind and name, ``good`` whether it became better."""

    at: float
    about: str
    what: str
    good: bool


class GroupView(View, frozen=True):
    """An AppGroup.

    Attributes:
        order: selectors in the order in which they are to be scheduled.
        total_cost: sum of its dependencies' costs, as far as known.
        violated: how many dependencies have that verdict.
        survival: what the loss of each zone would take.
        in_one_zone: workloads of several replicas that the loss of one zone would stop, though there are others -> that zone.
        advice: what would route calls better, where that was asked for; the condition RoutedNear says it in any case.
        saving: what its placement saves; null where that is not known.
    """

    namespace: str
    name: str
    algorithm: str
    members: int
    running: int
    gated: int
    pending: int
    total_cost: int
    violated: int
    order: tuple[str, ...]
    workloads: tuple[WorkloadView, ...]
    edges: tuple[EdgeView, ...]
    faults: tuple[str, ...]
    conditions: tuple[ConditionView, ...]
    survival: Survival = Survival()
    in_one_zone: dict[str, str] = {}
    advice: tuple[Advice, ...] = ()
    saving: SavingView | None = None


class PodBandwidthView(View, frozen=True):
    """Bandwidth of one pod, bits per second.

    Attributes:
        requested_bps: sum of its containers' requests for ``network.aware.com/bandwidth``.
        ingress_asked, egress_asked: the annotation's text, null without one; ``_bps`` its meaning, null if it has none.
        ingress_verdict, egress_verdict: the agent's word on whether the limit holds; null when nobody says.
        problem: what does not fit together, empty when all does.
    """

    namespace: str
    name: str
    node: str
    requested_bps: int
    ingress_asked: str | None
    egress_asked: str | None
    ingress_asked_bps: int | None
    egress_asked_bps: int | None
    ingress_verdict: str | None
    egress_verdict: str | None
    ingress_used_bps: float | None
    egress_used_bps: float | None
    problem: str

    @property
    def verdicts(self) -> dict[str, str]:
        """By direction, as far as somebody says."""
        found = {"ingress": self.ingress_verdict, "egress": self.egress_verdict}
        return {direction: verdict for direction, verdict in found.items() if verdict is not None}


class NodeBandwidthView(View, frozen=True):
    """Bandwidth of one node, bits per second; capacity and allocatable are null where the node publishes none."""

    node: str
    zone: str
    capacity_bps: int | None
    allocatable_bps: int | None
    source: str
    allocated_bps: int
    pods: int
    transmit_bps: float | None
    receive_bps: float | None

    @property
    def overcommitted(self) -> bool:
        """Pods have booked more than there is, as far as that is known."""
        return self.allocatable_bps is not None and self.allocated_bps > self.allocatable_bps


class BandwidthView(View, frozen=True):
    """All nodes, by name, and the pods that ask for bandwidth, by namespace and name."""

    nodes: tuple[NodeBandwidthView, ...]
    pods: tuple[PodBandwidthView, ...]


class ProblemView(View, frozen=True):
    """Something that a person should look at.

    Attributes:
        alert: the alert that stands for it, whether or not it fires yet.
        severity: as the alert's.
        count: how many things are concerned.
        summary: one line.
        examples: the first few, by name.
        firing: Prometheus says that the alert fires; null when Prometheus was not asked.
    """

    alert: str
    severity: Severity
    count: int
    summary: str
    examples: tuple[str, ...]
    firing: bool | None = None


class Overview(View, frozen=True):
    """All of it; ``at`` is unix seconds. ``prometheus`` is its address (empty: none) and why it gave nothing.

    ``findings`` are causes with what to do (`controller.diagnosis`), where they were looked for; ``changes`` those of the last hour.
    """

    at: float
    network: NetworkView
    agents: tuple[AgentView, ...]
    groups: tuple[GroupView, ...]
    bandwidth: BandwidthView
    problems: tuple[ProblemView, ...]
    prometheus: str = ""
    prometheus_error: str = ""
    findings: tuple[Finding, ...] = ()
    changes: tuple[ChangeView, ...] = ()
