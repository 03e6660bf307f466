"""Pods, nodes and disruption budgets as the descheduler reads them, and the compact forms that its rules work on.

100,000 pods are held at once, so what pods of one template share (where they may go, what they ask for) is held once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.descheduler.amounts import parse_amounts
from controller.descheduler.shapes import MOST_SHARED, Shape, Shapes
from controller.scheduler.pods import Affinity, Toleration
from kubekit.selectors import LabelSelector
from kubekit.wire import Condition, Container, Node, Object, OwnerReference, Resource, Taint, Wire, parse_time

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")

EVICT_ANNOTATION = "descheduler.alpha.kubernetes.io/evict"
"""``true`` lets bare pods and pods with local storage go, ``false`` forbids."""
PREFER_NO_ANNOTATION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
SAFE_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
COST_ANNOTATION = "descheduler.koordinator.sh/eviction-cost"
"""An integer; cheaper pods go first, and the greatest 32-bit integer forbids."""
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
HASH_LABEL = "pod-template-hash"

SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
FORBIDDING_COST = 2**31 - 1
QOS_RANK: Mapping[str, int] = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}


class _Present(Wire, frozen=True):
    """Something of which only its being there matters."""


class Volume(Wire, frozen=True):
    """Only whether it is local matters."""

    empty_dir: _Present | None = None
    host_path: _Present | None = None


class MovablePodSpec(Wire, frozen=True):
    """What of a pod's spec decides whether and where it can move."""

    node_name: str = ""
    priority: int = 0
    priority_class_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None
    volumes: list[Volume] | None = None


class MovablePodStatus(Wire, frozen=True):
    """Phase, readiness and class."""

    phase: str = ""
    qos_class: str = ""
    conditions: list[Condition] | None = None


class MovablePod(Object, frozen=True):
    """v1 Pod."""

    spec: MovablePodSpec = MovablePodSpec()
    status: MovablePodStatus = MovablePodStatus()


class BudgetSpec(Wire, frozen=True):
    """Which pods a budget is for; an absent selector is for none, an empty one for all."""

    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True):
    """What the disruption controller allows now."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class Budget(Object, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class NodeInfo(msgspec.Struct, frozen=True, gc=False):
    """A node.

    Attributes:
        taints: those that keep pods away (NoSchedule and NoExecute).
        allocatable: by resource; cpu in millicores.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    schedulable: bool
    ready: bool
    allocatable: Mapping[str, int]


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod.

    Attributes:
        workload: ``namespace/Kind/name`` of what made it; a Deployment rather than its ReplicaSet. Empty for bare pods.
        node: empty while it waits.
        barred: why it never moves whatever is configured; empty when it may.
        bare, local_storage: whether configuration has to allow its move, and nothing else does.
        requests: by resource, the greater of its init containers' and the sum of its containers', with overhead.
        created_s: unix seconds.
        going: finished, or being deleted.
    """

    key: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    workload: str
    node: str
    priority: int
    qos: int
    cost: int
    barred: str
    bare: bool
    local_storage: bool
    shape: Shape
    requests: Mapping[str, int]
    created_s: float
    running: bool
    ready: bool
    going: bool


class PodReader:
    """Turns wire pods into `PodInfo`, sharing what pods of one template have in common."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        self._requests: dict[bytes, Mapping[str, int]] = {}
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def read(self, pod: MovablePod) -> PodInfo:
        """Convert one pod."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        evict = meta.annotation(EVICT_ANNOTATION).lower()
        owner = next((o for o in meta.owner_references or () if o.controller), None)
        local = any(v.empty_dir is not None or v.host_path is not None for v in spec.volumes or ())
        conditions = status.conditions or ()
        cost = _cost(meta.annotation(COST_ANNOTATION))
        return PodInfo(
            key=meta.key,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            labels=meta.labels or {},
            workload=_workload(pod, owner),
            node=spec.node_name,
            priority=spec.priority,
            qos=QOS_RANK.get(status.qos_class, 1),
            cost=cost,
            barred=_barred(pod, owner, evict, cost),
            bare=owner is None and evict != "true",
            local_storage=local and evict != "true",
            shape=self.shapes.of(spec.node_selector, spec.affinity, spec.tolerations),
            requests=self._requests_of(spec),
            created_s=_time(meta.creation_timestamp),
            running=status.phase == "Running",
            ready=any(c.type == "Ready" and c.status == "True" for c in conditions),
            going=status.phase in {"Succeeded", "Failed"} or meta.deletion_timestamp is not None,
        )

    def _requests_of(self, spec: MovablePodSpec) -> Mapping[str, int]:
        asked = [c.resources.requests for c in spec.containers or ()]
        first = [(c.resources.requests, c.restart_policy) for c in spec.init_containers or ()]
        key = self._encode((asked, first, spec.overhead))
        if key not in self._requests:
            if len(self._requests) >= MOST_SHARED:
                self._requests.clear()
            self._requests[key] = _requests(spec)
        return self._requests[key]


def _requests(spec: MovablePodSpec) -> Mapping[str, int]:
    """Kubernetes' rule: sidecars count with the containers, and beside each init container those that started before it."""
    total: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers or ():
        asked = parse_amounts(container.resources.requests)
        if container.restart_policy == "Always":
            _add(total, asked)
            asked = {}
        for resource in {*asked, *total}:
            peak[resource] = max(peak.get(resource, 0), total.get(resource, 0) + asked.get(resource, 0))
    for container in spec.containers or ():
        _add(total, parse_amounts(container.resources.requests))
    found = {resource: max(total.get(resource, 0), peak.get(resource, 0)) for resource in {*total, *peak}}
    _add(found, parse_amounts(spec.overhead))
    return found


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


def _workload(pod: MovablePod, owner: OwnerReference | None) -> str:
    if owner is None:
        return ""
    kind, name = owner.kind, owner.name
    suffix = "-" + pod.metadata.label(HASH_LABEL)
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        # Back-off must outlive a roll-out, which makes a new ReplicaSet of the same Deployment.
        kind, name = "Deployment", name.removesuffix(suffix)
    return f"{pod.metadata.namespace}/{kind}/{name}"


def _barred(pod: MovablePod, owner: OwnerReference | None, evict: str, cost: int) -> str:
    annotations, spec = pod.metadata.annotations or {}, pod.spec
    kind = owner.kind if owner else ""
    critical = spec.priority >= SYSTEM_CRITICAL_PRIORITY or spec.priority_class_name.startswith("system-")
    bars = (
        (MIRROR_ANNOTATION in annotations, "mirror pod"),
        (kind == "Node", "static pod"),
        (kind == "DaemonSet", "DaemonSet pod"),
        (critical, "critical pod"),
        (evict == "false", f"annotation {EVICT_ANNOTATION} is false"),
        (evict != "true" and PREFER_NO_ANNOTATION in annotations, f"annotation {PREFER_NO_ANNOTATION}"),
        (annotations.get(SAFE_ANNOTATION, "").lower() == "false", f"annotation {SAFE_ANNOTATION} is false"),
        (cost >= FORBIDDING_COST, f"annotation {COST_ANNOTATION} forbids it"),
    )
    return next((reason for holds, reason in bars if holds), "")


def _cost(text: str) -> int:
    try:
        return int(text) if text else 0
    except ValueError:
        return 0


def _time(text: str | None) -> float:
    try:
        return parse_time(text) if text else 0.0
    except ValueError:
        return 0.0


def read_node(node: Node) -> NodeInfo:
    """Convert one node."""
    taints = tuple(t for t in node.spec.taints or () if t.effect in {"NoSchedule", "NoExecute"})
    return NodeInfo(
        node.metadata.name,
        node.metadata.labels or {},
        taints,
        not node.spec.unschedulable,
        node.ready,
        parse_amounts(node.status.allocatable),
    )
