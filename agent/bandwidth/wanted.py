"""What a pod asks for: its bandwidth annotations, in the words and within the range that Kubernetes users know."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from agent.names import BANDWIDTH, EGRESS_ANNOTATION, INGRESS_ANNOTATION
from kubekit import quantity
from kubekit.errors import QuantityError
from kubekit.wire import Container, Pod

Direction = Literal["ingress", "egress"]
DIRECTIONS: tuple[Direction, ...] = ("ingress", "egress")
ANNOTATIONS: dict[Direction, str] = {"ingress": INGRESS_ANNOTATION, "egress": EGRESS_ANNOTATION}
SMALLEST_BPS, LARGEST_BPS = 10**3, 10**15
TOO_SMALL = "resource is unreasonably small (< 1kbit)"
TOO_LARGE = "resource is unreasonably large (> 1Pbit)"
_CALICO_PREFIX = "qos.projectcalico.org/"


class Wish(msgspec.Struct, frozen=True):
    """One direction of a pod: bits per second, or why there is no telling."""

    rate_bps: int | None
    problem: str = ""


class PodWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need to know of a pod.

    Attributes:
        namespace, name, uid: of the pod.
        cgroup_uid: what the pod's cgroups are named after; for static pods not the uid of the object we see.
        host_network: it has no network of its own.
        has_address: the network was set up; before, the CNI plugins may still be at work.
        wishes: by direction, only where there is an annotation.
        calico: it has Calico's own bandwidth annotations.
        mismatch: how scheduled and enforced bandwidth differ, or empty.
    """

    namespace: str
    name: str
    uid: str
    cgroup_uid: str = ""
    host_network: bool = False
    has_address: bool = True
    wishes: dict[Direction, Wish] = {}
    calico: bool = False
    mismatch: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_wish(text: str) -> Wish:
    """Read one annotation: a quantity in bits per second from 1k to 1P (bandwidth annotations, docs/contracts)."""
    try:
        rate = quantity.parse(text)
    except QuantityError as error:
        return Wish(None, str(error))
    if rate < SMALLEST_BPS:
        return Wish(None, TOO_SMALL)
    if rate > LARGEST_BPS:
        return Wish(None, TOO_LARGE)
    return Wish(int(rate))


def wish_of(pod: Pod) -> PodWish:
    """What a pod asks for."""
    annotations = pod.metadata.annotations or {}
    wishes = {d: read_wish(annotations[name]) for d, name in ANNOTATIONS.items() if name in annotations}
    return PodWish(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        cgroup_uid=annotations.get("kubernetes.io/config.hash", "") or pod.metadata.uid,
        host_network=pod.spec.host_network,
        has_address=bool(pod.status.pod_ip),
        wishes=wishes,
        calico=any(name.startswith(_CALICO_PREFIX) and "andwidth" in name for name in annotations),
        mismatch=_mismatch(wishes, scheduled_bps(pod)),
    )


def scheduled_bps(pod: Pod) -> int | None:
    """Bits per second that the pod's containers have as limits of the extended resource; None when none names it.

    Sidecars (init containers that go on running) count, as they do for the scheduler.
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


def _mismatch(wishes: Mapping[Direction, Wish], scheduled: int | None) -> str:
    if scheduled is None:
        return ""
    differing = [
        f"{ANNOTATIONS[direction]} is {wish.rate_bps} bit/s"
        for direction, wish in wishes.items()
        if wish.rate_bps is not None and wish.rate_bps != scheduled
    ]
    return f"scheduled for {scheduled} bit/s of {BANDWIDTH}, but " + " and ".join(differing) if differing else ""
