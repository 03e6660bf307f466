"""Finds foreign shapers: whether a program other than ours and the CNI bandwidth plugin limits a direction of a pod.

A foreign limit is never changed. Cilium is recognised by its configuration, because it leaves no trace on the device
(pkg/datapath/linux/bandwidth): a BPF program gives packets their departure time.
"""

from __future__ import annotations

from agent.bandwidth.annotations import Direction
from agent.bandwidth.cni import Attachment
from agent.bandwidth.state import PLUGIN_HANDLE, Device, Hook, LimitAssessment
from agent.bandwidth.tc_index import TcIndex, is_limit_device

PASSIVE = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq"})
"""Qdiscs that limit nothing and may be a device's default. Any other, at the root or below it, is foreign."""
_CILIUM_DEVICES = ("lxc", "eni", "azv", "gke")
PLUGIN = "bandwidth"
"""Type of the CNI plugin that sets limits."""


def find_foreign(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> LimitAssessment | None:
    """The verdict if foreign software controls this direction, or None.

    It is ``other-enforcer`` if a limit of ours must not be set, and ``missing`` if foreign software sets no limit here but would
    bypass or remove ours.
    """
    return (
        _cilium(direction, device, tc)
        or _foreign_root(direction, device, attachment, tc)
        or _foreign_redirect(direction, device, tc)
        or _shared_filters(direction, device, tc)
        or _foreign_in_other_direction(direction, device, attachment, tc)
    )


def _other_enforcer(detail: str, device: Device, tc: TcIndex) -> LimitAssessment:
    return LimitAssessment("other-enforcer", detail, device, tc.params_at(device.index))


def _foreign_root(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> LimitAssessment | None:
    """A qdisc that another program set at the root of the device or below: it limits what goes into the pod."""
    root = tc.roots.get(device.index)
    if direction == "egress" or root is None or tc.is_our_root(device.index):
        return None
    if root.params is not None:
        plugins = attachment.plugins if attachment is not None and attachment.plugins else tc.network.plugins
        if root.handle == PLUGIN_HANDLE and (PLUGIN in plugins or not plugins):
            return None
        foreign_qdiscs = f"{root.kind} {root.handle >> 16:x}: on {device.name}, not the CNI plugin"
    elif root.kind not in PASSIVE:
        foreign_qdiscs = f"{root.kind} on {device.name}"
    else:
        below = sorted({kind for kind in tc.below_root(device.index) if kind not in PASSIVE})
        foreign_qdiscs = f"{', '.join(below)} below the root of {device.name}" if below else ""
    return _other_enforcer(f"another program set {foreign_qdiscs}", device, tc) if foreign_qdiscs else None


def _foreign_redirect(direction: Direction, device: Device, tc: TcIndex) -> LimitAssessment | None:
    """A redirect of what the pod sends to a device that is neither ours nor the CNI bandwidth plugin's."""
    through = tc.redirect_device(device.index)
    if direction == "ingress" or through is None or is_limit_device(through):
        return None
    detail = f"a foreign filter redirects what {device.name} receives to {through.name}"
    return _other_enforcer(detail, through, tc)


def _foreign_in_other_direction(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> LimitAssessment | None:
    """A shaper of the other direction manages the device, and might remove a limit of ours."""
    if direction == "ingress":
        other = _foreign_redirect("egress", device, tc)
        limited = tc.is_our_root(device.index)
    else:
        other = _foreign_root("ingress", device, attachment, tc)
        limited = tc.redirect_device(device.index) is not None
    if other is None or limited:
        return None
    return LimitAssessment("missing", f"nothing limits {device.name} in this direction; {other.detail}", device)


def _cilium(direction: Direction, device: Device, tc: TcIndex) -> LimitAssessment | None:
    """Cilium, by its configuration: neither device names nor an fq qdisc prove that it limits."""
    cilium = tc.cilium
    is_named_by_cilium = tc.has_cilium and device.name.startswith(_CILIUM_DEVICES)
    if not is_named_by_cilium and device.kind != "netkit":
        return None
    if cilium.limits:
        how = (
            "paces packets by their departure time" if direction == "egress" else "drops what is too much (since 1.18)"
        )
        detail = f"Cilium's bandwidth manager {how}: cilium-config has enable-bandwidth-manager: true"
        return _other_enforcer(detail, device, tc)
    if cilium.unknown or not cilium.installed:
        why = cilium.unknown or "there is no cilium-config"
        return _other_enforcer(f"unknown: whether Cilium limits cannot be read, so nothing is set ({why})", device, tc)
    chained = tc.network.plugins and "cilium-cni" in tc.network.plugins[1:]
    if chained and device.kind == "veth":
        return None  # Another plugin routes the packets, so they pass token buckets.
    detail = "Cilium carries packets past this device, and its bandwidth manager is off (cilium-config)"
    return LimitAssessment("missing", detail, device)


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


def _shared_filters(direction: Direction, device: Device, tc: TcIndex) -> LimitAssessment | None:
    """A filter block that devices share: tc refuses a filter on such a device, and one in the block would apply to all of them."""
    block = tc.shared_blocks.get(device.index)
    if direction == "ingress" or block is None:
        return None
    detail = f"what {device.name} receives goes through filter block {block}, which devices share"
    return _other_enforcer(detail, device, tc)
