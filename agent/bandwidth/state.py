"""What the kernel has set up for pods' devices, in a form that can be recorded and reasoned about."""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.bandwidth.tbf import Shape
from agent.bandwidth.wanted import Direction, PodWish

ROOT = 0xFFFFFFFF
INGRESS_HANDLE = 0xFFFF0000
ALIAS_PREFIX = "netaware:"
"""Interface alias of the intermediate devices that we made, followed by the pod's uid."""

Verdict = Literal[
    "enforced",
    "missing",
    "wrong-rate",
    "burst-too-large",
    "wrapped",
    "filter-missing",
    "not-applicable",
    "other-enforcer",
    "invalid",
]


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network device of the host's namespace.

    Attributes:
        index, name, kind: of the device.
        mtu: bytes.
        alias: IFLA_IFALIAS.
        namespace_id: of the network namespace that its other end is in, as the kernel numbers it here.
        peer: index of its other end, over there.
        physical: it leads out of the machine.
    """

    index: int
    name: str
    kind: str = ""
    mtu: int = 1500
    alias: str = ""
    namespace_id: int | None = None
    peer: int | None = None
    physical: bool = False


class Qdisc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queueing discipline; ``shape`` for token buckets only."""

    device: int
    kind: str
    handle: int
    parent: int
    shape: Shape | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter on a device's ingress.

    Attributes:
        device: where it sits.
        kind: ``u32``, ``matchall``, ``bpf``, ...
        priority: its place.
        matches_all: no packet escapes it.
        redirects_to: index of the device to whose egress it sends packets, None when it does not.
        polices: it has a police action, a limiter without a queue.
    """

    device: int
    kind: str
    priority: int = 0
    matches_all: bool = False
    redirects_to: int | None = None
    polices: bool = False


class Location(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a pod's processes are.

    Attributes:
        pid: of its oldest process, usually the pause container.
        sandbox: id of that container, from the cgroup's name; what CNI plugins call the container id.
        namespace_id: of its network namespace, None when the kernel has no link to it from here.
        own_index: index of its eth0 inside, where it could be read.
    """

    pid: int
    sandbox: str = ""
    namespace_id: int | None = None
    own_index: int | None = None


class KernelState(msgspec.Struct, frozen=True, kw_only=True):
    """Devices and what is set up on them."""

    devices: tuple[Device, ...] = ()
    qdiscs: tuple[Qdisc, ...] = ()
    filters: tuple[Filter, ...] = ()


class BandwidthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the rules look at.

    Attributes:
        pods: those of this node that are not finished.
        locations: by pod uid; pods whose processes were not found are missing.
        kernel: devices and what is set up on them.
        network: name of the CNI network, part of device names.
    """

    pods: tuple[PodWish, ...]
    locations: dict[str, Location] = {}
    kernel: KernelState = KernelState()
    network: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on one direction of one pod.

    Attributes:
        pod: what it asked for.
        direction: into the pod, or out of it.
        verdict: see the user's documentation.
        device: name of the device that carries the limit, or would.
        received: the pod's traffic in this direction is what that device receives, not what it sends.
        wanted_bps: bits per second.
        rate_bytes_per_s: effective rate; None without a limit, 0 when nothing gets through.
        burst_bytes: effective burst.
        queue_s: worst queueing time.
        detail: what was found, in words.
    """

    pod: PodWish
    direction: Direction
    verdict: Verdict
    device: str = ""
    received: bool = False
    wanted_bps: int | None = None
    rate_bytes_per_s: int | None = None
    burst_bytes: int | None = None
    queue_s: float | None = None
    detail: str = ""


class LimitIngress(msgspec.Struct, frozen=True, tag=True):
    """Put a token bucket at the root of the pod's host-side device."""

    device: int
    name: str
    shape: Shape


class LimitEgress(msgspec.Struct, frozen=True, tag=True):
    """Redirect what comes from the pod through an intermediate device with a token bucket.

    Attributes:
        device: the pod's host-side device; ``name`` is its name.
        through: name of the intermediate device, made when it is not there.
        mtu: of the intermediate device.
        shape: of its token bucket.
        alias: marks an intermediate device that we make.
        redirect: whether the filter is to be made.
    """

    device: int
    name: str
    through: str
    mtu: int
    shape: Shape
    alias: str
    redirect: bool = True


class Unlimit(msgspec.Struct, frozen=True, tag=True):
    """Take a limit of ours off a pod that asks for none any more; ``through`` names the intermediate device."""

    device: int
    name: str
    direction: Direction
    through: str = ""


class RemoveDevice(msgspec.Struct, frozen=True, tag=True):
    """Remove an intermediate device of ours whose pod is gone."""

    device: int
    name: str


Action = LimitIngress | LimitEgress | Unlimit | RemoveDevice


class BandwidthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say.

    Attributes:
        judgements: one per annotated direction of each pod that could be located.
        unlocated: annotated pods whose device is not known (yet), with the reason.
        actions: what to do, empty unless enforcing.
    """

    judgements: tuple[Judgement, ...] = ()
    unlocated: dict[str, str] = {}
    actions: tuple[Action, ...] = ()
