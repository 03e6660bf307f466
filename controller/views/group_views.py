"""Views of AppGroups, as ``-o json`` and the page show them. An unknown value is null, never 0."""

from __future__ import annotations

from controller.appgroups.status import DependencyVerdict
from controller.diagnosis.cluster_views import View
from kubekit.wire import Condition


class PodView(View, frozen=True):
    """A pod of a workload; ``node`` and ``zone`` are empty until the pod is bound, ``gated`` if it has scheduling gates."""

    name: str
    node: str
    zone: str
    gated: bool


class WorkloadView(View, frozen=True):
    """A workload of a group.

    Attributes:
        selector: the workload's label value on pods.
        name, kind: of its controller, such as a Deployment.
        index: position in the order of the present status, from 1; null without an order.
    """

    selector: str
    name: str
    kind: str
    index: int | None
    pods: tuple[PodView, ...]


class EdgeView(View, frozen=True):
    """A dependency and its state now, by the worst pair of its placed pods.

    Attributes:
        dependent, dependency: selectors of the workloads.
        state: ``met``, ``violated``, ``unknown`` (no cost known) or ``idle`` (one side has no placed pod).
        cost: of that pair; 1 within a zone, null if unknown.
        origin, destination: zones of that pair; empty if idle.
        p50_us: round trip between these zones; null within a zone or if unknown.
    """

    dependent: str
    dependency: str
    max_cost: int
    min_bandwidth_bps: int
    state: DependencyVerdict
    cost: int | None
    origin: str
    destination: str
    p50_us: float | None


class ZoneLoss(View, frozen=True):
    """Workloads that the loss of a zone would stop, because all their replicas are in it."""

    zone: str
    stops: tuple[str, ...]


class GroupView(View, frozen=True):
    """An AppGroup.

    Attributes:
        algorithm: the topology sorting algorithm.
        members: ``spec.numMembers``; ``running``, ``gated`` and ``pending`` (unbound without a gate) count pods.
        total_cost: sum of known costs of dependencies.
        violated: number of violated dependencies.
        order: selectors in the order of scheduling, as the next status will have it.
        faults: mistakes in the spec.
        zone_losses: of each zone with a replica.
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
