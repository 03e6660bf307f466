"""Who else limits a direction of a pod: facts of this node, each with its evidence; what is not known is said to be unknown.

Sources: Felix's dataplane/linux/qos/qos.go and bpf/tc/attach.go (Calico 3.30 and later), Cilium's pkg/datapath/linux/bandwidth,
the CNI bandwidth plugin's ifb_creator.go.
"""

from __future__ import annotations

import msgspec

from agent.bandwidth.annotations import Direction, PodWish
from agent.bandwidth.state import Device, Hook
from agent.bandwidth.tbf import PLUGIN_LATENCY_S, WORD, Shape
from agent.bandwidth.view import FELIX_DEVICE, FELIX_PREFIX, View

PASSIVE = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq"})
"""Queueing disciplines that devices have by default and that limit nothing; any other is somebody's work, at the root or below it."""
_CILIUM_DEVICES = ("lxc", "eni", "azv", "gke")
_SLACK_BYTES = 2


class Enforcer(msgspec.Struct, frozen=True):
    """Somebody else, or nobody.

    Attributes:
        evidence: why we think so.
        device: where the limit is, if it can be seen.
        absent: that somebody could limit and does not; then nobody can from here either.
    """

    evidence: str
    device: Device | None = None
    absent: bool = False


def find_enforcer(pod: PodWish, direction: Direction, device: Device, view: View) -> Enforcer | None:
    """Who limits this direction by other means than the plugin's structure; None where nobody is known to."""
    return (
        _calico(pod, direction, device, view)
        or _cilium(direction, device, view)
        or _queueing(direction, device, view)
        or _shared_filters(direction, device, view)
        or _open_vswitch(device, view)
    )


def _calico(pod: PodWish, direction: Direction, device: Device, view: View) -> Enforcer | None:
    if pod.calico:
        return Enforcer("Calico limits pods with annotations of its own (qos.projectcalico.org)", device)
    through = view.behind(device.index)
    if direction == "egress" and through is not None and through.name.startswith(FELIX_PREFIX):
        return Enforcer(f"Felix (Calico) redirects what {device.name} receives to its {through.name}", through)
    shape = view.shape_at(device.index)
    if direction == "ingress" and shape is not None and device.name.startswith(FELIX_DEVICE) and is_felixs(shape):
        return Enforcer(f"the bucket on {device.name} is by Felix's formula (Calico)", device)
    limited = shape is not None if direction == "ingress" else through is not None
    if device.name.startswith(FELIX_DEVICE) and view.felix_limits and not limited:
        found = f"Felix (Calico) limits pods on this node ({view.felix_limits}) but nothing on {device.name}"
        return Enforcer(f"{found} in this direction; it would remove ours", device, absent=True)
    return None


def hook_for(device: Device) -> str:
    """What a filter of ours is to hang on where a device has nothing yet.

    Felix looks for ``ingress`` alone: there it removes our filter with its target and takes over. On a ``clsact`` it fails for
    ever (qos.go, ``CreateEgressQdisc``), and with tcx it removes anybody's (bpf/tc/attach.go); an ``ingress`` its eBPF mode replaces.
    """
    return "ingress" if device.name.startswith(FELIX_DEVICE) else "clsact"


def is_felixs(shape: Shape) -> bool:
    """Whether a bucket was set by Felix: its queue is its depth *in ticks* and 25 ms at its rate, in bytes (``GetTBFValues``)."""
    limit = min(int(shape.rate_bytes_per_s * PLUGIN_LATENCY_S) + shape.buffer_ticks, WORD - 1)
    return abs(shape.limit_bytes - limit) <= _SLACK_BYTES


def _cilium(direction: Direction, device: Device, view: View) -> Enforcer | None:
    """Cilium's configuration decides, whatever devices are called and wherever fq is by default."""
    cilium = view.cilium
    its_own = view.has_cilium and device.name.startswith(_CILIUM_DEVICES)
    if not its_own and device.kind != "netkit":
        return None
    if cilium.limits:
        where = (
            "paces packets by their departure time" if direction == "egress" else "drops what is too much (since 1.18)"
        )
        return Enforcer(f"Cilium's bandwidth manager {where}: cilium-config has enable-bandwidth-manager: true", device)
    if cilium.unknown or not cilium.installed:
        why = cilium.unknown or "there is no cilium-config"
        hint = "; an uplink has fq, as with the bandwidth manager" if view.paced_uplinks else ""
        return Enforcer(f"unknown: whether Cilium limits cannot be told, so nothing is set ({why}{hint})", device)
    chained = view.network.plugins and "cilium-cni" in view.network.plugins[1:]
    if chained and device.kind == "veth":
        return None  # another plugin carries the packets, past buckets as well
    found = "Cilium carries packets past this device, and its bandwidth manager is off (cilium-config)"
    return Enforcer(found, device, absent=True)


def _queueing(direction: Direction, device: Device, view: View) -> Enforcer | None:
    root = view.roots.get(device.index)
    if direction == "egress" or root is None or root.shape is not None:
        return None
    if root.kind not in PASSIVE:
        return Enforcer(f"somebody set up {root.kind} on {device.name}", device)
    below = sorted({kind for kind in view.below_root(device.index) if kind not in PASSIVE})
    return Enforcer(f"somebody set up {', '.join(below)} below the root of {device.name}", device) if below else None


def unseen_programs(device: Device, view: View) -> str:
    """Whose programs are to be expected on a device where none can be looked at, in words; empty where nobody's are.

    Cilium and Felix's eBPF mode attach theirs by tcx, or, on older kernels, as filters of tc: those are seen.
    """
    hooks: tuple[Hook, ...] = ("received", "sent")
    by_tc = any(one.kind == "bpf" for hook in hooks for one in view.filters(device.index, hook))
    if not view.programs_unknown or by_tc:
        return ""
    if view.has_cilium and device.name.startswith(_CILIUM_DEVICES):
        whose = "Cilium"
    elif view.has_felix_programs and device.name.startswith(FELIX_DEVICE):
        whose = "Felix (Calico's eBPF mode)"
    else:
        return ""
    return f"unseen programs of {whose} on {device.name} ({view.programs_unknown})"


def _shared_filters(direction: Direction, device: Device, view: View) -> Enforcer | None:
    """A block of filters belongs to all of its devices: what is added there takes the packets of them all, and tc refuses it."""
    block = view.shared_blocks.get(device.index)
    if direction == "ingress" or block is None:
        return None
    return Enforcer(f"what {device.name} receives goes through filter block {block}, which devices share", device)


def _open_vswitch(device: Device, view: View) -> Enforcer | None:
    master = view.devices.get(device.master or 0)
    if master is None or master.kind != "openvswitch" or "bandwidth" in view.network.plugins:
        return None
    if view.shape_at(device.index) is not None or view.redirect_of(device.index) is not None:
        return None
    found = (
        f"{device.name} is a port of Open vSwitch ({master.name}), and the CNI configuration has no bandwidth plugin"
    )
    return Enforcer(f"unknown: {found}; what Open vSwitch limits cannot be seen from here", device)
