"""Data types: what the kernel has configured on pods' devices, what the rules decide from it, and the actions that follow."""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.bandwidth.annotations import Direction, PodBandwidthSpec
from agent.bandwidth.cni import Attachment, Network
from agent.bandwidth.tbf import TbfParams

ROOT = 0xFFFFFFFF
INGRESS_HOOK, EGRESS_HOOK = 0xFFFFFFF2, 0xFFFFFFF3
"""Parents of filters on ``clsact``; an ``ingress`` qdisc accepts the first as well (sch_ingress.c)."""
INGRESS_HANDLE = 0xFFFF0000
"""ffff:, the handle of ``ingress`` and ``clsact`` qdiscs."""
PLUGIN_HANDLE = 0x10000
"""1:, the handle of the CNI bandwidth plugin's root qdiscs."""
OUR_HANDLE = 0x6E610000
"""6e61:, the handle of our root qdiscs, by which we recognise them."""
LAST_PRIORITY = 0xFFF0
"""Preference of our filter: after those that other programs choose and the kernel assigns (cls_api.c)."""
ALIAS_PREFIX = "netaware:"
"""Interface alias of our ifbs, followed by the pod's uid."""
INGRESS_QDISC_SUFFIX = "/ingress"
"""Suffix of the alias if we also created the ``ingress`` qdisc on the pod's device, and may remove it."""

Key = tuple[str, Direction]
"""Pod uid and direction."""
Verdict = Literal[
    "enforced",
    "missing",
    "wrong-rate",
    "burst-too-large",
    "wrapped",
    "filter-missing",
    "exceeded",
    "disputed",
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
        namespace_id: kernel's id of the network namespace of its other end.
        peer: index of its other end, in that namespace.
        up: IFF_UP; packets redirected to a device that is down are lost.
    """

    index: int
    name: str
    kind: str = ""
    mtu: int = 1500
    alias: str = ""
    namespace_id: int | None = None
    peer: int | None = None
    up: bool = True


class Qdisc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queueing discipline; ``params`` are those of a token bucket."""

    device: int
    kind: str
    handle: int
    parent: int
    params: TbfParams | None = None


Hook = Literal["ingress", "egress"]
"""Which packets a filter on a device sees: those received (ingress) or those to be sent (egress)."""


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter on a device.

    Attributes:
        device: index of its device.
        kind: ``u32``, ``matchall``, ``bpf``, ...
        hook: which of the device's packets it sees.
        priority: tc's preference; smaller ones come first.
        name: of a filter's BPF program.
        matches_all: it matches every packet.
        redirects_to: index of the device that it redirects to, or None.
        polices: it has a police action, a limiter without a queue.
        loses_packets: packets are lost, not passed on, once the device that it redirects to is deleted.
    """

    device: int
    kind: str
    hook: Hook = "ingress"
    priority: int = 0
    name: str = ""
    matches_all: bool = False
    redirects_to: int | None = None
    polices: bool = False
    loses_packets: bool = False


class Location(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's processes and network namespace.

    Attributes:
        pid: of its oldest process, usually the pause container.
        sandbox: id of that container, from the cgroup's name; what CNI plugins call the container id.
        namespace_id: of its network namespace, None when the kernel has no link to it from here.
        host_network: its process is in the node's namespace although the pod does not ask for that, as a virtual machine's monitor.
        eth0_index: index of its eth0 in that namespace, if known.
        attachment: of its eth0, from the runtime's cache of CNI results; None if not found there.
    """

    pid: int
    sandbox: str = ""
    namespace_id: int | None = None
    host_network: bool = False
    eth0_index: int | None = None
    attachment: Attachment | None = None


class TcState(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of the host's namespace, with their qdiscs and filters."""

    devices: tuple[Device, ...] = ()
    qdiscs: tuple[Qdisc, ...] = ()
    filters: tuple[Filter, ...] = ()


class BandwidthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `agent.bandwidth.rules` decides from.

    Attributes:
        pods: those of this node that are not finished.
        locations: by pod uid; pods whose processes were not found are missing.
        kernel: devices, qdiscs and filters.
        network: the CNI network; its name is part of device names.
    """

    pods: tuple[PodBandwidthSpec, ...]
    locations: dict[str, Location] = {}
    kernel: TcState = TcState()
    network: Network = Network()


class CounterSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counters of one direction of a pod.

    Attributes:
        pid: a process in the pod's network namespace.
        device: index of the host's end of its veth pair; 0 without one.
        bucket: index of the device whose root qdisc limits it; None without a limit.
    """

    pid: int
    device: int = 0
    bucket: int | None = None


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on one direction of one pod.

    Attributes:
        pod: its annotations.
        direction: into the pod, or out of it.
        verdict: see the user's documentation.
        device: name of the device whose qdisc limits it, or would.
        wanted_bps: the annotation's rate in bits per second.
        rate_bytes_per_s: effective rate; None without a limit, 0 if all packets are lost.
        burst_bytes: effective burst.
        queue_s: worst queueing time.
        detail: explanation.
        host_device: name of the host's end of the pod's veth pair.
        counter_source: counters of its packets; None without any.
        is_measurable: counters can prove that the limit was exceeded. Not for egress if others may drop packets after they
            were counted.
    """

    pod: PodBandwidthSpec
    direction: Direction
    verdict: Verdict
    device: str = ""
    wanted_bps: int | None = None
    rate_bytes_per_s: int | None = None
    burst_bytes: int | None = None
    queue_s: float | None = None
    detail: str = ""
    host_device: str = ""
    counter_source: CounterSource | None = None
    is_measurable: bool = False

    @property
    def key(self) -> Key:
        """Pod uid and direction."""
        return self.pod.uid, self.direction


class LimitIngress(msgspec.Struct, frozen=True, tag=True):
    """Put a token bucket at the root of the pod's host-side device."""

    device: int
    name: str
    params: TbfParams


class LimitEgress(msgspec.Struct, frozen=True, tag=True):
    """Redirect a pod's outgoing packets through an ifb with a token bucket.

    Attributes:
        device: the pod's host-side device; ``name`` is its name.
        ifb_name: created if missing.
        mtu: of the ifb.
        params: of its token bucket.
        alias: of an ifb that we create.
        add_ingress_qdisc: the device has no ``ingress`` qdisc yet.
        add_filter: the filter is missing.
        stale_filters: priorities of filters to devices that are gone.
    """

    device: int
    name: str
    ifb_name: str
    mtu: int
    params: TbfParams
    alias: str
    add_ingress_qdisc: bool = False
    add_filter: bool = True
    stale_filters: tuple[int, ...] = ()


class RemoveLimit(msgspec.Struct, frozen=True, tag=True):
    """Remove our limit from a pod whose annotation is gone.

    Attributes:
        device: the pod's host-side device; ``name`` is its name.
        ifb_name: of the ifb, which is deleted too.
        filters: priorities of our filters to it.
        remove_ingress_qdisc: the device's ``ingress`` qdisc is ours and unused by others.
    """

    device: int
    name: str
    direction: Direction
    ifb_name: str = ""
    filters: tuple[int, ...] = ()
    remove_ingress_qdisc: bool = False


class RemoveDevice(msgspec.Struct, frozen=True, tag=True):
    """Delete our ifb of a pod that is gone."""

    device: int
    name: str


Action = LimitIngress | LimitEgress | RemoveLimit | RemoveDevice


class LimitAssessment(msgspec.Struct, frozen=True):
    """A verdict, its device, and the repair; ``lossy`` if others may drop what a pod sends."""

    verdict: Verdict
    detail: str = ""
    device: Device | None = None
    params: TbfParams | None = None
    action: Action | None = None
    lossy: bool = False


class BandwidthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Statuses, and the actions that repair limits.

    Attributes:
        statuses: one per annotated direction of each pod that could be located.
        unlocated: annotated pods whose device is unknown, with the reason.
        actions: repairs; empty unless enforcing.
    """

    statuses: tuple[LimitStatus, ...] = ()
    unlocated: dict[str, str] = {}
    actions: tuple[Action, ...] = ()
