"""Data types: traffic control on pods' devices, the verdicts that follow, and the actions that repair limits."""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.bandwidth.annotations import Direction, PodBandwidthSpec
from agent.bandwidth.cni import Attachment, Network
from agent.bandwidth.tbf import TbfParams

ETHERNET_MTU = 1500
ROOT = 0xFFFFFFFF
"""TC_H_ROOT, the parent of root qdiscs."""
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

LimitKey = tuple[str, Direction]
"""Pod uid and direction."""
Hook = Literal["ingress", "egress"]
"""Which packets a filter on a device sees: those received (ingress) or those to be sent (egress)."""
Verdict = Literal[
    "enforced",
    "missing",
    "wrong-rate",
    "burst-too-large",
    "burst-overflow",
    "filter-missing",
    "exceeded",
    "disputed",
    "not-applicable",
    "other-enforcer",
    "invalid",
]


class Device(msgspec.Struct, frozen=True, kw_only=True):
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
    mtu: int = ETHERNET_MTU
    alias: str = ""
    namespace_id: int | None = None
    peer: int | None = None
    up: bool = True


class Qdisc(msgspec.Struct, frozen=True, kw_only=True):
    """A queueing discipline; ``params`` only of a token bucket."""

    device_index: int
    kind: str
    handle: int
    parent: int
    params: TbfParams | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter on a device.

    Attributes:
        device_index: of its device.
        kind: ``u32``, ``matchall``, ``bpf``, ...
        hook: which of the device's packets it sees.
        priority: tc's preference; filters with smaller ones run first.
        name: of its BPF program, if it has one.
        matches_all: it matches every packet.
        redirects_to: index of the device that it redirects to, or None.
        polices: it has a police action, a limiter without a queue.
        loses_packets: packets are lost, not passed on, once the device that it redirects to is deleted.
    """

    device_index: int
    kind: str
    hook: Hook = "ingress"
    priority: int = 0
    name: str = ""
    matches_all: bool = False
    redirects_to: int | None = None
    polices: bool = False
    loses_packets: bool = False


class PodSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's oldest process and network namespace.

    Attributes:
        pid: of that process, usually the pause container's.
        container_id: of its container, from the cgroup's name; CNI plugins get it as CNI_CONTAINERID.
        namespace_id: the kernel's id of the network namespace; None if no link of the host leads there.
        host_network: the process is in the node's namespace although the pod does not ask for that, as a virtual machine's monitor.
        eth0_index: index of the pod's eth0 in the namespace; None if unknown.
        attachment: of the pod's eth0, from the runtime's cache of CNI results; None if not found there.
    """

    pid: int
    container_id: str = ""
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
        sandboxes: by pod uid; pods whose processes were not found are missing.
        tc_state: devices, qdiscs and filters.
        network: the CNI network; its name is part of device names.
    """

    pods: tuple[PodBandwidthSpec, ...]
    sandboxes: dict[str, PodSandbox] = {}
    tc_state: TcState = TcState()
    network: Network = Network()


class CounterSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the counters of one direction of a pod are.

    Attributes:
        pid: a process in the pod's network namespace.
        host_device_index: the host's end of the pod's veth pair; 0 without one.
        bucket_device_index: the device whose root qdisc limits the direction; None without a limit.
    """

    pid: int
    host_device_index: int = 0
    bucket_device_index: int | None = None


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one direction of one pod.

    Attributes:
        pod: the pod with its annotations.
        direction: into the pod (ingress), or out of it (egress).
        verdict: see docs/bandwidth.md.
        device_name: of the device whose qdisc limits the direction, or would.
        wanted_bps: the annotation's rate in bits per second.
        rate_bytes_per_s: effective rate; None without a limit, 0 if all packets are lost.
        burst_bytes: effective burst.
        queue_s: longest queueing time.
        detail: explanation of the verdict.
        host_device_name: of the host's end of the pod's veth pair.
        counter_source: where its packets are counted; None if nowhere.
        is_measurable: counters can prove that the limit was exceeded. Not for egress if others may drop packets after they
            were counted.
    """

    pod: PodBandwidthSpec
    direction: Direction
    verdict: Verdict
    device_name: str = ""
    wanted_bps: int | None = None
    rate_bytes_per_s: int | None = None
    burst_bytes: int | None = None
    queue_s: float | None = None
    detail: str = ""
    host_device_name: str = ""
    counter_source: CounterSource | None = None
    is_measurable: bool = False

    @property
    def key(self) -> LimitKey:
        """Pod uid and direction."""
        return self.pod.uid, self.direction


class LimitIngress(msgspec.Struct, frozen=True):
    """Put a token bucket at the root of the pod's host-side device."""

    device_index: int
    device_name: str
    params: TbfParams


class LimitEgress(msgspec.Struct, frozen=True):
    """Redirect a pod's outgoing packets through an ifb with a token bucket.

    Attributes:
        device_index, device_name: of the pod's host-side device.
        ifb_name: of the ifb, which is created if missing.
        mtu: of the ifb.
        params: of the ifb's token bucket.
        alias: of the ifb, if it is created.
        add_ingress_qdisc: the device has no ``ingress`` qdisc yet.
        add_filter: the filter is missing.
        stale_filters: priorities of filters to devices that are gone.
    """

    device_index: int
    device_name: str
    ifb_name: str
    mtu: int
    params: TbfParams
    alias: str
    add_ingress_qdisc: bool = False
    add_filter: bool = True
    stale_filters: tuple[int, ...] = ()


class RemoveLimit(msgspec.Struct, frozen=True):
    """Remove our limit from a pod whose annotation is gone.

    Attributes:
        device_index, device_name: of the pod's host-side device.
        direction: of the limit.
        ifb_name: of the ifb, which is deleted too; empty for ingress.
        filters: priorities of our filters that redirect to the ifb.
        remove_ingress_qdisc: the device's ``ingress`` qdisc is ours and unused by others.
    """

    device_index: int
    device_name: str
    direction: Direction
    ifb_name: str = ""
    filters: tuple[int, ...] = ()
    remove_ingress_qdisc: bool = False


class RemoveDevice(msgspec.Struct, frozen=True):
    """Delete our ifb of a pod that is gone."""

    device_name: str


Action = LimitIngress | LimitEgress | RemoveLimit | RemoveDevice


class LimitAssessment(msgspec.Struct, frozen=True):
    """A verdict, with the limit that it is about and the repair.

    Attributes:
        device: whose qdisc limits the direction, or would; None if unknown.
        params: of the token bucket in use; None without one.
        loses_packets: packets of the pod are redirected to a device that is gone or down.
    """

    verdict: Verdict
    detail: str = ""
    device: Device | None = None
    params: TbfParams | None = None
    action: Action | None = None
    loses_packets: bool = False


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
