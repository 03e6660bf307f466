"""Finds foreign shapers: whether somebody other than us and the CNI bandwidth plugin limits a direction of a pod.

A foreign limit is never changed. Cilium is recognised by its configuration, because it leaves no trace on the device
(pkg/datapath/linux/bandwidth): a BPF program gives packets their departure time.
"""

from __future__ import annotations

import msgspec

from agent.bandwidth.annotations import Direction
from agent.bandwidth.cni import Attachment
from agent.bandwidth.state import PLUGIN_HANDLE, Device, Hook
from agent.bandwidth.tc_index import TcIndex, is_limit_device

PASSIVE = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq"})
"""Qdiscs that limit nothing and may be a device's default. Any other, at the root or below it, is foreign."""
_CILIUM_DEVICES = ("lxc", "eni", "azv", "gke")
PLUGIN = "bandwidth"
"""Type of the CNI plugin that sets limits."""


class ForeignShaper(msgspec.Struct, frozen=True):
    """A foreign shaper of one direction of a pod.

    Attributes:
        evidence: what shows that there is one.
        device: device with its limit, or without.
        limits_nothing: it controls the device but sets no limit here, and prevents ours from working.
    """

    evidence: str
    device: Device
    limits_nothing: bool = False


def find_foreign(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> ForeignShaper | None:
    """The foreign shaper of this direction, or None."""
    return (
        _cilium(direction, device, tc)
        or _foreign_root(direction, device, attachment, tc)
        or _foreign_redirect(direction, device, tc)
        or _shared_filters(direction, device, tc)
        or _foreign_in_other_direction(direction, device, attachment, tc)
    )


def _has_plugin(attachment: Attachment | None, tc: TcIndex) -> bool:
    """Whether the CNI bandwidth plugin may have set limits: it is configured, or the configuration is unknown."""
    plugins = attachment.plugins if attachment is not None and attachment.plugins else tc.network.plugins
    return not plugins or PLUGIN in plugins


def _foreign_root(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> ForeignShaper | None:
    root = tc.roots.get(device.index)
    if direction == "egress" or root is None or tc.is_our_root(device.index):
        return None
    if root.params is not None:
        if root.handle == PLUGIN_HANDLE and _has_plugin(attachment, tc):
            return None
        handle = f"{root.handle >> 16:x}:"
        return ForeignShaper(f"another program set {root.kind} {handle} on {device.name}, not the CNI plugin", device)
    if root.kind not in PASSIVE:
        return ForeignShaper(f"another program set {root.kind} on {device.name}", device)
    below = sorted({kind for kind in tc.below_root(device.index) if kind not in PASSIVE})
    return (
        ForeignShaper(f"another program set {', '.join(below)} below the root of {device.name}", device)
        if below
        else None
    )


def _foreign_redirect(direction: Direction, device: Device, tc: TcIndex) -> ForeignShaper | None:
    through = tc.redirect_target(device.index)
    if direction == "ingress" or through is None or is_limit_device(through):
        return None
    found = f"a filter of somebody else's redirects what {device.name} receives to {through.name}"
    return ForeignShaper(found, through)


def _foreign_in_other_direction(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> ForeignShaper | None:
    """A shaper of the other direction manages the device, and might remove a limit of ours."""
    if direction == "ingress":
        other = _foreign_redirect("egress", device, tc)
        limited = tc.is_our_root(device.index)
    else:
        other = _foreign_root("ingress", device, attachment, tc)
        limited = tc.redirect_target(device.index) is not None
    if other is None or limited:
        return None
    return ForeignShaper(
        f"nothing limits {device.name} in this direction; {other.evidence}", device, limits_nothing=True
    )


def _cilium(direction: Direction, device: Device, tc: TcIndex) -> ForeignShaper | None:
    """Cilium, by its configuration: neither device names nor an fq qdisc prove that it limits."""
    cilium = tc.cilium
    its_own = tc.has_cilium and device.name.startswith(_CILIUM_DEVICES)
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
        hint = "; an uplink has fq, as with the bandwidth manager" if tc.paced_uplinks else ""
        return ForeignShaper(f"unknown: whether Cilium limits cannot be told, so nothing is set ({why}{hint})", device)
    chained = tc.network.plugins and "cilium-cni" in tc.network.plugins[1:]
    if chained and device.kind == "veth":
        return None  # Another plugin routes the packets, and they pass token buckets.
    found = "Cilium carries packets past this device, and its bandwidth manager is off (cilium-config)"
    return ForeignShaper(found, device, limits_nothing=True)


def unseen_programs(device: Device, tc: TcIndex) -> str:
    """Describes the programs that Cilium must have on a device although they cannot be listed; empty if there are none.

    On older kernels Cilium attaches programs as tc filters, which are listed.
    """
    hooks: tuple[Hook, ...] = ("ingress", "egress")
    by_tc = any(one.kind == "bpf" for hook in hooks for one in tc.filters(device.index, hook))
    if not tc.programs_unknown or by_tc:
        return ""
    if not tc.has_cilium or not device.name.startswith(_CILIUM_DEVICES):
        return ""
    return f"unseen programs of Cilium on {device.name} ({tc.programs_unknown})"


def _shared_filters(direction: Direction, device: Device, tc: TcIndex) -> ForeignShaper | None:
    """Tc refuses a filter on a device that shares its filter block; in the block it would match packets of all its devices."""
    block = tc.shared_blocks.get(device.index)
    if direction == "ingress" or block is None:
        return None
    return ForeignShaper(f"what {device.name} receives goes through filter block {block}, which devices share", device)
