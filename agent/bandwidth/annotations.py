"""Parses a pod's bandwidth annotations as the CNI bandwidth plugin does, and compares them with the reserved bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kubekit import quantity
from kubekit.errors import QuantityError
from kubekit.wire import Pod, parse_time_or_none
from netperf.bandwidth_limits import parse_limit
from netperf.contract import BANDWIDTH_RESOURCE, EGRESS_ANNOTATION, INGRESS_ANNOTATION

Direction = Literal["ingress", "egress"]
ANNOTATION_BY_DIRECTION: dict[Direction, str] = {"ingress": INGRESS_ANNOTATION, "egress": EGRESS_ANNOTATION}


class LimitSpec(msgspec.Struct, frozen=True):
    """The annotation of one direction: bits per second, or None and the reason why the annotation is invalid."""

    rate_bps: int | None
    problem: str = ""


class PodBandwidthSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with its bandwidth annotations, as the rules read it.

    Attributes:
        namespace, name, uid: of the pod.
        uses_host_network: spec.hostNetwork.
        has_address: the pod has an address, so the CNI plugins have returned.
        limits: by direction; a direction without an annotation is missing.
        created_at_s: metadata.creationTimestamp, seconds since 1970; None if it is missing.
        mismatch: how the reserved bandwidth and the limits differ; empty if they are equal or nothing is reserved.
    """

    namespace: str
    name: str
    uid: str
    uses_host_network: bool = False
    has_address: bool = True
    limits: dict[Direction, LimitSpec] = {}
    created_at_s: float | None = None
    mismatch: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_annotation(text: str) -> LimitSpec:
    """Parse the value of one annotation."""
    try:
        return LimitSpec(parse_limit(text))
    except QuantityError as error:
        return LimitSpec(None, str(error))


def read_spec(pod: Pod) -> PodBandwidthSpec:
    """Parse a pod's annotations."""
    annotations = pod.metadata.annotations or {}
    limits = {
        d: read_annotation(annotations[name]) for d, name in ANNOTATION_BY_DIRECTION.items() if name in annotations
    }
    return PodBandwidthSpec(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        uses_host_network=pod.spec.host_network,
        has_address=bool(pod.status.pod_ip),
        limits=limits,
        created_at_s=parse_time_or_none(pod.metadata.creation_timestamp),
        mismatch=_describe_mismatch(limits, _sum_reserved_bps(pod)),
    )


def _sum_reserved_bps(pod: Pod) -> int | None:
    """Sum the containers' limits of the extended resource, in bits per second; None if no container has one.

    Sidecars (restartable init containers) count, as in kube-scheduler.
    """
    containers = [
        *(pod.spec.containers or ()),
        *(c for c in pod.spec.init_containers or () if c.restart_policy == "Always"),
    ]
    limits = [container.resources.limits or {} for container in containers]
    try:
        amounts = [quantity.parse(limit[BANDWIDTH_RESOURCE]) for limit in limits if BANDWIDTH_RESOURCE in limit]
    except QuantityError:
        return None  # The API server does not admit such a pod.
    return int(sum(amounts)) if amounts else None


def _describe_mismatch(limits: Mapping[Direction, LimitSpec], reserved_bps: int | None) -> str:
    if reserved_bps is None:
        return ""
    differing = [
        f"{ANNOTATION_BY_DIRECTION[direction]} is {limit_spec.rate_bps} bit/s"
        for direction, limit_spec in limits.items()
        if limit_spec.rate_bps is not None and limit_spec.rate_bps != reserved_bps
    ]
    if not differing:
        return ""
    return f"scheduled for {reserved_bps} bit/s of {BANDWIDTH_RESOURCE}, but {' and '.join(differing)}"
