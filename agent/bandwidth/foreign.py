"""Who else limits a direction of a pod, with the evidence: what is on a device is the default, the CNI plugin's, ours, or foreign.

Foreign is never touched. Cilium alone is recognised by name, because it leaves nothing on the device by which it could be told
from no limit at all (pkg/datapath/linux/bandwidth): packets pass the device by, and get their departure time from a program.
"""

from __future__ import annotations

import msgspec

from agent.bandwidth.annotations import Direction
from agent.bandwidth.cni import Attachment
from agent.bandwidth.state import PLUGIN_HANDLE, Device, Hook
from agent.bandwidth.view import View, is_limit_device

PASSIVE = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq"})
"""Queueing disciplines that devices have by default and that limit nothing; any other is somebody's work, at the root or below it."""
_CILIUM_DEVICES = ("lxc", "eni", "azv", "gke")
PLUGIN = "bandwidth"
"""Type of the CNI plugin that sets limits."""


class ForeignShaper(msgspec.Struct, frozen=True):
    """Somebody else, or nobody.

    Attributes:
        evidence: why we think so.
        device: where the limit is, or would be.
        absent: that somebody could limit and does not; then nobody can from here either.
    """

    evidence: str
    device: Device
    absent: bool = False


def find_foreign(
    direction: Direction, device: Device, attachment: Attachment | None, view: View
) -> ForeignShaper | None:
    """Who limits this direction by other means than the plugin's and ours; None where nobody is known to."""
    return (
        _cilium(direction, device, view)
        or _foreign_root(direction, device, attachment, view)
        or _foreign_redirect(direction, device, view)
        or _shared_filters(direction, device, view)
        or _foreign_elsewhere(direction, device, attachment, view)
    )


def _has_plugin(attachment: Attachment | None, view: View) -> bool:
    """Whether the CNI plugin may have set limits; where no configuration is known it may."""
    plugins = attachment.plugins if attachment is not None and attachment.plugins else view.network.plugins
    return not plugins or PLUGIN in plugins


def _foreign_root(
    direction: Direction, device: Device, attachment: Attachment | None, view: View
) -> ForeignShaper | None:
    root = view.roots.get(device.index)
    if direction == "egress" or root is None or view.is_our_root(device.index):
        return None
    if root.params is not None:
        if root.handle == PLUGIN_HANDLE and _has_plugin(attachment, view):
            return None
        handle = f"{root.handle >> 16:x}:"
        return ForeignShaper(f"somebody set up {root.kind} {handle} on {device.name}, not the CNI plugin", device)
    if root.kind not in PASSIVE:
        return ForeignShaper(f"somebody set up {root.kind} on {device.name}", device)
    below = sorted({kind for kind in view.below_root(device.index) if kind not in PASSIVE})
    return (
        ForeignShaper(f"somebody set up {', '.join(below)} below the root of {device.name}", device) if below else None
    )


def _foreign_redirect(direction: Direction, device: Device, view: View) -> ForeignShaper | None:
    through = view.redirect_target(device.index)
    if direction == "ingress" or through is None or is_limit_device(through):
        return None
    found = f"a filter of somebody else's redirects what {device.name} receives to {through.name}"
    return ForeignShaper(found, through)


def _foreign_elsewhere(
    direction: Direction, device: Device, attachment: Attachment | None, view: View
) -> ForeignShaper | None:
    """Whoever shapes the other direction of a device manages the device: what we set beside it he might remove."""
    if direction == "ingress":
        other = _foreign_redirect("egress", device, view)
        limited = view.is_our_root(device.index)
    else:
        other = _foreign_root("ingress", device, attachment, view)
        limited = view.redirect_target(device.index) is not None
    if other is None or limited:
        return None
    return ForeignShaper(f"nothing limits {device.name} in this direction; {other.evidence}", device, absent=True)


def _cilium(direction: Direction, device: Device, view: View) -> ForeignShaper | None:
    """Cilium's configuration decides, whatever devices are called and wherever fq is by default."""
    cilium = view.cilium
    its_own = view.has_cilium and device.name.startswith(_CILIUM_DEVICES)
    if not its_own and device.kind != "netkit":
        return None
    if cilium.limits:
        where = (
            "paces packets by their departure time" if direction == "egress" else "drops what is too much (since 1.18)"
        )
        return ForeignShaper(
            f"Cilium's bandwidth manager {where}: cilium-config has enable-bandwidth-manager: true", device
        )
    if cilium.unknown or not cilium.installed:
        why = cilium.unknown or "there is no cilium-config"
        hint = "; an uplink has fq, as with the bandwidth manager" if view.paced_uplinks else ""
        return ForeignShaper(f"unknown: whether Cilium limits cannot be told, so nothing is set ({why}{hint})", device)
    chained = view.network.plugins and "cilium-cni" in view.network.plugins[1:]
    if chained and device.kind == "veth":
        return None  # another plugin carries the packets, past buckets as well
    found = "Cilium carries packets past this device, and its bandwidth manager is off (cilium-config)"
    return ForeignShaper(found, device, absent=True)


def unseen_programs(device: Device, view: View) -> str:
    """Whose programs are to be expected on a device where none can be looked at, in words; empty where nobody's are.

    Cilium attaches its own by tcx, or, on older kernels, as filters of tc: those are seen.
    """
    hooks: tuple[Hook, ...] = ("ingress", "egress")
    by_tc = any(one.kind == "bpf" for hook in hooks for one in view.filters(device.index, hook))
    if not view.programs_unknown or by_tc:
        return ""
    if not view.has_cilium or not device.name.startswith(_CILIUM_DEVICES):
        return ""
    return f"unseen programs of Cilium on {device.name} ({view.programs_unknown})"


def _shared_filters(direction: Direction, device: Device, view: View) -> ForeignShaper | None:
    """A block of filters belongs to all of its devices: what is added there takes the packets of them all, and tc refuses it."""
    block = view.shared_blocks.get(device.index)
    if direction == "ingress" or block is None:
        return None
    return ForeignShaper(f"what {device.name} receives goes through filter block {block}, which devices share", device)
