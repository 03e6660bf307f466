"""Data types of bandwidth limits: the state of traffic control in the kernel, verdicts on limits, and actions that repair limits."""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.bandwidth.annotations import Direction, PodBandwidthSpec
from agent.bandwidth.cni import Attachment, Network
from agent.rtnetlink import Qdisc, TbfParams

ETHERNET_MTU = 1500
INGRESS_HOOK, EGRESS_HOOK = 0xFFFFFFF2, 0xFFFFFFF3
"""Parents of filters on a ``clsact`` qdisc; an ``ingress`` qdisc accepts INGRESS_HOOK too (sch_ingress.c)."""
INGRESS_HANDLE = 0xFFFF0000
"""ffff:, the handle of ``ingress`` and ``clsact`` qdiscs."""
PLUGIN_HANDLE = 0x10000
"""1:, the handle of the CNI bandwidth plugin's root qdiscs."""
OUR_HANDLE = 0x6E610000
"""6e61:, the handle of our root qdiscs, by which we recognize them."""
LAST_PRIORITY = 0xFFF0
"""Priority of our filter, behind all priorities that other programs choose or the kernel assigns (cls_api.c)."""
ALIAS_PREFIX = "netaware:"
"""Interface alias of our ifbs, followed by the pod's uid."""
INGRESS_QDISC_SUFFIX = "/ingress"
"""Suffix of the alias if we also created the ``ingress`` qdisc on the pod's device, and therefore may remove it."""

LimitKey = tuple[str, Direction]
"""Pod uid and direction."""
Hook = Literal["ingress", "egress"]
"""The packets that a filter on a device sees: received ones (ingress) or sent ones (egress)."""
Verdict = Literal[
    "enforced",
    "missing",
    "wrong-rate",
    "burst-too-small",
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
        kind: IFLA_INFO_KIND, such as ``veth`` or ``ifb``; empty for hardware.
        mtu: bytes.
        alias: IFLA_IFALIAS, which marks our ifbs.
        namespace_id: the kernel's id of the network namespace of its other end; None if that is the host's or unknown.
        peer_index: index of its other end, in that namespace; None if unknown.
        is_up: IFF_UP; packets redirected to a device that is down are lost.
    """

    index: int
    name: str
    kind: str = ""
    mtu: int = ETHERNET_MTU
    alias: str = ""
    namespace_id: int | None = None
    peer_index: int | None = None
    is_up: bool = True


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter on a device.

    Attributes:
        kind: ``u32``, ``matchall``, ``bpf`` and others.
        hook: which of the device's packets it sees.
        priority: filters with a smaller priority (tc's "pref") run first.
        program_name: name of its BPF program; empty for other kinds.
        matches_all: it matches every packet.
        target_index: index of the device that it redirects to, 0 if that device is gone; None if it does not redirect.
        has_police_action: it has a police action, a limiter without a queue.
        drops_if_target_gone: packets are dropped, not passed on, once the device that it redirects to is deleted.
        redirected_bytes: bytes redirected so far, without Ethernet headers.
    """

    device_index: int
    kind: str
    hook: Hook = "ingress"
    priority: int = 0
    program_name: str = ""
    matches_all: bool = False
    target_index: int | None = None
    has_police_action: bool = False
    drops_if_target_gone: bool = False
    redirected_bytes: int = 0


class PodSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's oldest process and network namespace.

    Attributes:
        pid: id of that process, usually the pause container's.
        container_id: CNI_CONTAINERID, from the runtime's cache of CNI results, else from the cgroup's name; may be empty.
        namespace_id: the kernel's id of the network namespace; None if no link of the host leads there, or the process ended.
        is_in_host_network: the process is in the node's namespace although the pod does not ask for that (a virtual machine's monitor).
        pod_interface_index: index of the pod's eth0 in the namespace; None if unknown.
        attachment: CNI attachment of the pod's eth0, from the runtime's cache of CNI results; None if the cache has none.
    """

    pid: int
    container_id: str = ""
    namespace_id: int | None = None
    is_in_host_network: bool = False
    pod_interface_index: int | None = None
    attachment: Attachment | None = None


class TcState(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of the host's namespace, with their qdiscs and filters."""

    devices: tuple[Device, ...] = ()
    qdiscs: tuple[Qdisc, ...] = ()
    filters: tuple[Filter, ...] = ()


class BandwidthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `agent.bandwidth.rules`.

    Attributes:
        pods: pods of this node that are neither finished nor being deleted.
        sandbox_by_uid: sandboxes by pod uid; pods whose processes were not found are missing.
        tc_state: devices, qdiscs and filters.
        network: the CNI network; its name is part of device names.
    """

    pods: tuple[PodBandwidthSpec, ...]
    sandbox_by_uid: dict[str, PodSandbox] = {}
    tc_state: TcState = TcState()
    network: Network = Network()


class CounterSource(msgspec.Struct, frozen=True, kw_only=True):
    """The location of the counters of one direction of a pod.

    Attributes:
        pid: a process in the pod's network namespace.
        host_device_index: the host's end of the pod's veth pair; 0 if there is none.
        bucket_device_index: the device whose root qdisc limits the direction; None if there is none, or no filter redirects to it.
    """

    pid: int
    host_device_index: int = 0
    bucket_device_index: int | None = None


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one direction of one pod, for metrics, events and counters.

    Attributes:
        pod: the pod with its annotations.
        direction: into the pod (ingress), or out of it (egress).
        verdict: see docs/bandwidth.md.
        device_name: name of the device whose qdisc limits the direction, or would limit it; empty if unknown.
        wanted_bps: the annotation's rate in bits per second; None if the annotation is invalid.
        rate_bytes_per_s: effective rate; None if there is no limit, 0 if all packets are lost.
        queue_s: longest queueing time; None if there is no limit.
        detail: explanation of the verdict.
        host_device_name: name of the host's end of the pod's veth pair; empty if unknown.
        counter_source: where the direction's packets are counted; None if nowhere.
        is_measurable: counters can prove that the limit was exceeded. False without a source, and for egress without a bucket if
            packets may be dropped after they were counted.
    """

    pod: PodBandwidthSpec
    direction: Direction
    verdict: Verdict
    device_name: str = ""
    wanted_bps: int | None = None
    rate_bytes_per_s: int | None = None
    queue_s: float | None = None
    detail: str = ""
    host_device_name: str = ""
    counter_source: CounterSource | None = None
    is_measurable: bool = False

    @property
    def key(self) -> LimitKey:
        """Pod uid and direction."""
        return self.pod.uid, self.direction


class SetIngressLimit(msgspec.Struct, frozen=True):
    """Put a token bucket at the root of the pod's host-side device, with parameters ``params``."""

    device_index: int
    device_name: str
    params: TbfParams


class SetEgressLimit(msgspec.Struct, frozen=True):
    """Redirect a pod's outgoing packets through an ifb with a token bucket.

    Attributes:
        device_index, device_name: the pod's host-side device.
        ifb_name: name of the ifb, which is created if missing.
        mtu: MTU of a new ifb, bytes.
        params: parameters of the ifb's token bucket.
        alias: alias of a new ifb.
        add_ingress_qdisc: add an ``ingress`` qdisc to the device first.
        add_filter: add the filter.
        stale_filter_priorities: priorities of filters to remove, because they redirect to a device that is gone.
    """

    device_index: int
    device_name: str
    ifb_name: str
    mtu: int
    params: TbfParams
    alias: str
    add_ingress_qdisc: bool = False
    add_filter: bool = True
    stale_filter_priorities: tuple[int, ...] = ()


class RemoveLimit(msgspec.Struct, frozen=True):
    """Remove our limit of one direction from a pod.

    Attributes:
        device_index, device_name: the pod's host-side device.
        direction: direction of the limit.
        ifb_name: name of the ifb, which is deleted too; empty for ingress.
        filter_priorities: priorities of our filters that redirect to the ifb.
        remove_ingress_qdisc: remove the device's ``ingress`` qdisc too, because we added it and no other program uses it.
    """

    device_index: int
    device_name: str
    direction: Direction
    ifb_name: str = ""
    filter_priorities: tuple[int, ...] = ()
    remove_ingress_qdisc: bool = False


class DeleteIfb(msgspec.Struct, frozen=True):
    """Delete an ifb of ours that is not used any more."""

    device_name: str


Action = SetIngressLimit | SetEgressLimit | RemoveLimit | DeleteIfb


class LimitAssessment(msgspec.Struct, frozen=True):
    """A verdict with its evidence and its repair, from which `agent.bandwidth.rules` makes a `LimitStatus` and an action.

    Attributes:
        detail: explanation of the verdict.
        device: the device whose qdisc limits the direction, or would limit it; None if unknown.
        params: parameters of the token bucket in use; None if there is none.
        action: sets the limit, if the verdict asks for a repair; None if the limit cannot or may not be set.
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
        statuses: one per annotated direction that has a verdict.
        unlocated_reason_by_pod: why an annotated pod cannot be located, so that a direction has no verdict; by ``namespace/name``.
        actions: repairs and removals; empty unless enforcing.
    """

    statuses: tuple[LimitStatus, ...] = ()
    unlocated_reason_by_pod: dict[str, str] = {}
    actions: tuple[Action, ...] = ()
