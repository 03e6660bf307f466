"""Pods and nodes as scheduling reads them: where a pod is, what it asks for, and where it may go."""

from __future__ import annotations

from collections.abc import Mapping

from controller.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import Placement
from kubekit.wire import Condition, Object, ObjectMeta, ResourceRequirements, SchedulingGate, Taint, Wire

GATE = "netaware.io/topological-order"
"""The scheduling gate that holds a pod until its turn."""
PLACEMENT_LABEL = "netaware.io/placement"
"""On a pod or its namespace: ``affinity`` or ``extender``, how the decision is handed to the scheduler."""
TARGET_ANNOTATION = "netaware.io/target"
"""On a pod: where the plan wants it, as JSON of `Target`."""


class Container(Wire, frozen=True):
    """A container's requests, and whether it is a sidecar."""

    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class SelectorRequirement(Wire, frozen=True):
    """One requirement of a label selector or node selector."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    """metav1.LabelSelector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


class NodeSelectorTerm(Wire, frozen=True):
    """Requirements that must all hold."""

    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Wire, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredTerm(Wire, frozen=True):
    """A wish with a weight of 1 to 100."""

    weight: int
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    """Where a pod must and would like to go."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class PodAffinityTerm(Wire, frozen=True):
    """Pods with these labels, in the same domain of the key."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(Wire, frozen=True):
    """The same as a wish."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAntiAffinity(Wire, frozen=True):
    """Pods that this one must not, or would rather not, share a domain with."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] | None = None


class Affinity(Wire, frozen=True):
    """The part of affinity that plans honour."""

    node_affinity: NodeAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class Toleration(Wire, frozen=True):
    """A taint that a pod bears."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Kubernetes' rule; an empty key with Exists bears everything."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class SpreadConstraint(Wire, frozen=True):
    """A topologySpreadConstraint."""

    topology_key: str = ""
    max_skew: int = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None


class GroupPodSpec(Wire, frozen=True):
    """What of a pod's spec decides where it may go."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    scheduling_gates: list[SchedulingGate] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None


class GroupPodStatus(Wire, frozen=True):
    """Phase and conditions."""

    phase: str = ""
    conditions: list[Condition] | None = None


class GroupPod(Object, frozen=True):
    """A pod of an AppGroup."""

    spec: GroupPodSpec = GroupPodSpec()
    status: GroupPodStatus = GroupPodStatus()

    @property
    def group(self) -> str:
        """Name of its AppGroup."""
        return self.metadata.label(APPGROUP_LABEL)

    @property
    def workload(self) -> str:
        """Selector of its workload."""
        return self.metadata.label(WORKLOAD_LABEL)

    @property
    def over(self) -> bool:
        """Finished, or on its way out."""
        return self.status.phase in {"Succeeded", "Failed"} or self.metadata.deletion_timestamp is not None

    @property
    def bound(self) -> bool:
        """Bound to a node and not over."""
        return bool(self.spec.node_name) and not self.over

    @property
    def gated(self) -> bool:
        """Held by our gate."""
        return any(gate.name == GATE for gate in self.spec.scheduling_gates or ())

    @property
    def waiting(self) -> bool:
        """Not bound and not over: gated, or in the scheduler's queue."""
        return not self.spec.node_name and not self.over

    def condition(self, type_: str) -> Condition | None:
        """One of its conditions."""
        return _condition(self.status, type_)

    @property
    def found_no_node(self) -> bool:
        """Whether the scheduler tried it and found no node."""
        return _found_no_node(self.status)


class AskedPodSpec(Wire, frozen=True):
    """Of the pod in a scheduler's request."""

    scheduler_name: str = ""
    node_name: str = ""


class AskedPod(Wire, frozen=True):
    """The pod in a scheduler's request."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AskedPodSpec = AskedPodSpec()
    status: GroupPodStatus = GroupPodStatus()

    @property
    def found_no_node(self) -> bool:
        """Whether the scheduler tried it before and found no node."""
        return _found_no_node(self.status)


def _condition(status: GroupPodStatus, type_: str) -> Condition | None:
    return next((c for c in status.conditions or () if c.type == type_), None)


def _found_no_node(status: GroupPodStatus) -> bool:
    found = _condition(status, "PodScheduled")
    return found is not None and found.status == "False" and found.reason == "Unschedulable"


def placement_of(labels: Mapping[str, str] | None, default: Placement) -> Placement:
    """How the decision about a pod with these labels is handed to the scheduler."""
    asked = (labels or {}).get(PLACEMENT_LABEL)
    if asked == "affinity":
        return "affinity"
    return "extender" if asked == "extender" else default


class Target(Wire, frozen=True):
    """Where the plan wants a pod; the value of `TARGET_ANNOTATION`.

    Attributes:
        zone: of the host.
        region: of the host.
        node: the host.
        cost: what the pod's dependencies, and those on it, cost there when the whole group is placed.
    """

    zone: str = ""
    region: str = ""
    node: str = ""
    cost: int = 0
