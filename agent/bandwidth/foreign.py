"""Finds foreign shapers: whether a program other than ours and the CNI bandwidth plugin limits a direction of a pod.

A foreign limit is never changed.
"""

from __future__ import annotations

from agent.bandwidth.annotations import Direction
from agent.bandwidth.cni import Attachment
from agent.bandwidth.state import PLUGIN_HANDLE, Device, LimitAssessment
from agent.bandwidth.tc_index import TcIndex, is_limit_ifb

_NON_LIMITING = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq"})
"""Qdiscs that limit nothing and may be a device's default. Any other, at the root or below it, is foreign."""
_CILIUM_DEVICES = ("lxc", "eni", "azv", "gke")
PLUGIN = "bandwidth"
"""Type of the CNI plugin that sets limits."""


def find_foreign(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> LimitAssessment | None:
    """The verdict ``other-enforcer`` if foreign software limits this direction of a pod's device, or None."""
    if direction == "ingress":
        return _foreign_root(device, attachment, tc)
    target = tc.redirect_device(device.index)
    if target is None:
        return None
    if not is_limit_ifb(target):
        detail = f"a foreign filter redirects what {device.name} receives to {target.name}"
        return _other_enforcer(detail, target, tc)
    # Versions 1.5 of the plugin set HTB.
    return _foreign_root(target, attachment, tc) if tc.params_at(target.index) is None else None


def _foreign_root(device: Device, attachment: Attachment | None, tc: TcIndex) -> LimitAssessment | None:
    """The verdict if another program set a qdisc at the root of a device or below."""
    root = tc.roots.get(device.index)
    if root is None or tc.is_our_root(device.index):
        return None
    if root.params is not None:
        plugins = attachment.plugins if attachment is not None and attachment.plugins else tc.network.plugins
        if root.handle == PLUGIN_HANDLE and (PLUGIN in plugins or not plugins):
            return None
        foreign_qdiscs = f"{root.kind} {root.handle >> 16:x}: on {device.name}, not the CNI plugin"
    elif root.kind not in _NON_LIMITING:
        foreign_qdiscs = f"{root.kind} on {device.name}"
    else:
        below = sorted({kind for kind in tc.below_root(device.index) if kind not in _NON_LIMITING})
        foreign_qdiscs = f"{', '.join(below)} below the root of {device.name}" if below else ""
    return _other_enforcer(f"another program set {foreign_qdiscs}", device, tc) if foreign_qdiscs else None


def _other_enforcer(detail: str, device: Device, tc: TcIndex) -> LimitAssessment:
    return LimitAssessment("other-enforcer", detail, device, tc.params_at(device.index))


def cilium_on(device: Device, tc: TcIndex) -> str:
    """Describes Cilium as the owner of a pod's device; empty if it is not.

    Its programs limit, or carry packets past a limit, and leave nothing that rtnetlink lists (pkg/datapath/linux/bandwidth).
    """
    is_ciliums = device.name.startswith(_CILIUM_DEVICES) or device.kind == "netkit"
    return f"Cilium on {device.name}" if is_ciliums and "cilium_host" in tc.by_name else ""
