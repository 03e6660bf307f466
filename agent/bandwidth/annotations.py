"""Parses a pod's bandwidth annotations, with the range and the errors of the CNI bandwidth plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from kubekit import quantity
from kubekit.errors import QuantityError
from kubekit.wire import MIRROR_ANNOTATION, Container, Pod
from netperf.contract import BANDWIDTH, EGRESS_ANNOTATION, INGRESS_ANNOTATION
from netperf.limits import read_limit

Direction = Literal["ingress", "egress"]
DIRECTIONS: tuple[Direction, ...] = ("ingress", "egress")
ANNOTATIONS: dict[Direction, str] = {"ingress": INGRESS_ANNOTATION, "egress": EGRESS_ANNOTATION}
_CONFIG_HASH = "kubernetes.io/config.hash"
_CONFIG_SOURCE = "kubernetes.io/config.source"


class LimitSpec(msgspec.Struct, frozen=True):
    """One direction of a pod: bits per second, or the error."""

    rate_bps: int | None
    problem: str = ""


class PodBandwidthSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with its bandwidth annotations, as the rules read it.

    Attributes:
        namespace, name, uid: of the pod.
        cgroup_uid: what the pod's cgroups are named after; for static pods not the uid of the object we see.
        refused_claim: why the claim to another cgroup was refused; empty otherwise.
        host_network: it uses the node's network.
        has_address: it has an address, so the CNI plugins are done.
        limits: by direction, only where there is an annotation.
        created: metadata.creationTimestamp.
        mismatch: how reservation and limit differ; empty if they do not.
    """

    namespace: str
    name: str
    uid: str
    cgroup_uid: str = ""
    refused_claim: str = ""
    host_network: bool = False
    has_address: bool = True
    limits: dict[Direction, LimitSpec] = {}
    created: str = ""
    mismatch: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_annotation(text: str) -> LimitSpec:
    """Read one annotation."""
    try:
        return LimitSpec(read_limit(text))
    except QuantityError as error:
        return LimitSpec(None, str(error))


def spec_of(pod: Pod) -> PodBandwidthSpec:
    """Parse a pod's annotations."""
    annotations = pod.metadata.annotations or {}
    limits = {d: read_annotation(annotations[name]) for d, name in ANNOTATIONS.items() if name in annotations}
    claim, refused = _claim(pod)
    return PodBandwidthSpec(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        cgroup_uid=claim,
        refused_claim=refused,
        host_network=pod.spec.host_network,
        has_address=bool(pod.status.pod_ip),
        limits=limits,
        created=pod.metadata.creation_timestamp or "",
        mismatch=_mismatch(limits, scheduled_bps(pod)),
    )


def _claim(pod: Pod) -> tuple[str, str]:
    """The uid in the pod's cgroups, and why a claim to another uid was refused.

    A static pod has another uid in its cgroups than in the API server. The kubelet writes the former to two annotations of the
    mirror pod, beside the pod's source and the node as controlling owner (pkg/kubelet/pod/mirror_client.go). The annotations alone
    prove nothing, because users may write them.
    """
    annotations, own = pod.metadata.annotations or {}, pod.metadata.uid
    hash_ = annotations.get(_CONFIG_HASH, "")
    if not hash_ or hash_ == own:
        return own, ""
    node = pod.spec.node_name
    owned = any(
        owner.kind == "Node" and owner.api_version == "v1" and owner.name == node and owner.controller
        for owner in pod.metadata.owner_references or ()
    )
    lacking = [
        what
        for what, there in (
            (f"annotation {MIRROR_ANNOTATION} of the same value", annotations.get(MIRROR_ANNOTATION) == hash_),
            (f"annotation {_CONFIG_SOURCE} file or http", annotations.get(_CONFIG_SOURCE) in {"file", "http"}),
            (f"node {node} as its controlling owner", bool(node) and owned),
        )
        if not there
    ]
    if lacking:
        return own, f"annotation {_CONFIG_HASH} is not believed: the kubelet's mirror of a static pod has {lacking[0]}"
    return hash_, ""


def find_contested_pods(pods: Iterable[PodBandwidthSpec]) -> dict[str, str]:
    """Pods whose cgroup another pod claims too, by uid, with the reason.

    A pod whose cgroup has its own uid is not contested, because the API server gives uids once.
    """
    claims: dict[str, list[PodBandwidthSpec]] = {}
    for pod in pods:
        claims.setdefault(plain_uid(pod.cgroup_uid or pod.uid), []).append(pod)
    reasons: dict[str, str] = {}
    for cgroup, claimants in claims.items():
        claims_by_annotation = [pod for pod in claimants if plain_uid(pod.uid) != cgroup]
        for pod in claims_by_annotation if len(claimants) > 1 else ():
            others = ", ".join(other.key for other in claimants if other.uid != pod.uid)
            reasons[pod.uid] = f"its cgroup, by annotation {_CONFIG_HASH}, is claimed by {others} too"
    return reasons


def plain_uid(uid: str) -> str:
    """A uid without dashes and underscores."""
    return uid.replace("-", "").replace("_", "")


def scheduled_bps(pod: Pod) -> int | None:
    """Sum of the containers' limits of the extended resource, in bits per second; None without any.

    Sidecars (restartable init containers) count, as in the scheduler.
    """
    containers = [
        *(pod.spec.containers or ()),
        *(c for c in pod.spec.init_containers or () if c.restart_policy == "Always"),
    ]
    amounts = [amount for container in containers if (amount := _amount(container)) is not None]
    return int(sum(amounts)) if amounts else None


def _amount(container: Container) -> Decimal | None:
    limits: Mapping[str, str] = container.resources.limits or {}
    if BANDWIDTH not in limits:
        return None
    try:
        return quantity.parse(limits[BANDWIDTH])
    except QuantityError:
        return None  # the API server admits no such pod


def _mismatch(limits: Mapping[Direction, LimitSpec], scheduled: int | None) -> str:
    if scheduled is None:
        return ""
    differing = [
        f"{ANNOTATIONS[direction]} is {limit_spec.rate_bps} bit/s"
        for direction, limit_spec in limits.items()
        if limit_spec.rate_bps is not None and limit_spec.rate_bps != scheduled
    ]
    return f"scheduled for {scheduled} bit/s of {BANDWIDTH}, but " + " and ".join(differing) if differing else ""
