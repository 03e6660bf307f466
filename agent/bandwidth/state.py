"""What the kernel has set up for pods' devices, in a form that can be recorded and reasoned about."""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.bandwidth.annotations import Direction, PodBandwidthSpec
from agent.bandwidth.cilium import Cilium
from agent.bandwidth.cni import Attachment, Network
from agent.bandwidth.tbf import TbfParams

ROOT = 0xFFFFFFFF
INGRESS_HOOK, EGRESS_HOOK = 0xFFFFFFF2, 0xFFFFFFF3
"""Where filters hang on ``clsact``; ``ingress`` has the first alone, and takes its filters by that name too (sch_ingress.c)."""
HOOKS_HANDLE = 0xFFFF0000
"""ffff:, of ``ingress`` and ``clsact``, on which filters hang."""
PLUGIN_HANDLE = 0x10000
"""1:, the handle that the CNI bandwidth plugin gives to roots."""
OUR_HANDLE = 0x6E610000
"""6e61:, the handle of roots that we set: they are ours whatever becomes of the device's MTU."""
LAST_PRIORITY = 0xFFF0
"""Of our own filter: behind the places that other programs ask for and behind those that the kernel gives (cls_api.c)."""
ALIAS_PREFIX = "netaware:"
"""Interface alias of the intermediate devices that we made, followed by the pod's uid."""
HOOK_MARK = "/ingress"
"""At the alias's end where we made the device's ``ingress`` as well, and may take it away again."""

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
        namespace_id: of the network namespace that its other end is in, as the kernel numbers it here.
        peer: index of its other end, over there.
        physical: it leads out of the machine.
        master: index of the bridge, bond or switch that it belongs to.
        queue_packets: IFLA_TXQLEN.
        up: IFF_UP; what is redirected to a device that is down is lost.
    """

    index: int
    name: str
    kind: str = ""
    mtu: int = 1500
    alias: str = ""
    namespace_id: int | None = None
    peer: int | None = None
    physical: bool = False
    master: int | None = None
    queue_packets: int = 0
    up: bool = True


class Qdisc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queueing discipline.

    Attributes:
        params: of token buckets, and of the HTB of the plugin's 1.5, whose class is one.
        shared_block: of a hook whose filters for received packets it shares with other devices, the number of their block.
    """

    device: int
    kind: str
    handle: int
    parent: int
    params: TbfParams | None = None
    default_class: int | None = None
    shared_block: int = 0


Hook = Literal["ingress", "egress"]
"""What a filter or program on a device sees: what the device receives, or what it is about to send."""


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter on a device.

    Attributes:
        device: where it sits.
        kind: ``u32``, ``matchall``, ``bpf``, ...
        hook: which of the device's packets it sees.
        priority: its place; smaller ones come first.
        name: of a BPF program.
        matches_all: no packet escapes it.
        redirects_to: index of the device to whose egress it sends packets, None when it does not.
        polices: it has a police action, a limiter without a queue.
        swallows: what it redirects is lost when the device that it goes to is deleted; with other actions it goes on.
    """

    device: int
    kind: str
    hook: Hook = "ingress"
    priority: int = 0
    name: str = ""
    matches_all: bool = False
    redirects_to: int | None = None
    polices: bool = False
    swallows: bool = False


class BpfAttachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """BPF programs attached to a device itself, before any filter; rtnetlink does not show them.

    Attributes:
        device: where they sit.
        kind: ``tcx`` or ``netkit``.
        hook: which of the device's packets they see.
        ids: of the programs, in the order in which they run.
    """

    device: int
    kind: str
    hook: Hook
    ids: tuple[int, ...]


class Location(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a pod's processes are.

    Attributes:
        pid: of its oldest process, usually the pause container.
        sandbox: id of that container, from the cgroup's name; what CNI plugins call the container id.
        namespace_id: of its network namespace, None when the kernel has no link to it from here.
        host_network: that namespace is the node's own, though the pod does not ask for it, as of a virtual machine's monitor.
        own_index: index of its eth0 inside, where it could be read.
        attachment: what the runtime's cache of CNI results says of its eth0; None where it says nothing.
    """

    pid: int
    sandbox: str = ""
    namespace_id: int | None = None
    host_network: bool = False
    own_index: int | None = None
    attachment: Attachment | None = None


class TcState(msgspec.Struct, frozen=True, kw_only=True):
    """Devices and what is set up on them.

    Attributes:
        devices, qdiscs, filters: of the host's namespace.
        programs: attached to the pods' devices.
        programs_unknown: why the kernel did not say which programs there are; empty when it did.
    """

    devices: tuple[Device, ...] = ()
    qdiscs: tuple[Qdisc, ...] = ()
    filters: tuple[Filter, ...] = ()
    programs: tuple[BpfAttachment, ...] = ()
    programs_unknown: str = ""


class BandwidthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the rules look at.

    Attributes:
        pods: those of this node that are not finished.
        locations: by pod uid; pods whose processes were not found are missing.
        kernel: devices and what is set up on them.
        network: the CNI network; its name is part of device names.
        cilium: its configuration.
    """

    pods: tuple[PodBandwidthSpec, ...]
    locations: dict[str, Location] = {}
    kernel: TcState = TcState()
    network: Network = Network()
    cilium: Cilium = Cilium()


class CounterSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the counters are that tell what one direction of a pod came to.

    Attributes:
        pid: a process in the pod's network namespace.
        device: index of the host's end of its pair, 0 where it has none.
        bucket: index of the device whose root holds the limit, None without a limit.
    """

    pid: int
    device: int = 0
    bucket: int | None = None


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on one direction of one pod.

    Attributes:
        pod: what it asked for.
        direction: into the pod, or out of it.
        verdict: see the user's documentation.
        device: name of the device that carries the limit, or would.
        wanted_bps: bits per second.
        rate_bytes_per_s: effective rate; None without a limit, 0 when nothing gets through.
        burst_bytes: effective burst.
        queue_s: worst queueing time.
        detail: what was found, in words.
        host_device: name of the host's end of the pod's pair.
        counter_source: where its effect is counted; None where it cannot be.
        effect_counts: that more went through than the limit allows can be told from the counters. Of what a pod sends it
            cannot where others may drop packets after they were counted.
        set_up: the verdict on what is set up, where the effect is told instead of it.
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
    effect_counts: bool = False
    set_up: Verdict | None = None

    @property
    def key(self) -> Key:
        """Which direction of which pod."""
        return self.pod.uid, self.direction


class LimitIngress(msgspec.Struct, frozen=True, tag=True):
    """Put a token bucket at the root of the pod's host-side device."""

    device: int
    name: str
    params: TbfParams


class LimitEgress(msgspec.Struct, frozen=True, tag=True):
    """Redirect what comes from the pod through an intermediate device with a token bucket.

    Attributes:
        device: the pod's host-side device; ``name`` is its name.
        through: name of the intermediate device, made when it is not there.
        mtu: of the intermediate device.
        params: of its token bucket.
        alias: marks an intermediate device that we make.
        add_hook: the device has no ``ingress`` yet.
        add_filter: the filter is missing.
        stale_filters: priorities of filters to devices that are gone.
    """

    device: int
    name: str
    through: str
    mtu: int
    params: TbfParams
    alias: str
    add_hook: bool = False
    add_filter: bool = True
    stale_filters: tuple[int, ...] = ()


class RemoveLimit(msgspec.Struct, frozen=True, tag=True):
    """Take a limit of ours off a pod that asks for none any more.

    Attributes:
        device: the pod's host-side device; ``name`` is its name.
        through: name of the intermediate device, which goes as well.
        filters: priorities of our filters to it.
        remove_hook: the device's ``ingress`` is ours, and nobody else uses it.
    """

    device: int
    name: str
    direction: Direction
    through: str = ""
    filters: tuple[int, ...] = ()
    remove_hook: bool = False


class RemoveDevice(msgspec.Struct, frozen=True, tag=True):
    """Remove an intermediate device of ours whose pod is gone."""

    device: int
    name: str


Action = LimitIngress | LimitEgress | RemoveLimit | RemoveDevice


class BandwidthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say.

    Attributes:
        statuses: one per annotated direction of each pod that could be located.
        unlocated: annotated pods whose device is not known (yet), with the reason.
        actions: what to do, empty unless enforcing.
        programs_unknown: why programs on the pods' devices could not be looked at; empty when they could.
    """

    statuses: tuple[LimitStatus, ...] = ()
    unlocated: dict[str, str] = {}
    actions: tuple[Action, ...] = ()
    programs_unknown: str = ""
