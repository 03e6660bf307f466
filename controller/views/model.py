"""The types that ``-o json`` and the page show.

Names are camelCase on the wire. Units are in the names. A value that is not known is null, never 0.
"""

from __future__ import annotations

from controller.appgroups.status import DependencyState
from controller.diagnosis.findings import Finding
from controller.diagnosis.model import AgentView, BandwidthView, NetworkView, View
from kubekit.wire import Condition


class PodView(View, frozen=True):
    """A pod of a workload; ``node`` and ``zone`` are empty until it is bound."""

    name: str
    node: str
    zone: str
    gated: bool


class WorkloadView(View, frozen=True):
    """A workload of a group; ``index`` is its position in the order, from 1, or null without an order."""

    selector: str
    name: str
    kind: str
    index: int | None
    pods: tuple[PodView, ...]


class EdgeView(View, frozen=True):
    """A dependency and its state now, by the worst pair of its placed pods.

    Attributes:
        state: ``met``, ``violated``, ``unknown`` (no cost known) or ``idle`` (one side has no placed pod).
        cost: of that pair; 1 within a zone, null when none is known.
        origin, destination: the zones of that pair, empty when idle.
        p50_us: round trip between these zones; null within a zone or when unknown.
    """

    dependant: str
    dependency: str
    max_cost: int
    min_bandwidth_bps: int
    state: DependencyState
    cost: int | None
    origin: str
    destination: str
    p50_us: float | None


class ZoneLoss(View, frozen=True):
    """Workloads that have no replica outside a zone."""

    zone: str
    stops: tuple[str, ...]


class GroupView(View, frozen=True):
    """An AppGroup.

    Attributes:
        order: selectors in the order of scheduling.
        total_cost: sum of its dependencies' costs, as far as known.
        violated: number of violated dependencies.
        zone_losses: workloads that the loss of each zone would stop.
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
    conditions: tuple[Condition, ...]
    zone_losses: tuple[ZoneLoss, ...] = ()


class Overview(View, frozen=True):
    """All data of ``status`` and the page.

    Attributes:
        at: unix seconds.
        findings: worst first; empty if the state of our programs was not read.
    """

    at: float
    network: NetworkView
    agents: tuple[AgentView, ...]
    groups: tuple[GroupView, ...]
    bandwidth: BandwidthView
    findings: tuple[Finding, ...] = ()
