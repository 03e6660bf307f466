"""Pods, reduced to the fields that netaware reads, and the labels and annotations by which netaware places them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from controller.cluster.costs import Location
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from kubekit.conditions import find_condition
from kubekit.selectors import LabelSelector, MatchExpression
from kubekit.wire import (
    DECODE_ERRORS,
    FINISHED_PHASES,
    Condition,
    Object,
    ObjectMeta,
    PodIP,
    ResourceRequirements,
    SchedulingGate,
    Taint,
    Wire,
    parse_time,
)

GATE = "netaware.io/topological-order"
"""Name of the scheduling gate that holds a pod until its group's order releases it."""
SCHEDULING_GATED = "SchedulingGated"
"""Reason of PodScheduled=False while a pod is gated; with any other reason scheduling failed."""
DEFAULT_SCHEDULER = "default-scheduler"
"""schedulerName of pods that name none."""
OUR_SCHEDULER = "network-aware-scheduler"
"""schedulerName of the profile that calls netaware's extender, unless configured."""
PLACEMENT_LABEL = "netaware.io/placement"
"""Label of a pod or its namespace, with a `PlacementMode` as value."""
PlacementMode = Literal["extender", "affinity"]
"""How a pod gets to its planned node: by the extender's answers, or by node affinity."""
TARGET_ANNOTATION = "netaware.io/target"
"""Annotation of a pod: its planned node, as JSON of `Target`."""


class ContainerPort(Wire, frozen=True):
    """A container's port; ``host_port`` is 0 if it has none."""

    host_port: int = 0
    protocol: str = "TCP"


class Container(Wire, frozen=True):
    """A container; an init container with restartPolicy Always is a sidecar."""

    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    ports: list[ContainerPort] | None = None
    name: str = ""


class _Presence(Wire, frozen=True):
    """A field whose presence alone is read."""


class ClaimVolumeSource(Wire, frozen=True):
    """Reference to a PersistentVolumeClaim of the pod's namespace."""

    claim_name: str = ""


class Volume(Wire, frozen=True):
    """A pod's volume; the claim of an ephemeral volume is named POD-VOLUME."""

    name: str = ""
    empty_dir: _Presence | None = None
    host_path: _Presence | None = None
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: _Presence | None = None


class NodeSelectorTerm(Wire, frozen=True):
    """Requirements that must all hold; a term without requirements matches no node."""

    match_expressions: list[MatchExpression] | None = None
    match_fields: list[MatchExpression] | None = None


class NodeSelector(Wire, frozen=True):
    """Terms, of which at least one must match."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredTerm(Wire, frozen=True):
    """A preferred term with a weight of 1 to 100."""

    weight: int
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    """Required and preferred node affinity."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class PodAffinityTerm(Wire, frozen=True):
    """Selects pods by labels and namespace; affinity to them is per domain of the topology key."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(Wire, frozen=True):
    """A preferred pod affinity term with its weight."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """Required and preferred affinity, or anti-affinity, to other pods."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] | None = None


class Affinity(Wire, frozen=True):
    """Affinity of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True):
    """A toleration of a taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Whether it tolerates a taint. Operators that are not implemented (Gt, Lt) tolerate none."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:  # An empty key with Exists tolerates every taint.
            return False
        if self.operator == "Exists":
            return True
        return self.operator in {"Equal", ""} and bool(self.key) and self.value == taint.value


class SpreadConstraint(Wire, frozen=True):
    """A topologySpreadConstraint."""

    topology_key: str = ""
    max_skew: int = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: list[str] | None = None


class SchedulingGroup(Wire, frozen=True):
    """Reference to the PodGroup of a pod, in Kubernetes 1.37 and later."""

    pod_group_name: str = ""


class PodSpec(Wire, frozen=True):
    """The part of a pod's spec that netaware reads."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: SchedulingGroup | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    host_network: bool = False
    priority_class_name: str = ""
    preemption_policy: str = ""
    volumes: list[Volume] | None = None


class ContainerStatus(Wire, frozen=True):
    """A container's resources, which differ from the spec while an in-place resize is pending."""

    name: str = ""
    allocated_resources: dict[str, str] | None = None
    resources: ResourceRequirements | None = None


class PodStatus(Wire, frozen=True):
    """The part of a pod's status that netaware reads."""

    phase: str = ""
    qos_class: str = ""
    nominated_node_name: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    pod_ips: list[PodIP] | None = msgspec.field(default=None, name="podIPs")

    @property
    def scheduling_failed(self) -> bool:
        """Whether the last attempt to schedule the pod failed.

        SchedulingGated is not an attempt; it remains for a moment after a gate opened.
        """
        scheduled = find_condition(self.conditions, "PodScheduled")
        return scheduled is not None and scheduled.status == "False" and scheduled.reason != SCHEDULING_GATED


class Pod(Object, frozen=True):
    """A pod with all fields that the controller reads; the agent reads `kubekit.wire.Pod`."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def group(self) -> str:
        """Name of its AppGroup; empty without one."""
        return self.metadata.label(APPGROUP_LABEL)

    @property
    def workload(self) -> str:
        """Selector of its workload in the AppGroup; empty without one."""
        return self.metadata.label(WORKLOAD_LABEL)

    @property
    def pod_group(self) -> str:
        """``namespace/name`` of its PodGroup, whose pods kube-scheduler places all or none; empty without one."""
        group = self.spec.scheduling_group
        return f"{self.metadata.namespace}/{group.pod_group_name}" if group is not None and group.pod_group_name else ""

    @property
    def is_finished(self) -> bool:
        """Whether it succeeded or failed, and so holds no resources any more."""
        return self.status.phase in FINISHED_PHASES

    @property
    def is_active(self) -> bool:
        """Whether it is neither finished nor being deleted."""
        return self.metadata.deletion_timestamp is None and self.status.phase not in FINISHED_PHASES

    @property
    def is_bound(self) -> bool:
        """Whether it is bound to a node and active."""
        return bool(self.spec.node_name) and self.is_active

    @property
    def is_gated(self) -> bool:
        """Whether it has netaware's scheduling gate."""
        gates = self.spec.scheduling_gates
        return GATE in [gate.name for gate in gates] if gates else False

    @property
    def other_gates(self) -> tuple[str, ...]:
        """Names of its scheduling gates that are not netaware's."""
        gates = self.spec.scheduling_gates
        return tuple([gate.name for gate in gates if gate.name != GATE]) if gates else ()

    @property
    def is_waiting(self) -> bool:
        """Whether it is active and not bound: gated, or in kube-scheduler's queue."""
        return not self.spec.node_name and self.is_active

    @property
    def is_ready(self) -> bool:
        """Whether its condition Ready is True."""
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"

    def age_s(self, now: float) -> float:
        """Seconds since its creation, at unix time ``now``; 0 if unknown."""
        created = self.metadata.creation_timestamp
        return max(now - parse_time(created), 0.0) if created else 0.0

    def condition(self, type_: str) -> Condition | None:
        """Its condition of a type; None without one."""
        return find_condition(self.status.conditions, type_)


class ExtenderPodSpec(Wire, frozen=True):
    """The spec of an `ExtenderPod`."""

    scheduler_name: str = ""
    node_name: str = ""


class ExtenderPod(Wire, frozen=True):
    """The pod in kube-scheduler's request to the extender, with fewer fields, because the extender decodes one for each request."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ExtenderPodSpec = ExtenderPodSpec()
    status: PodStatus = PodStatus()


def calls_extender(scheduler_name: str, scheduler_names: Collection[str]) -> bool:
    """Whether a scheduler calls the extender, by the setting ``scheduler.schedulerNames``; an empty one means all schedulers."""
    return not scheduler_names or scheduler_name in scheduler_names


def placement_mode_of(labels: Mapping[str, str] | None, default: PlacementMode) -> PlacementMode:
    """The value of `PLACEMENT_LABEL` in a pod's or namespace's labels; ``default`` without a valid value."""
    match (labels or {}).get(PLACEMENT_LABEL):
        case "affinity" | "extender" as placement:
            return placement
    return default


class Target(Wire, frozen=True):
    """A pod's planned node; the value of `TARGET_ANNOTATION`.

    Attributes:
        zone, region: of the planned node; either may be empty.
        node: name of the planned node.
        cost: network cost of the pod's dependencies and dependents, once the whole group is placed.
    """

    zone: str = ""
    region: str = ""
    node: str = ""
    cost: int = 0

    @property
    def location(self) -> Location:
        """Location of the planned node."""
        return Location(self.region, self.zone)


_decode_target = msgspec.json.Decoder(Target).decode


def target_of(pod: Pod | ExtenderPod) -> Target | None:
    """A pod's planned node; None without a valid annotation."""
    text = pod.metadata.annotation(TARGET_ANNOTATION)
    try:
        return _decode_target(text) if text else None
    except DECODE_ERRORS:
        return None


def pending_target_of(pod: Pod) -> Target | None:
    """The planned node of a pod in kube-scheduler's queue; None for other pods, and after a failed attempt to schedule it."""
    if not pod.is_waiting or pod.is_gated or pod.status.scheduling_failed:
        return None
    return target_of(pod)
