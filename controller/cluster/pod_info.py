"""The compact form in which all pods are cached, once per program.

There may be 100,000 of them, so labels, constraints and requests of pods of one template are stored once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from controller.cluster.eligibility import Constraints, go_integer
from controller.cluster.pods import GroupPod, GroupPodSpec, GroupPodStatus
from controller.cluster.requests import is_infeasible, ports_of, requests_of
from controller.cluster.volumes import claims_of
from kubekit.owners import controller_of, owner_of
from kubekit.wire import FINISHED, MIRROR_ANNOTATION, ObjectMeta, OwnerReference, parse_time
from netperf.contract import AGENT, EGRESS_ANNOTATION, INGRESS_ANNOTATION, NAME_LABEL

T = TypeVar("T")
_encode = msgspec.json.Encoder(order="deterministic").encode

EVICT_ANNOTATION = "descheduler.alpha.kubernetes.io/evict"
"""``true`` allows eviction of bare pods and pods with local storage, ``false`` forbids any."""
PREFER_NO_ANNOTATION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
SAFE_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
COST_ANNOTATION = "descheduler.koordinator.sh/eviction-cost"
"""An integer; cheaper pods are evicted first, and the greatest 32-bit integer forbids eviction."""

SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
FORBIDDING_COST = 2**31 - 1
MOST_SHARED = 20_000
"""Most shared contents; when exceeded, the table is cleared, and equal ones may exist twice."""
QOS_RANK: Mapping[str, int] = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod.

    Attributes:
        workload: ``namespace/Kind/name`` of its top-level owner, a Deployment rather than its ReplicaSet. Empty for bare pods.
        node: empty while it waits.
        leaving: being deleted.
        barred: why the descheduler never moves it; empty if it may.
        bare, local_storage: whether the configuration must allow its move.
        requests: by resource, by the scheduler's rule; one "pods" among them.
        created_s: unix seconds.
        ports: host ports, as resources.
        ingress, egress: the bandwidth annotations as written, None without.
        claims: names of the PersistentVolumeClaims that it mounts, ephemeral ones included.
        wire: the object; only for pods of AppGroups.
        ips: its addresses; only for agents' pods.
    """

    key: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    workload: str
    node: str
    phase: str
    leaving: bool
    ready: bool
    priority: int
    qos: int
    cost: int
    barred: str
    bare: bool
    local_storage: bool
    constraints: Constraints
    requests: Mapping[str, int]
    created_s: float
    host_network: bool = False
    ingress: str | None = None
    egress: str | None = None
    ports: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    wire: GroupPod | None = None
    ips: tuple[str, ...] = ()

    @property
    def asked(self) -> GroupPod:
        """The pod's labels and constraints for planning, without requests."""
        leaving = "1970-01-01T00:00:00Z" if self.leaving else None
        meta = ObjectMeta(
            name=self.name, namespace=self.namespace, labels=dict(self.labels), deletion_timestamp=leaving
        )
        return GroupPod(meta, self.constraints.spec)

    @property
    def asks(self) -> Mapping[str, int]:
        """Its requests and host ports."""
        return {**self.requests, **dict.fromkeys(self.ports, 1)} if self.ports else self.requests

    @property
    def occupied_node(self) -> str:
        """The node whose resources it uses; a DaemonSet's pod uses them before it is bound."""
        return self.node or self.constraints.only_node

    @property
    def running(self) -> bool:
        """In phase Running."""
        return self.phase == "Running"

    @property
    def is_finished(self) -> bool:
        """It holds no resources any more."""
        return self.phase in FINISHED

    @property
    def is_active(self) -> bool:
        """Neither finished nor being deleted."""
        return not self.leaving and self.phase not in FINISHED


class _Shared(Generic[T]):
    """Shares equal contents."""

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}

    def of(self, content: object, make: Callable[[], T]) -> T:
        """The shared object with this content."""
        key = _encode(content)
        if key not in self._known:
            if len(self._known) >= MOST_SHARED:
                self._known.clear()
            self._known[key] = make()
        return self._known[key]


class PodReader:
    """Converts pods to `PodInfo`, sharing labels and constraints of pods of one template."""

    def __init__(self) -> None:
        self._constraints: _Shared[Constraints] = _Shared()
        self._requests: _Shared[Mapping[str, int]] = _Shared()
        self._labels: _Shared[Mapping[str, str]] = _Shared()

    def read(self, pod: GroupPod) -> PodInfo:
        """Convert one pod."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        evict = meta.annotation(EVICT_ANNOTATION).lower()
        owner = controller_of(meta)
        local = any(v.empty_dir is not None or v.host_path is not None for v in spec.volumes or ())
        cost = _cost(meta.annotation(COST_ANNOTATION))
        return PodInfo(
            key=meta.key,
            namespace=sys.intern(meta.namespace),
            name=meta.name,
            uid=meta.uid,
            labels=self._labels.of(meta.labels, lambda: meta.labels or {}),
            workload=sys.intern(_workload(pod)),
            node=sys.intern(spec.node_name),
            phase=sys.intern(status.phase),
            leaving=meta.deletion_timestamp is not None,
            ready=pod.ready,
            priority=spec.priority,
            qos=QOS_RANK.get(status.qos_class, 1),
            cost=cost,
            barred=_barred(pod, owner, evict, cost),
            bare=owner is None and evict != "true",
            local_storage=local and evict != "true",
            constraints=self._constraints_of(spec),
            requests=self._requests_of(spec, status),
            created_s=_time(meta.creation_timestamp),
            host_network=spec.host_network,
            ingress=(meta.annotations or {}).get(INGRESS_ANNOTATION),
            egress=(meta.annotations or {}).get(EGRESS_ANNOTATION),
            ports=ports_of(spec),
            claims=tuple(claims_of(pod)),
            wire=pod if pod.group else None,
            ips=tuple(found.ip for found in status.pod_ips or ()) if meta.label(NAME_LABEL) == AGENT else (),
        )

    def _constraints_of(self, spec: GroupPodSpec) -> Constraints:
        asked = GroupPodSpec(
            node_selector=spec.node_selector,
            affinity=spec.affinity,
            tolerations=spec.tolerations,
            topology_spread_constraints=spec.topology_spread_constraints,
        )
        return self._constraints.of(asked, lambda: Constraints(asked))

    def _requests_of(self, spec: GroupPodSpec, status: GroupPodStatus) -> Mapping[str, int]:
        asked = [(c.name, c.resources.requests) for c in spec.containers or ()]
        first = [(c.name, c.resources.requests, c.restart_policy) for c in spec.init_containers or ()]
        held = (status.container_statuses, status.init_container_statuses, is_infeasible(status))
        content = (asked, first, spec.overhead, spec.resources.requests, held)
        return self._requests.of(content, lambda: requests_of(spec, status))


def _workload(pod: GroupPod) -> str:
    # The Deployment, because back-offs must last beyond a rollout, which makes a new ReplicaSet.
    owner = owner_of(pod.metadata)
    return "" if owner is None else "/".join((pod.metadata.namespace, *owner))


def _barred(pod: GroupPod, owner: OwnerReference | None, evict: str, cost: int) -> str:
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
    return go_integer(text) or 0


def _time(text: str | None) -> float:
    try:
        return parse_time(text) if text else 0.0
    except ValueError:
        return 0.0
