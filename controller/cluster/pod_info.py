"""`PodInfo`, the compact form in which all pods are cached: there may be 100,000, so equal labels, constraints and requests are shared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from controller.cluster.eligibility import Constraints, parse_int64
from controller.cluster.pods import Pod, PodSpec, PodStatus
from controller.cluster.resource_requests import has_infeasible_resize, ports_of, requests_of
from controller.cluster.volumes import claim_names_of
from kubekit.owners import controller_of, find_workload
from kubekit.wire import FINISHED_PHASES, MIRROR_ANNOTATION, ObjectMeta, OwnerReference, parse_time_or_none
from netperf.contract import AGENT, EGRESS_ANNOTATION, INGRESS_ANNOTATION, NAME_LABEL

Shared = TypeVar("Shared")
_encode = msgspec.json.Encoder(order="deterministic").encode

EVICT_ANNOTATION = "descheduler.alpha.kubernetes.io/evict"
"""``true`` allows the eviction of bare pods and of pods with local storage, ``false`` forbids any eviction."""
PREFER_NO_EVICTION_ANNOTATION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
SAFE_TO_EVICT_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
EVICTION_COST_ANNOTATION = "descheduler.koordinator.sh/eviction-cost"
"""koordinator's annotation: a 32-bit integer. `FORBIDDING_EVICTION_COST` forbids eviction."""

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-node-lease", "kube-public"})
"""Namespaces of the cluster, in which an admission policy forbids the controller's evictions, as in netaware's own."""
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
"""Priority of system-cluster-critical. The API server reserves the prefix ``system-`` for the names of such classes."""
FORBIDDING_EVICTION_COST = 2**31 - 1
MAX_INTERNED = 20_000
"""Size at which a table of shared objects is cleared; later equal contents are stored again."""
QOS_RANK: Mapping[str, int] = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod, reduced to what placement, descheduling and diagnosis read. Fields without a description are those of the API.

    Attributes:
        key: ``namespace/name``.
        workload: ``namespace/Kind/name`` of its top-level owner, a Deployment rather than its ReplicaSet. Empty for bare pods.
        node: name of its node; empty until it is bound.
        is_terminating: it has a deletionTimestamp.
        is_ready: its condition Ready is True.
        qos_rank: rank of its QoS class (`QOS_RANK`).
        eviction_cost: value of the annotation; cheaper pods are evicted first.
        eviction_forbidden_by: why the descheduler never evicts it; empty if it may.
        is_bare: it has no owner that would replace it.
        has_local_storage: it has an emptyDir or hostPath volume.
        is_eviction_allowed: an annotation allows its eviction even if it is bare or has local storage.
        constraints: shared with the other pods of its template, as are ``labels`` and ``requests``.
        requests: by resource, as kube-scheduler counts them, with ``pods: 1``.
        created_s: unix seconds; 0 if unknown.
        ingress_limit, egress_limit: the bandwidth annotations as written; None without.
        host_ports: as resources (`ports_of`).
        claim_names: of the PersistentVolumeClaims that it mounts, ephemeral ones included.
        group_pod: the pod as the API server sent it, if it has an AppGroup label; None otherwise.
        ips: its addresses, if it is an agent's pod; empty otherwise.
    """

    key: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    workload: str
    node: str
    phase: str
    is_terminating: bool
    is_ready: bool
    priority: int
    qos_rank: int
    eviction_cost: int
    eviction_forbidden_by: str
    is_bare: bool
    has_local_storage: bool
    is_eviction_allowed: bool
    constraints: Constraints
    requests: Mapping[str, int]
    created_s: float
    host_network: bool = False
    ingress_limit: str | None = None
    egress_limit: str | None = None
    host_ports: tuple[str, ...] = ()
    claim_names: tuple[str, ...] = ()
    group_pod: Pod | None = None
    ips: tuple[str, ...] = ()

    @property
    def pod_without_requests(self) -> Pod:
        """A pod with the same name, labels and constraints, for rules about other pods."""
        # Any time of deletion marks the pod as terminating; its own is not cached.
        deleted_at = "1970-01-01T00:00:00Z" if self.is_terminating else None
        labels = dict(self.labels)
        meta = ObjectMeta(name=self.name, namespace=self.namespace, labels=labels, deletion_timestamp=deleted_at)
        return Pod(meta, self.constraints.spec)

    @property
    def requests_with_ports(self) -> Mapping[str, int]:
        """Its requests, and 1 for each host port."""
        return {**self.requests, **dict.fromkeys(self.host_ports, 1)} if self.host_ports else self.requests

    @property
    def occupied_node(self) -> str:
        """The node whose resources it uses; a DaemonSet's pod uses them before it is bound."""
        return self.node or self.constraints.daemonset_node

    @property
    def is_running(self) -> bool:
        """Whether its phase is Running."""
        return self.phase == "Running"

    @property
    def is_finished(self) -> bool:
        """Whether it succeeded or failed, and so holds no resources any more."""
        return self.phase in FINISHED_PHASES

    @property
    def is_active(self) -> bool:
        """Whether it is neither finished nor being deleted."""
        return not self.is_terminating and not self.is_finished


class _InternPool(Generic[Shared]):
    """Stores one shared object for equal contents."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, Shared] = {}

    def get(self, content: object, make: Callable[[], Shared]) -> Shared:
        """The object for this content; ``make`` creates it."""
        key = _encode(content)
        if key not in self._by_content:
            if len(self._by_content) >= MAX_INTERNED:
                self._by_content.clear()
            self._by_content[key] = make()
        return self._by_content[key]


class PodReader:
    """Converts pods to `PodInfo`; equal labels, constraints and requests are shared."""

    def __init__(self) -> None:
        self._constraints: _InternPool[Constraints] = _InternPool()
        self._requests: _InternPool[Mapping[str, int]] = _InternPool()
        self._labels: _InternPool[Mapping[str, str]] = _InternPool()

    def read(self, pod: Pod) -> PodInfo:
        """Convert one pod."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        evict_annotation = meta.annotation(EVICT_ANNOTATION).lower()
        owner = controller_of(meta)
        eviction_cost = parse_int64(meta.annotation(EVICTION_COST_ANNOTATION)) or 0
        return PodInfo(
            key=meta.key,
            namespace=sys.intern(meta.namespace),
            name=meta.name,
            uid=meta.uid,
            labels=self._labels.get(meta.labels, lambda: meta.labels or {}),
            # The Deployment, because back-offs must last beyond a rollout, which makes a new ReplicaSet.
            workload=sys.intern("/".join((meta.namespace, *top_owner)) if (top_owner := find_workload(meta)) else ""),
            node=sys.intern(spec.node_name),
            phase=sys.intern(status.phase),
            is_terminating=meta.deletion_timestamp is not None,
            is_ready=pod.is_ready,
            priority=spec.priority,
            qos_rank=QOS_RANK.get(status.qos_class, 1),
            eviction_cost=eviction_cost,
            eviction_forbidden_by=_eviction_forbidden_by(pod, owner, evict_annotation, eviction_cost),
            is_bare=owner is None,
            has_local_storage=any(v.empty_dir is not None or v.host_path is not None for v in spec.volumes or ()),
            is_eviction_allowed=evict_annotation == "true",
            constraints=self._constraints_of(spec),
            requests=self._requests_of(spec, status),
            created_s=parse_time_or_none(meta.creation_timestamp) or 0.0,
            host_network=spec.host_network,
            ingress_limit=(meta.annotations or {}).get(INGRESS_ANNOTATION),
            egress_limit=(meta.annotations or {}).get(EGRESS_ANNOTATION),
            host_ports=ports_of(spec),
            claim_names=tuple(claim_names_of(pod)),
            group_pod=pod if pod.group else None,
            ips=tuple(address.ip for address in status.pod_ips or ()) if meta.label(NAME_LABEL) == AGENT else (),
        )

    def _constraints_of(self, spec: PodSpec) -> Constraints:
        constraining_spec = PodSpec(
            node_selector=spec.node_selector,
            affinity=spec.affinity,
            tolerations=spec.tolerations,
            topology_spread_constraints=spec.topology_spread_constraints,
        )
        return self._constraints.get(constraining_spec, lambda: Constraints(constraining_spec))

    def _requests_of(self, spec: PodSpec, status: PodStatus) -> Mapping[str, int]:
        containers = [(c.name, c.resources.requests) for c in spec.containers or ()]
        init_containers = [(c.name, c.resources.requests, c.restart_policy) for c in spec.init_containers or ()]
        resizes = (status.container_statuses, status.init_container_statuses, has_infeasible_resize(status))
        content = (containers, init_containers, spec.overhead, spec.resources.requests, resizes)
        return self._requests.get(content, lambda: requests_of(spec, status))


def _eviction_forbidden_by(pod: Pod, owner: OwnerReference | None, evict_annotation: str, eviction_cost: int) -> str:
    annotations, spec = pod.metadata.annotations or {}, pod.spec
    kind = owner.kind if owner else ""
    prefers_no_eviction = PREFER_NO_EVICTION_ANNOTATION in annotations and evict_annotation != "true"
    is_unsafe = annotations.get(SAFE_TO_EVICT_ANNOTATION, "").lower() == "false"
    is_critical = spec.priority >= SYSTEM_CRITICAL_PRIORITY or spec.priority_class_name.startswith("system-")
    reasons = (
        (MIRROR_ANNOTATION in annotations, "mirror pod"),
        (kind == "Node", "static pod"),
        (kind == "DaemonSet", "DaemonSet pod"),
        (is_critical, "critical pod"),
        (evict_annotation == "false", f"annotation {EVICT_ANNOTATION} is false"),
        (prefers_no_eviction, f"annotation {PREFER_NO_EVICTION_ANNOTATION}"),
        (is_unsafe, f"annotation {SAFE_TO_EVICT_ANNOTATION} is false"),
        (eviction_cost >= FORBIDDING_EVICTION_COST, f"annotation {EVICTION_COST_ANNOTATION} forbids it"),
    )
    return next((reason for applies, reason in reasons if applies), "")
